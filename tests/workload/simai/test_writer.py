"""A written file obeys every rule of the format, and what breaks one is refused."""

import dataclasses
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.collectives import Collective
from spec.errors import ExportError
from tests.workload.simai_lines import row
from workload.simai.format import (
    TRANSFORMER,
    SimaiGroup,
    SimaiHeader,
    SimaiPass,
    SimaiRow,
    SimaiWorkload,
    read_token,
    write_token,
)
from workload.simai.writer import CELL_LIMIT_NS, RATIO_LIMIT_BYTES, check_row, nanoseconds, split_row, write_simai

HEADER = SimaiHeader(tp=2, ep=2, pp=2, vpp=3, ga=4, all_gpus=32, pp_comm_bytes=4096)
ROW = row("mlp_layer", (10, 20, 30), ("ALLREDUCE", 8192), ("ALLTOALL_EP", 4096), ("REDUCESCATTER_DP_EP", 100))


def test_layout_is_header_count_and_twelve_tabbed_fields(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    assert write_simai(path, SimaiWorkload(header=HEADER, rows=iter([ROW, SimaiRow(name="loss")]))) == 2
    # Key order: the header AICB 2.1 writes.
    assert path.read_text() == (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 2 vpp: 3 ga: 4 all_gpus: 32 "
        "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 4096\n2\n"
        "mlp_layer\t-1\t10\tALLREDUCE\t8192\t20\tALLTOALL_EP\t4096\t30\tREDUCESCATTER_DP_EP\t100\t100\n"
        "loss\t-1\t0\tNONE\t0\t0\tNONE\t0\t0\tNONE\t0\t100\n"
    )


def test_a_refused_row_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    path.write_text("old")
    bad = dataclasses.replace(ROW, forward_ns=-1)
    with pytest.raises(ExportError, match="row 1 'mlp_layer'"):
        write_simai(path, SimaiWorkload(header=HEADER, rows=[ROW, bad]))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": "two words"}, "one word"),
        ({"name": ""}, "one word"),
        ({"forward_ns": 1.5}, "whole number"),
        ({"forward_ns": True}, "whole number"),
        ({"forward_ns": CELL_LIMIT_NS}, "reaches 2147483584"),
        ({"update_ns": -1}, "whole number"),
        ({"forward_comm": "allreduce"}, "lower case"),
        ({"forward_comm": "ALLGATHER_DP_EP"}, "another group"),
        ({"forward_bytes": -8}, "whole number"),
        ({"forward_bytes": 2**63}, "whole number"),
        ({"forward_comm": "ALLGATHER", "forward_bytes": RATIO_LIMIT_BYTES + 1}, "16 GiB"),
    ],
)
def test_rows_that_would_be_misread_are_refused(change: dict[str, object], match: str) -> None:
    """Numbers and names, and whatever the checker finds (test_check.py has all of it)."""
    bad = dataclasses.replace(ROW, **change)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match=match):
        check_row(bad, HEADER, index=0)


def test_an_all_reduce_above_16_gib_is_fine() -> None:
    check_row(dataclasses.replace(ROW, forward_bytes=RATIO_LIMIT_BYTES * 4), HEADER, index=0)


@pytest.mark.parametrize(
    ("change", "column"), [({"tp": 1}, "forward"), ({"ep": 1}, "input_grad"), ({"ep": 8}, "weight_grad")]
)
def test_a_group_of_one_moves_nothing(change: dict[str, int], column: str) -> None:
    header = dataclasses.replace(HEADER, **change)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match=f"{column}.*group of one"):
        check_row(ROW, header, index=0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"policy": "MICRO"}, "does not read tp"),
        ({"tp": 0}, "model_parallel_NPU_group"),
        ({"ga": 2.0}, "read as 2"),
        ({"all_gpus": 2**31}, "is 2.31 or more"),
        ({"pp": 1}, "format mismatch"),
        ({"checkpoints": (0, 1), "checkpoint_initiates": (0, 1)}, "lists 2 rows"),
        ({"checkpoints": (0,)}, "together"),
        # the binary runs past its last row when the row that initiates is the checkpoint itself
        ({"checkpoints": (0,), "checkpoint_initiates": (0,)}, "no row before it"),
        ({"checkpoints": (0,), "checkpoint_initiates": (0,), "policy": TRANSFORMER}, "only under"),
    ],
)
def test_headers_that_would_be_misread_are_refused(change: dict[str, object], match: str, tmp_path: Path) -> None:
    header = dataclasses.replace(HEADER, **change)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match=match):
        write_simai(tmp_path / "w.txt", SimaiWorkload(header=header, rows=[SimaiRow(name="a")]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [[], iter(())])
def test_no_rows(rows: object, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="at least one row"):
        write_simai(tmp_path / "w.txt", SimaiWorkload(header=HEADER, rows=rows))  # type: ignore[arg-type]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "w.txt"):
        with pytest.raises(ExportError, match=str(path)):
            write_simai(path, SimaiWorkload(header=HEADER, rows=[ROW]))


def test_nanoseconds_are_whole_and_finite() -> None:
    assert nanoseconds(1.5e-6) == 1500
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ExportError):
            nanoseconds(bad)


@given(cells=st.tuples(*[st.integers(0, 20 * CELL_LIMIT_NS)] * 3), sizes=st.tuples(*[st.integers(1, 200 * 2**30)] * 3))
def test_splitting_keeps_every_nanosecond_and_byte(cells: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    words = ("ALLGATHER", "ALLTOALL_EP", "ALLGATHER")
    parts = split_row(row("embedding_layer", cells, *zip(words, sizes, strict=True)))
    for index, part in enumerate(parts):
        check_row(part, HEADER, index=index)
        assert part.name == "embedding_layer"
    for place, column in enumerate(SimaiPass):
        assert sum(part.compute_ns(column) for part in parts) == cells[place]
        assert sum(part.comm(column)[1] for part in parts) == sizes[place]
    # Each collective still follows all compute that it follows in the whole row, save its own pieces.
    assert parts[-1].forward_bytes > 0
    assert parts[0].input_grad_bytes > 0
    assert parts[0].weight_grad_bytes == sizes[2]


def test_rows_too_long_to_split() -> None:
    with pytest.raises(ExportError, match="parts"):
        split_row(dataclasses.replace(ROW, forward_ns=10**19))
    with pytest.raises(ExportError, match="too large"):
        split_row(dataclasses.replace(ROW, forward_comm="ALLGATHER", forward_bytes=2**62))


def test_words_written_are_words_read() -> None:
    written = 0
    for column in SimaiPass:
        for group in SimaiGroup:
            for kind in Collective:
                try:
                    token = write_token(kind, group, column)
                except ExportError:
                    continue
                assert read_token(token, column) == (kind, group)
                written += 1
    # Four collectives over two groups in each of three columns.
    assert written == 24


def test_rows_are_not_held_in_memory(tmp_path: Path) -> None:
    rows = (dataclasses.replace(ROW, forward_ns=each) for each in range(3_000))
    tracemalloc.start()
    try:
        assert write_simai(tmp_path / "w.txt", SimaiWorkload(header=HEADER, rows=rows)) == 3_000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The file has 0.3 MB; its rows would take several times that.
    assert most < 400_000
