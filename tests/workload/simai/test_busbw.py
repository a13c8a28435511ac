"""The bandwidth file is read as the tutorial shows it, written back the same, and never guessed."""

from pathlib import Path

import pytest

from spec.collectives import Collective
from workload.diagnostics import WorkloadError
from workload.simai.busbw import (
    BusBandwidths,
    RatioTable,
    bus_bandwidth_gib,
    group_shape,
    ratio_of,
    read_busbw,
    read_ratio_tables,
    simai_network,
    write_busbw,
)
from workload.simai.format import SimaiGroup, SimaiHeader

# The layout of SimAI's example/busbw.yaml.
TUTORIAL = "test\nTP:\nallreduce,: 300\nallgather,: 280\nDP:\nallreduce,: null\nallgather,: 380\nPP:\nbusbw: 47.5"


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
        ("n\nTP:\nallreduce: -3", "no positive bandwidth"),
        ("n\nTP:\nallreduce: nan", "no positive bandwidth"),
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


def test_what_is_said_of_experts_gathers_is_said_of_their_data_parallel_group(tmp_path: Path) -> None:
    path = tmp_path / "busbw.yaml"
    path.write_text("test\nEP:\n  allgather,: 45 # in DP_EP\n  reducescatter,: 45\n  alltoall,: 80\n")
    groups = read_busbw(path).groups
    assert groups[(SimaiGroup.DP_EP, Collective.ALL_GATHER)] == 45.0
    assert (SimaiGroup.DP_EP, Collective.ALL_TO_ALL) not in groups
    path.write_text(path.read_text() + "DP_EP:\n  allgather,: 30\n")
    assert read_busbw(path).groups[(SimaiGroup.DP_EP, Collective.ALL_GATHER)] == 30.0


# Which ratio SimAI would look up for a group, and the bandwidth it corrects.

# A ratio names its own table and column: nic column 3 is 0.103, nvlink column 3 is 0.203, all-to-all 0.303.
SIZES = (16.0 * 2**20, 16.0 * 2**30)


def table(number: int) -> RatioTable:
    first = tuple(number / 10 + column / 1000 for column in range(1, 10))
    return RatioTable(sizes=SIZES, values=(first, (1.0,) * 9))


TABLES = {"nic_ratio": table(1), "nvlink_ratio": table(2), "ata_ratio": table(3)}


@pytest.mark.parametrize(
    ("group", "collective", "degrees", "nvlink_gib", "bandwidth", "ratio"),
    [
        # Inside one server: NVLink's bandwidth, the nic table's first column.
        (SimaiGroup.TP, Collective.ALL_GATHER, (8, 1), 360.0, 360.0, 0.101),
        # 4 servers: 8 NICs carry 388, NVLink 360 x 8/7 = 411: bound by NICs.
        (SimaiGroup.TP, Collective.REDUCE_SCATTER, (32, 1), 360.0, 388.0, 0.103),
        # NVLink 300 x 8/7 = 342.9 is less than the NICs: bound by NVLink.
        (SimaiGroup.TP, Collective.ALL_GATHER, (32, 1), 300.0, 300.0 * 8 / 7, 0.203),
        # 3 servers have no column of their own and take that of 16.
        (SimaiGroup.TP, Collective.ALL_GATHER, (24, 1), 360.0, 388.0, 0.105),
        (SimaiGroup.TP, Collective.ALL_REDUCE, (32, 1), 360.0, 388.0, 1.0),
        (SimaiGroup.TP, Collective.ALL_TO_ALL, (8, 1), 360.0, 360.0, 0.301),
        (SimaiGroup.EP, Collective.ALL_TO_ALL, (2, 4), 360.0, 360.0, 0.301),
        # tp fills a server: one GPU and one NIC on each of 4 servers, and the column for that.
        (SimaiGroup.EP, Collective.ALL_TO_ALL, (8, 4), 360.0, 48.5 * 3 / 3, 0.309),
        (SimaiGroup.EP, Collective.ALL_GATHER, (8, 4), 360.0, 48.5, 1.0),
        (SimaiGroup.DP, Collective.ALL_GATHER, (2, 1), 360.0, 48.5 * 4, 1.0),
        (SimaiGroup.DP, Collective.ALL_GATHER, (16, 1), 360.0, 48.5, 1.0),
        (SimaiGroup.DP_EP, Collective.ALL_GATHER, (2, 2), 360.0, 48.5 * 2, 1.0),
    ],
)
def test_shape_bandwidth_and_ratio(
    group: SimaiGroup,
    collective: Collective,
    degrees: tuple[int, int],
    nvlink_gib: float,
    bandwidth: float,
    ratio: float,
) -> None:
    tp, ep = degrees
    header = SimaiHeader(tp=tp, ep=ep, all_gpus=tp * ep * 8)
    network = simai_network(gpus_per_server=8, nics_per_server=8, nvlink_gib=nvlink_gib, nic_gib=48.5)
    ranks = header.group_ranks(group)
    shape = group_shape(group, ranks, header, network)
    found, nvlink_bound = bus_bandwidth_gib(collective, shape, network)
    assert found == pytest.approx(bandwidth)
    assert ratio_of(TABLES, collective, group, 2**20, shape, nvlink_bound=nvlink_bound) == pytest.approx(ratio)


def test_linear_between_rows_and_over_the_last() -> None:
    curve = RatioTable(sizes=(100.0, 200.0, 400.0), values=((0.2,), (0.4,), (0.5,)))
    assert curve.ratio(0, 1) == 1.0
    assert curve.ratio(50, 1) == pytest.approx(0.4)
    assert curve.ratio(150, 1) == pytest.approx(0.6)
    assert curve.ratio(200, 1) == pytest.approx(0.8)
    assert curve.ratio(400, 1) == pytest.approx(1.0)


def test_empty_cells_are_one(tmp_path: Path) -> None:
    lines = "Size,1,2,4,8,16,32,64,128,Multi\n16777216,0.5,,,,,,,,\n17179869184,0.5,,,,,,,,0.8\n"
    for name in ("nic_ratio", "nvlink_ratio", "ata_ratio"):
        (tmp_path / f"{name}.csv").write_text(lines)
    values = read_ratio_tables(tmp_path)["nvlink_ratio"].values
    assert values[0] == (0.5, 1, 1, 1, 1, 1, 1, 1, 1)
    assert values[1][8] == 0.8
