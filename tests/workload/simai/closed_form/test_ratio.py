"""Which ratio SimAI would look up for a group, and the bandwidth it corrects."""

from pathlib import Path

import pytest

from spec.collectives import Collective
from workload.simai.busbw import (
    RatioTable,
    RatioTables,
    bus_bandwidth_gib,
    group_shape,
    ratio_of,
    read_ratio_tables,
    simai_network,
)
from workload.simai.format import SimaiGroup, SimaiHeader

# A ratio names its own table and column: nic column 3 is 0.103, nvlink column 3 is 0.203, all-to-all 0.303.
SIZES = (16.0 * 2**20, 16.0 * 2**30)


def table(number: int) -> RatioTable:
    first = tuple(number / 10 + column / 1000 for column in range(1, 10))
    return RatioTable(sizes=SIZES, values=(first, (1.0,) * 9))


TABLES = RatioTables(nic=table(1), nvlink=table(2), all_to_all=table(3))


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
    assert ratio_of(TABLES, collective, group, 2**20, shape, nvlink_bound=nvlink_bound) == pytest.approx(
        ratio
    )


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
    values = read_ratio_tables(tmp_path).nvlink.values
    assert values[0] == (0.5, 1, 1, 1, 1, 1, 1, 1, 1)
    assert values[1][8] == 0.8
