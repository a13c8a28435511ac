"""Every defect is found on its line; what is fine is not complained about; nothing crashes the reader."""

from pathlib import Path

import pytest

from tests.workload.simai_lines import GOOD, LONG, SHORT, cell
from workload.diagnostics import WorkloadError, summary_of
from workload.simai.check import check_simai
from workload.simai.format import SimaiHeader
from workload.simai.reader import parse_simai, usable_workload


def found(header: str, count: str, *rows: str) -> set[tuple[int, str, str]]:
    content = "\n".join([header, count, *rows]) + "\n"
    return {(each.line, each.severity.value, each.code) for each in check_simai(parse_simai(content.encode()))}


def test_what_the_tokeniser_does_not_mind(tmp_path: Path) -> None:
    # Seen by running it: tabs or spaces, any order of keys, CRLF, pp_comm without its colon.
    header = "HYBRID_TRANSFORMER\tpp_comm 4096  ga: 4 pp: 2\tep: 2 vpp: 1 all_gpus: 32 model_parallel_NPU_group: 2"
    content = f"{header}\r\n2 \r\n{GOOD}\r\n{GOOD.replace(chr(9), '  ')}\r\n\r\n"
    file = parse_simai(content.encode())
    assert check_simai(file) == []
    workload = usable_workload(file)
    assert workload.header == SimaiHeader(
        policy="HYBRID_TRANSFORMER", tp=2, ep=2, pp=2, ga=4, all_gpus=32, pp_comm_bytes=4096
    )
    assert [row.line() for row in workload.rows] == [GOOD, GOOD]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (SHORT, {(1, "stops", "short-header")}),
        # the words that miss the keys of missing degrees are named there; those of the lists miss nothing
        (LONG.replace(":", ""), {(1, "wrong", "unread"), (1, "broken", "missing")}),
        (LONG.replace("ga:", "ga"), {(1, "broken", "missing")}),
        (LONG.replace("ga:", "GA:"), {(1, "broken", "missing")}),
        (LONG.replace("pp: 2 vpp", "vpp"), {(1, "broken", "missing")}),
        (LONG.replace("vpp: 1 ", ""), {(1, "broken", "missing")}),
        # As SimAI's own example/microAllReduce.txt: without a pipeline vpp enters nothing but its NaN.
        (
            "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 ga: 1 all_gpus: 16",
            {(1, "stops", "missing")},
        ),
        (LONG.replace("ga: 4", "ga: 0"), {(1, "broken", "not-positive")}),
        (LONG.replace("ga: 4", "ga: -4"), {(1, "broken", "not-positive")}),
        (LONG.replace("ga: 4", "ga: four"), {(1, "broken", "value")}),
        (LONG.replace("pp_comm: 4096", "pp_comm: 2147483648"), {(1, "broken", "value")}),
        (LONG.replace("pp_comm: 4096", "pp_comm: 6291456.0"), {(1, "note", "not-whole")}),
        (LONG.replace("pp_comm: 4096", "pp_comm:"), {(1, "broken", "no-value")}),
        (LONG + " ga:", {(1, "broken", "no-value")}),
        (LONG.replace(" pp_comm: 4096", ""), {(1, "note", "pp-comm")}),
        (LONG.replace("checkpoints: 0", "checkpoints: 2 0 1"), {(1, "wrong", "list")}),
        (LONG.replace("checkpoints: 0", "checkpoints: 1 9"), {(1, "wrong", "list")}),
        (LONG + " tp: 3 expert_parallel_npu_group: 4", {(1, "note", "unread")}),
        (LONG + " GA: 3", {(1, "wrong", "unread")}),
        (LONG + " ga: 3", {(1, "wrong", "twice")}),
        (LONG + " mode: 1", set()),
        (LONG.replace("32", "34"), {(1, "wrong", "degrees")}),
        (LONG.replace("ep: 2", "ep: 3"), {(1, "wrong", "degrees"), (3, "wrong", "small-free")}),
        (LONG.replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID"), {(1, "broken", "policy")}),
        (LONG.replace("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "MICRO"), {(1, "stops", "policy")}),
        ("", {(1, "broken", "no-policy")}),
    ],
)
def test_header_defects(header: str, expected: set[tuple[int, str, str]]) -> None:
    assert found(header, "1", GOOD) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("3", {(2, "broken", "count")}),
        ("1", {(2, "wrong", "count")}),
        ("0", {(2, "wrong", "count")}),
        ("", {(2, "broken", "count")}),
        ("two", {(2, "broken", "count")}),
        ("-2", {(2, "broken", "count")}),
        ("99999999999", {(2, "broken", "count")}),
        ("2 rows", {(2, "note", "count")}),
    ],
)
def test_count_defects(count: str, expected: set[tuple[int, str, str]]) -> None:
    assert found(LONG, count, GOOD, GOOD) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GOOD + "\t7", {(4, "broken", "fields")}),
        (GOOD.rpartition("\t")[0], {(4, "broken", "fields")}),
        ("stray", {(4, "broken", "fields")}),
        (cell(2, "1000.5"), {(4, "broken", "float")}),
        (cell(2, "1e9"), {(4, "broken", "float")}),
        (cell(2, "nan"), {(4, "broken", "float")}),
        (cell(2, "-5"), {(4, "broken", "negative")}),
        (cell(4, "9" * 5000), {(4, "broken", "overflow")}),
        (cell(2, "x"), {(4, "broken", "fields")}),
        (cell(3, "7"), {(4, "broken", "fields")}),
        (cell(1, "0"), {(4, "note", "dependency")}),
        # 2147483584 rounds to 2^31 in float32; 2147483583 does not.
        (cell(5, "2147483584"), {(4, "stops", "long-cell")}),
        (cell(5, "2147483583"), set()),
        (cell(3, "allreduce"), {(4, "wrong", "word")}),
        (cell(3, "ALLREDUCE_CP"), {(4, "wrong", "word")}),
        (cell(3, "ALLREDUCEALLTOALL"), {(4, "wrong", "word")}),
        (cell(3, "BROADCAST"), {(4, "wrong", "word")}),
        (cell(3, "NONE"), {(4, "note", "bytes-beside-none")}),
        (cell(3, "ALLGATHER_DP_EP"), {(4, "wrong", "column")}),
        (cell(9, "ALLGATHER_EP"), {(4, "wrong", "column")}),
        (cell(4, "0"), {(4, "note", "no-bytes")}),
        (cell(4, "4095"), {(4, "note", "forward-floor")}),
        (cell(7, str(16 * 2**30 + 1)), {(4, "stops", "above-ratio")}),
    ],
)
def test_row_defects(row: str, expected: set[tuple[int, str, str]]) -> None:
    assert found(LONG, "3", GOOD, row, GOOD) == expected


# As the binary was seen to do with four rows: exit by SIGSEGV in every case that "segment" stands for.
@pytest.mark.parametrize(
    ("checkpoints", "initiates", "expected"),
    [
        ("1 1", "1 3", set()),
        ("1 0", "1 3", set()),
        ("1 1", "0", set()),
        ("0", "1 2", {(1, "stops", "segment")}),
        ("1 3", "1 2", {(1, "stops", "segment")}),
        ("1 2", "1 2", {(1, "stops", "segment")}),
        ("1 0", "1 0", {(1, "stops", "segment")}),
        ("1 9", "1 2", {(1, "stops", "segment")}),
        ("1 -1", "1 2", {(1, "stops", "segment")}),
        ("1 1", "1 9", {(1, "wrong", "list")}),
        ("1 1", "1 -1", {(1, "wrong", "list")}),
        ("1 x", "1 2", {(1, "broken", "value")}),
        ("2 1 3", "1 2", {(1, "wrong", "list")}),
    ],
)
def test_recomputed_segments(checkpoints: str, initiates: str, expected: set[tuple[int, str, str]]) -> None:
    header = LONG.replace("checkpoints: 0 ", f"checkpoints: {checkpoints} ")
    header = header.replace("checkpoint_initiates: 0", f"checkpoint_initiates: {initiates}")
    assert found(header, "4", *[GOOD] * 4) == expected


def test_a_damaged_row_is_a_row() -> None:
    header = LONG.replace("s: 0 checkpoint_initiates: 0", "s: 1 0 checkpoint_initiates: 1 2")
    for damaged in (cell(2, "1.5"), cell(2, "-5"), cell(3, "7"), GOOD.rpartition("\t")[0], GOOD + "\t7"):
        content = "\n".join([header, "3", GOOD, damaged, GOOD])
        file = parse_simai(content.encode())
        assert file.num_rows == 3
        assert [each.line for each in check_simai(file)] == [4]


def test_groups_of_one_and_sizes_without_a_fixed_time() -> None:
    header = LONG.replace("NPU_group: 2", "NPU_group: 1").replace("all_gpus: 32", "all_gpus: 12")
    large = cell(4, str(2**20))
    assert found(header, "1", GOOD) == {(3, "note", "group-of-one"), (3, "wrong", "small-free")}
    assert found(header, "1", large) == {(3, "wrong", "group-of-one"), (3, "wrong", "small-free")}
    # Without a group there is no bandwidth: 0 bytes are 0/0 as well.
    empty = cell(4, "0")
    assert (3, "wrong", "group-of-one") in found(header, "1", empty)
    # Only tensor-parallel groups of one are divided by zero; the others are passed over.
    alone = cell(10, str(2**20))
    assert found(LONG.replace("ep: 2", "ep: 8"), "1", alone) == {(3, "note", "group-of-one")}


def test_broken_files_are_not_replayed() -> None:
    with pytest.raises(WorkloadError, match="line 1: no ga"):
        usable_workload(parse_simai(f"{LONG.replace('ga: 4', '')}\n1\n{GOOD}\n".encode()))
    with pytest.raises(WorkloadError, match="says nothing of tp"):
        usable_workload(parse_simai(f"DATA\n1\n{GOOD}\n".encode()), 16)


@pytest.mark.parametrize(("header", "tp"), [(SHORT, 8), ("MICRO", 1)])
def test_files_of_2024_have_groups_of_one_in_the_world_given(header: str, tp: int) -> None:
    file = parse_simai(f"{header}\n1\n{GOOD}\n".encode())
    expected = SimaiHeader(tp=tp, ep=1, pp=1, vpp=1, ga=1, all_gpus=16, policy=header.split(maxsplit=1)[0])
    assert usable_workload(file, 16).header == expected
    with pytest.raises(WorkloadError, match="no all_gpus: give the world as -g"):
        usable_workload(file)


def test_the_world_given_goes_before_the_header_s() -> None:
    file = parse_simai(f"{LONG}\n1\n{GOOD}\n".encode())
    assert [usable_workload(file, gpus).header.all_gpus for gpus in (None, 64)] == [32, 64]


def test_rows_beyond_the_announced_number_are_left_out() -> None:
    assert len(list(usable_workload(parse_simai(f"{LONG}\n1\n{GOOD}\n{GOOD}\n".encode())).rows)) == 1


def test_summary_counts_what_it_leaves_out() -> None:
    file = parse_simai("\n".join([LONG, "9", *[cell(3, "allreduce")] * 9]).encode())
    lines = summary_of(check_simai(file))
    assert lines[0].startswith("line 3: wrong: forward 'allreduce' is lower case")
    assert lines[-1] == "6 more of wrong [word]"
    assert len(lines) == 4
