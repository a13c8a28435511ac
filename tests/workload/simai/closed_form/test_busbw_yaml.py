"""The bandwidth file is read as the tutorial shows it, written back the same, and never guessed."""

from pathlib import Path

import pytest

from spec.collectives import Collective
from workload.findings import WorkloadError
from workload.simai.busbw import BusBandwidths, read_busbw, write_busbw
from workload.simai.format import SimaiGroup

# The layout of SimAI's example/busbw.yaml.
TUTORIAL = (
    "test\nTP:\nallreduce,: 300\nallgather,: 280\nDP:\nallreduce,: null\nallgather,: 380\nPP:\nbusbw: 47.5"
)


def test_the_tutorial_form(tmp_path: Path) -> None:
    path = tmp_path / "busbw.yaml"
    path.write_text(TUTORIAL)
    assert read_busbw(path) == BusBandwidths(
        name="test",
        groups={
            (SimaiGroup.TP, Collective.ALL_REDUCE): 300.0,
            (SimaiGroup.TP, Collective.ALL_GATHER): 280.0,
            (SimaiGroup.DP, Collective.ALL_GATHER): 380.0,
        },
        pipeline_gib=47.5,
    )


def test_indentation_comments_and_plain_keys(tmp_path: Path) -> None:
    path = tmp_path / "busbw.yaml"
    path.write_text("# measured\nEP:\r\n  alltoall: 45.5  # GiB/s\r\n\n  allreduce : ~\n")
    assert read_busbw(path).groups == {(SimaiGroup.EP, Collective.ALL_TO_ALL): 45.5}


def test_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "busbw.yaml"
    path.write_text(TUTORIAL)
    first = read_busbw(path)
    write_busbw(path, first)
    assert read_busbw(path) == first
    write_busbw(path, BusBandwidths(name="", groups={}))
    assert read_busbw(path) == BusBandwidths(name="busbw", groups={})


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("n\nCP:\nallreduce: 3", "line 2: unknown section"),
        ("n\nTP:\nbroadcast: 3", "line 3: 'broadcast'"),
        ("n\nallreduce: 3", "before any section"),
        ("n\nTP:\nbusbw: 3", "busbw"),
        ("n\nPP:\nallreduce: 3", "allreduce"),
        ("n\nTP:\nallreduce: fast", "no positive bandwidth"),
        ("n\nTP:\nallreduce: -3", "no positive bandwidth"),
        ("n\nTP:\nallreduce: nan", "no positive bandwidth"),
        ("n\nTP:\nallreduce: 1e999", "no positive bandwidth"),
        ("n\nTP:\nallreduce: 1e300", "no positive bandwidth"),
        ("n\nTP:\nallreduce: 1e-300", "no positive bandwidth"),
        ("n\nTP:\nallreduce: ٣", "no positive bandwidth"),
        ("n\nTP:\nallreduce: 3\nallreduce,: 4", "line 4: allreduce of section TP is given twice"),
        ("n\nTP:\n- allreduce", "line 3"),
        ("\udcff", "is no UTF-8 text"),
    ],
)
def test_everything_else_is_refused(content: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "busbw.yaml"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(WorkloadError, match=match):
        read_busbw(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(WorkloadError, match=str(path)):
            read_busbw(path)


def test_what_is_said_of_experts_gathers_is_said_of_their_data_parallel_group(tmp_path: Path) -> None:
    path = tmp_path / "busbw.yaml"
    path.write_text("test\nEP:\n  allgather,: 45 # in DP_EP\n  reducescatter,: 45\n  alltoall,: 80\n")
    groups = read_busbw(path).groups
    assert groups[(SimaiGroup.DP_EP, Collective.ALL_GATHER)] == 45.0
    assert (SimaiGroup.DP_EP, Collective.ALL_TO_ALL) not in groups
    path.write_text(path.read_text() + "DP_EP:\n  allgather,: 30\n")
    assert read_busbw(path).groups[(SimaiGroup.DP_EP, Collective.ALL_GATHER)] == 30.0
