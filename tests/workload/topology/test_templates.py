"""Templates have the counts and layouts of SimAI's generator; what it would bend is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload.findings import WorkloadError
from workload.topology.templates import Fabric, FabricWires, TopologyFlags, build_topology, fabric_topology
from workload.topology.topology import Wire, read_topology, write_topology


# Nodes, NV switches, other switches, links, as the generator writes them into line 1.
@pytest.mark.parametrize(
    ("flags", "counts", "file_name"),
    [
        (
            TopologyFlags(template="Spectrum-X", gpus=128, gpu_type="A100"),
            (216, 16, 72, 768),
            "Spectrum-X_128g_8gps_400Gbps_A100",
        ),
        (
            TopologyFlags(template="AlibabaHPN", gpus=256),
            (424, 32, 136, 2688),
            "AlibabaHPN_256g_8gps_DualToR_SinglePlane_200Gbps_H100",
        ),
        (
            TopologyFlags(template="AlibabaHPN", dual_plane=True, gpus=64, num_asw=16, num_psw=16),
            (104, 8, 32, 320),
            "AlibabaHPN_64g_8gps_DualToR_DualPlane_200Gbps_H100",
        ),
        (
            TopologyFlags(template="DCN+", gpus=256, num_psw=64),
            (356, 32, 68, 768),
            "DCN+SingleToR_256g_8gps_400Gbps_H100",
        ),
        (
            TopologyFlags(template="DCN+", dual_tor=True, gpus=128, num_asw=2, num_psw=8),
            (154, 16, 10, 400),
            "DCN+DualToR_128g_8gps_200Gbps_H100",
        ),
        (TopologyFlags(template="Spectrum-X"), (4736, 512, 128, 12288), "Spectrum-X_4096g_8gps_400Gbps_H100"),
        (
            TopologyFlags(template="AlibabaHPN"),
            (17640, 1920, 360, 74880),
            "AlibabaHPN_15360g_8gps_DualToR_SinglePlane_200Gbps_H100",
        ),
        (
            TopologyFlags(template="AlibabaHPN", dual_plane=True),
            (17640, 1920, 360, 60480),
            "AlibabaHPN_15360g_8gps_DualToR_DualPlane_200Gbps_H100",
        ),
        (TopologyFlags(template="DCN+"), (592, 64, 16, 1088), "DCN+SingleToR_512g_8gps_400Gbps_H100"),
        (
            TopologyFlags(template="DCN+", dual_tor=True),
            (592, 64, 16, 1600),
            "DCN+DualToR_512g_8gps_200Gbps_H100",
        ),
        (TopologyFlags(template="NVL"), (90, 18, 0, 1296), "NVL72_72g_72gps_400Gbps_B200"),
        (
            TopologyFlags(template="NVL", gpus_per_server=36),
            (108, 36, 0, 1314),
            "NVL72_72g_36gps_400Gbps_B200",
        ),
        (TopologyFlags(template="NVL576"), (1188, 612, 0, 20736), "NVL576_576g_36gps_400Gbps_B200"),
        (TopologyFlags(rail_optimised=True), (108, 4, 72, 576), "Rail_Opti_SingleToR_32g_8gps_400Gbps_H100"),
        (TopologyFlags(), (101, 4, 65, 128), "No_Rail_Opti_32g_8gps_SingleToR_400Gbps_H100"),
    ],
)
def test_reference_counts(flags: TopologyFlags, counts: tuple[int, ...], file_name: str) -> None:
    topology = build_topology(flags)
    assert topology.counts == counts
    assert topology.file_name == file_name


def test_a_rail_optimised_file_line_by_line(tmp_path: Path) -> None:
    # Shape of SimAI's inputs/topo/Rail_Opti_SingleToR_16g_8gps_200Gbps_H20: GPU 8 shares an ASW with GPU 0.
    flags = TopologyFlags(
        rail_optimised=True,
        gpus=16,
        gpu_type="H20",
        num_psw=8,
        bandwidth="200Gbps",
        nvlink_bandwidth="900Gbps",
        latency="0.001ms",
    )
    topology = build_topology(flags)
    assert topology.file_name == "Rail_Opti_SingleToR_16g_8gps_200Gbps_H20"
    path = tmp_path / topology.file_name
    write_topology(path, topology)
    lines = path.read_text().split("\n")
    assert lines[0] == "34 8 2 16 96 H20"
    assert lines[1] == "16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 "
    assert lines[2:4] == ["0 16 900Gbps 0.000025ms 0", "0 18 200Gbps 0.001ms 0"]
    assert lines[18:20] == ["8 17 900Gbps 0.000025ms 0", "8 18 200Gbps 0.001ms 0"]
    assert lines[34:36] == ["18 26 400Gbps 0.001ms 0", "18 27 400Gbps 0.001ms 0"]
    assert lines[-2:] == ["25 33 400Gbps 0.001ms 0", ""]
    assert len(lines) == 2 + 96 + 1
    assert read_topology(path) == (topology, [])


def test_planes_stay_apart() -> None:
    topology = build_topology(TopologyFlags(template="AlibabaHPN", dual_plane=True, gpus=64, num_psw=4))
    first_asw = 64 + 8
    uplinks = {(link.src - first_asw, link.dst - first_asw - 16) for link in topology.links if link.src >= 64}
    assert uplinks == {(asw, psw) for asw in range(16) for psw in ((0, 1) if asw < 8 else (2, 3))}


def test_two_racks_are_joined_switch_by_switch() -> None:
    topology = build_topology(TopologyFlags(template="NVL", gpus_per_server=36))
    between = [link for link in topology.links if link.src >= 72]
    assert [(link.src, link.dst) for link in between] == [(72 + each, 90 + each) for each in range(18)]
    assert {link.wire.bandwidth for link in between} == {"14400Gbps"}


WIRE = Wire(bandwidth="1Gbps", latency="1us", error_rate="0")


@given(
    servers=st.integers(1, 40),
    per_server=st.integers(1, 8),
    npa=st.integers(1, 9),
    nv=st.integers(1, 3),
    rail=st.booleans(),
    dual=st.booleans(),
)
def test_every_fabric_is_connected_and_within_its_ports(
    servers: int, per_server: int, npa: int, nv: int, rail: bool, dual: bool
) -> None:
    gpus = servers * per_server
    fabric = Fabric(
        rail=rail,
        dual_tor=dual,
        num_gpus=gpus,
        gpus_per_server=per_server,
        nv_switches_per_server=nv,
        nics_per_asw=npa,
        num_psw=2,
        asw_per_psw=2**10,
    )
    wires = FabricWires(nvlink=WIRE, nic=WIRE, uplink=WIRE)
    topology = fabric_topology(fabric, wires, file_name="f", gpu_type="X")
    asw = {
        link.dst for link in topology.links if link.src < gpus and link.dst >= gpus + topology.num_nv_switches
    }
    for switch in asw:
        assert sum(link.dst == switch for link in topology.links) <= npa
    # The generator's own count of links.
    num_asw = topology.num_other_switches - 2
    assert len(topology.links) == 2 * num_asw + gpus * (2 if dual else 1) + gpus * nv


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (TopologyFlags(template="NVL73"), "known: Spectrum-X"),
        (TopologyFlags(template="Spectrum-X", gpus=100), "multiple of the server"),
        (TopologyFlags(template="Spectrum-X", gpus=8192), "one pod holds 4096"),
        (TopologyFlags(template="Spectrum-X", gpus=0), "-g 0"),
        (TopologyFlags(template="Spectrum-X", gpus=-8), "-g -8"),
        (TopologyFlags(template="Spectrum-X", gpus=128, num_asw=9), "take 8 ASWs"),
        (TopologyFlags(template="Spectrum-X", dual_tor=True), "--dt"),
        (TopologyFlags(template="DCN+", rail_optimised=True), "--ro"),
        (TopologyFlags(template="DCN+", dual_plane=True), "--dp"),
        (TopologyFlags(dual_plane=True), "--dp without"),
        (TopologyFlags(template="AlibabaHPN", dual_plane=True, gpus=64, num_psw=15), "even number"),
        (TopologyFlags(template="NVL", gpus=144), "has 72"),
        (TopologyFlags(template="NVL", gpus_per_server=8), "one rack of 72"),
        (TopologyFlags(template="NVL576", gpus_per_server=72), "has 36"),
        (TopologyFlags(template="NVL", num_psw=4), "-psn"),
        (TopologyFlags(bandwidth="400"), "Gbps"),
        (TopologyFlags(bandwidth="0Gbps"), "above 0"),
        (TopologyFlags(latency="fast"), "with ns, us"),
        (TopologyFlags(error_rate="2"), "share"),
        (TopologyFlags(gpu_type="H 100"), "one word"),
    ],
)
def test_what_does_not_fit_is_refused(flags: TopologyFlags, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        build_topology(flags)
