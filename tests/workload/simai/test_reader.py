"""Files are read as the simulator reads them; damage of any kind is found or refused, never priced."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.collectives import Collective
from tests.workload.simai_lines import GOOD, LONG
from workload.diagnostics import WorkloadError
from workload.simai.check import check_simai
from workload.simai.format import GROUPS_OF_PASS, SimaiHeader, SimaiPass, SimaiRow, SimaiWorkload, write_token
from workload.simai.reader import parse_simai, read_simai, usable_workload
from workload.simai.writer import write_simai


@pytest.mark.parametrize("content", [b"", b" \n\n", b"\0\1\2", GOOD.encode() + b"\0"])
def test_no_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=str(path)):
        read_simai(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/null"), tmp_path / "a\0b"):
        with pytest.raises(WorkloadError):
            read_simai(path)


GROUPS = [
    (column, write_token(kind, group, column))
    for column in SimaiPass
    for group in GROUPS_OF_PASS[column]
    for kind in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
]


@given(
    tp=st.integers(2, 9),
    ep=st.integers(2, 5),
    repeat=st.integers(2, 5),
    cells=st.lists(
        st.tuples(st.sampled_from(GROUPS), st.integers(0, 2**31 - 65), st.integers(2**20, 2**34)), min_size=1
    ),
)
def test_what_is_written_is_read_back_without_findings(
    tp: int,
    ep: int,
    repeat: int,
    cells: list[tuple[tuple[SimaiPass, str], int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    header = SimaiHeader(tp=tp, ep=ep, all_gpus=tp * ep * repeat, ga=3)
    rows = [
        SimaiRow(name="row").with_pass(column, compute_ns=compute_ns, comm=token, size_bytes=size)
        for (column, token), compute_ns, size in cells
    ]
    path = tmp_path_factory.mktemp("written") / "w.txt"
    write_simai(path, SimaiWorkload(header=header, rows=rows))
    file = read_simai(path)
    assert check_simai(file) == []
    workload = usable_workload(file)
    assert workload.header == header
    assert list(workload.rows) == rows


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_a_million_words_take_a_moment(separator: str) -> None:
    content = f"{LONG}\n5\n" + separator.join(["7"] * 300_000)
    start = time.process_time()
    check_simai(parse_simai(content.encode()))
    assert time.process_time() - start < 10.0


def test_without_a_pipeline_its_chunks_may_be_missing() -> None:
    header = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 2 pp: 1 all_gpus: 16"
    workload = usable_workload(parse_simai(f"{header}\n1\n{GOOD}\n".encode()))
    assert workload.header == SimaiHeader(policy="HYBRID_TRANSFORMER", tp=2, ep=2, all_gpus=16)
