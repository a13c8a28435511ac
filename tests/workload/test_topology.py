"""A topology file gives a cluster its sizes and bandwidths."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import save_profile
from pss.workload import main
from solver.problem.loading import load_problem
from solver.problem.request import Request
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError, ExportError
from tests.solver.questions import ROOT
from workload.diagnostics import WorkloadError
from workload.topology.hardware_spec import cluster_with_topology, topology_shape, write_cluster
from workload.topology.templates import Fabric, build_topology, fabric_topology
from workload.topology.topology import Wire, draw_topology, layers, read_topology, write_topology

GBPS = 1e9 / 8
Flags = dict[str, object]


def flags_of(**given: object) -> Flags:
    return given


@pytest.fixture(scope="module")
def h100() -> ClusterSpec:
    return read_cluster("h100-sxm", root=ROOT)


@pytest.mark.parametrize(
    ("flags", "ranks", "server", "scale_up", "scale_out"),
    [
        # One NV link of 2880Gbps and one NIC port of 400Gbps; 64 ports down, 64 uplinks: nothing lost.
        (flags_of(template="Spectrum-X", gpus=1024), 8, 2880, 2880, 400),
        # Two ports of 200Gbps; 128 ports of 200Gbps down, 120 uplinks of 400Gbps: nothing lost.
        (flags_of(template="AlibabaHPN", gpus=2048), 8, 2880, 2880, 400),
        # 64 ports of 400Gbps down, 8 uplinks of 400Gbps: an eighth.
        (flags_of(template="DCN+", gpus=512), 8, 2880, 2880, 50),
        # All GPUs under one ASW never need the uplinks.
        (flags_of(template="DCN+", gpus=64), 8, 2880, 2880, 400),
        (flags_of(template="NVL"), 72, 18 * 800, 18 * 800, 0),
        # 18 cables of 14400Gbps for 36 GPUs.
        (flags_of(template="NVL", gpus_per_server=36), 72, 18 * 800, 18 * 14400 / 36, 0),
    ],
)
def test_shapes(flags: Flags, ranks: int, server: float, scale_up: float, scale_out: float) -> None:
    shape = topology_shape(build_topology(flags))
    assert shape.scale_up_ranks == ranks
    assert shape.server == pytest.approx(server * GBPS)
    assert shape.scale_up == pytest.approx(scale_up * GBPS)
    assert shape.scale_out == pytest.approx(scale_out * GBPS)


def test_a_sheet_takes_the_network_of_the_file(h100: ClusterSpec) -> None:
    cluster = cluster_with_topology(h100, build_topology(flags_of(template="DCN+", gpus=512)))
    assert [domain.ranks for domain in cluster.domains] == [8, 0]
    assert [domain.bandwidth for domain in cluster.domains] == pytest.approx([360e9, 6.25e9])
    assert [domain.latency_s for domain in cluster.domains] == [domain.latency_s for domain in h100.domains]
    assert (cluster.gpus_per_node, cluster.nics_per_node, cluster.max_nodes) == (8, 8, 64)
    assert cluster.gpu == h100.gpu
    assert "topology file DCN+SingleToR_512g" in cluster.sources["domains.nvlink"]


def test_racks_joined_by_fewer_cables_are_a_domain_of_their_own(h100: ClusterSpec) -> None:
    one_rack = cluster_with_topology(h100, build_topology(flags_of(template="NVL", gpu_type="H100")))
    assert [(domain.name, domain.ranks) for domain in one_rack.domains] == [("nvlink", 72), ("infiniband", 0)]
    assert (one_rack.gpus_per_node, one_rack.max_nodes) == (72, 1)
    flags = flags_of(template="NVL", gpus_per_server=36, gpu_type="H100")
    cluster = cluster_with_topology(h100, build_topology(flags))
    assert [(domain.name, domain.ranks) for domain in cluster.domains] == [("rack", 36), ("nvlink", 0)]


def test_another_gpu_is_refused(h100: ClusterSpec) -> None:
    with pytest.raises(WorkloadError, match="of B200"):
        cluster_with_topology(h100, build_topology(flags_of(template="NVL")))


def test_what_cannot_be_a_cluster_is_refused() -> None:
    whole = build_topology(flags_of(template="DCN+", gpus=16))
    no_nics = tuple(link for link in whole.links if link.dst < 18)
    with pytest.raises(WorkloadError, match="no way"):
        topology_shape(dataclasses.replace(whole, links=no_nics))
    half = tuple(link for link in whole.links if link.src >= 4 or link.dst >= 18)
    with pytest.raises(WorkloadError, match="whole, equal servers"):
        topology_shape(dataclasses.replace(whole, links=half))


@pytest.mark.parametrize(
    ("flags", "like"),
    [
        (flags_of(template="DCN+", gpus=64, gpu_type="H200", bandwidth="100Gbps"), "h200"),
        (flags_of(template="NVL", gpus_per_server=36), "b200"),
        # aws-p5 borrows its GPU from h100-sxm
        (flags_of(template="Spectrum-X", gpus=256), "aws-p5"),
    ],
)
def test_a_written_sheet_reads_back_as_the_cluster(flags: Flags, like: str, tmp_path: Path) -> None:
    topology = build_topology(flags)
    expected = cluster_with_topology(read_cluster(like, root=ROOT), topology)
    read = write_cluster(topology, like, tmp_path / "mine.toml", root=ROOT)
    assert (read.domains, read.gpus_per_node) == (expected.domains, expected.gpus_per_node)
    assert (read.nics_per_node, read.max_nodes) == (expected.nics_per_node, expected.max_nodes)
    assert dataclasses.replace(read.gpu, device_names=()) == dataclasses.replace(expected.gpu, device_names=())
    assert topology.file_name in read.sources["node"]


def test_a_refused_sheet_leaves_no_topology(tmp_path: Path) -> None:
    words = f"topology -topo AlibabaHPN -g 64 -asn 16 -psn 16 --cluster nope -o {tmp_path / 't'}"
    assert main([*words.split(), "--write_cluster", str(tmp_path / "a.toml")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_sheet_needs_a_sheet_to_be_like(tmp_path: Path) -> None:
    topology = build_topology(flags_of(template="DCN+", gpus=64))
    with pytest.raises(ConfigError, match="one of"):
        write_cluster(topology, "nowhere", tmp_path / "a.toml", root=ROOT)
    with pytest.raises(ConfigError, match=r"\.toml"):
        write_cluster(topology, "h100-sxm", tmp_path / "a.txt", root=ROOT)


def test_the_solver_takes_a_written_sheet_with_a_profile_of_its_name(tmp_path: Path) -> None:
    topology = build_topology(flags_of(template="DCN+", gpus=64, gpu_type="H200", bandwidth="100Gbps"))
    write_cluster(topology, "h200", tmp_path / "mine.toml", root=ROOT)
    profile = tmp_path / "mine.pt"
    machine = MachineFacts(gpu="H200-SXM-141GB", cluster="mine")
    save_profile(profile, ProfileDatabase(machine=machine))

    def asked(cluster: str) -> Request:
        config = ROOT / "configs" / "7B_internlm2.py"
        return Request(root=ROOT, profile=profile, config=config, world_size=64, cluster=cluster)

    inputs = load_problem(asked(str(tmp_path / "mine.toml")))
    assert inputs.problem.cluster.domains[-1].bandwidth == 100 * GBPS
    assert inputs.source == str(profile)
    assert "using the hardware spec" in load_problem(asked("h100-sxm")).source


# A topology file is read back as written, and its defects are found.

SMALL = flags_of(template="AlibabaHPN", gpus=16, num_psw=2)


def small_lines(tmp_path: Path) -> list[str]:
    path = tmp_path / "small"
    write_topology(path, build_topology(SMALL))
    return path.read_text().split("\n")


def found(lines: list[str], tmp_path: Path) -> set[tuple[int, str, str]]:
    path = tmp_path / "changed"
    path.write_text("\n".join(lines))
    _, findings = read_topology(path)
    return {(each.line, each.severity.value, each.code) for each in findings}


@pytest.mark.parametrize("template", ["Spectrum-X", "DCN+", "NVL"])
def test_templates_are_read_back_without_findings(template: str, tmp_path: Path) -> None:
    topology = build_topology(flags_of(template=template))
    path = tmp_path / topology.file_name
    write_topology(path, topology)
    assert read_topology(path) == (topology, [])


@pytest.mark.parametrize(
    ("number", "text", "expected"),
    [
        (1, "36 8 2 18 80", {(1, "broken", "header")}),
        (1, "36 8 20 18 80 H100", {(1, "broken", "header")}),
        (1, "36 8 2 18 81 H100", {(1, "broken", "links")}),
        (1, "36 6 2 18 80 H100", {(1, "wrong", "servers"), (21, "wrong", "nv-switch"), (24, "wrong", "nv-switch")}),
        (2, "16 17", {(2, "broken", "switches")}),
        (2, " ".join(str(each) for each in range(35, 15, -1)), {(2, "broken", "switches")}),
        (3, "0 16 2880Gbps 0.000025ms", {(3, "broken", "fields")}),
        (3, "0 99 2880Gbps 0.000025ms 0", {(3, "broken", "node")}),
        (3, "5 5 2880Gbps 0.000025ms 0", {(3, "broken", "node")}),
        (3, "0 16 fast 0.000025ms 0", {(3, "broken", "wire")}),
        (3, "0 16 2880Gbps 0.000025ms 7", {(3, "broken", "wire")}),
        (3, "0 18 2880Gbps 0.000025ms 0", {(4, "wrong", "twice")}),
        (3, "0 17 2880Gbps 0.000025ms 0", {(27, "wrong", "nv-switch")}),
        (3, "0 1 2880Gbps 0.000025ms 0", {(3, "wrong", "gpu-gpu")}),
        (3, "16 0 2880Gbps 0.000025ms 0", {(3, "note", "order")}),
    ],
)
def test_defects(number: int, text: str, expected: set[tuple[int, str, str]], tmp_path: Path) -> None:
    lines = small_lines(tmp_path)
    assert lines[0] == "36 8 2 18 80 H100"
    lines[number - 1] = text
    assert expected <= found(lines, tmp_path)
    if "broken" in {severity for _, severity, _ in expected}:
        assert read_topology(tmp_path / "changed")[0] is None


def test_a_cut_off_switch(tmp_path: Path) -> None:
    lines = small_lines(tmp_path)
    kept = [line for line in lines[2:] if line.split()[1:2] != ["35"]]
    lines = ["36 8 2 18 64 H100", lines[1], *kept]
    assert found(lines, tmp_path) == {(1, "wrong", "cut-off")}


def test_more_nodes_than_links_can_join_are_refused_before_they_are_laid_out(tmp_path: Path) -> None:
    assert found(["999999999 8 0 0 0 H100", ""], tmp_path) >= {(1, "broken", "cut-off")}


def test_picture(tmp_path: Path) -> None:
    topology = build_topology(SMALL)
    assert sorted(set(layers(topology))) == [-1, 0, 1, 2]
    draw_topology(topology, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ExportError, match="at most 400"):
        draw_topology(build_topology(flags_of(template="DCN+")), tmp_path / "n.png")
    with pytest.raises(ExportError, match=r"\.png"):
        draw_topology(topology, tmp_path / "t.xyz")


# Templates have the counts and layouts of SimAI's generator; what it would bend is refused.


# Flags; nodes, NV switches, other switches and links, as the generator writes them into line 1; the name of the file.
REFERENCES = """
template=Spectrum-X gpus=128 gpu_type=A100: 216 16 72 768: Spectrum-X_128g_8gps_400Gbps_A100
template=AlibabaHPN dual_plane=1 gpus=64 num_asw=16 num_psw=16: 104 8 32 320: \
AlibabaHPN_64g_8gps_DualToR_DualPlane_200Gbps_H100
template=DCN+ dual_tor=1 gpus=128 num_asw=2 num_psw=8: 154 16 10 400: DCN+DualToR_128g_8gps_200Gbps_H100
template=Spectrum-X: 4736 512 128 12288: Spectrum-X_4096g_8gps_400Gbps_H100
template=AlibabaHPN: 17640 1920 360 74880: AlibabaHPN_15360g_8gps_DualToR_SinglePlane_200Gbps_H100
template=DCN+: 592 64 16 1088: DCN+SingleToR_512g_8gps_400Gbps_H100
template=NVL: 90 18 0 1296: NVL72_72g_72gps_400Gbps_B200
template=NVL gpus_per_server=36 nv_switches_per_server=18: 108 36 0 1314: NVL72_72g_36gps_400Gbps_B200
rail_optimised=1: 108 4 72 576: Rail_Opti_SingleToR_32g_8gps_400Gbps_H100
rail_optimised=0: 101 4 65 128: No_Rail_Opti_32g_8gps_SingleToR_400Gbps_H100
"""


@pytest.mark.parametrize("line", REFERENCES.strip().splitlines())
def test_reference_counts(line: str) -> None:
    words, counts, file_name = line.split(": ")
    flags = dict(word.split("=") for word in words.split())
    topology = build_topology({name: int(value) if value.isdecimal() else value for name, value in flags.items()})
    assert topology.counts == tuple(map(int, counts.split()))
    assert topology.file_name == file_name


def test_a_rail_optimised_file_line_by_line(tmp_path: Path) -> None:
    # Shape of SimAI's inputs/topo/Rail_Opti_SingleToR_16g_8gps_200Gbps_H20: GPU 8 shares an ASW with GPU 0.
    speeds = {"bandwidth": "200Gbps", "nvlink_bandwidth": "900Gbps", "latency": "0.001ms"}
    flags = flags_of(rail_optimised=True, gpus=16, gpu_type="H20", num_psw=8, **speeds)
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
    topology = build_topology(flags_of(template="AlibabaHPN", dual_plane=True, gpus=64, num_psw=4))
    first_asw = 64 + 8
    uplinks = {(link.src - first_asw, link.dst - first_asw - 16) for link in topology.links if link.src >= 64}
    assert uplinks == {(asw, psw) for asw in range(16) for psw in ((0, 1) if asw < 8 else (2, 3))}


def test_two_racks_are_joined_switch_by_switch() -> None:
    topology = build_topology(flags_of(template="NVL", gpus_per_server=36))
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
        rail_optimised=rail,
        dual_tor=dual,
        gpus=gpus,
        gpus_per_server=per_server,
        nv_switches_per_server=nv,
        nics_per_asw=npa,
        num_psw=2,
        asw_per_psw=2**10,
    )
    topology = fabric_topology(fabric)
    asw = {link.dst for link in topology.links if link.src < gpus and link.dst >= gpus + topology.num_nv_switches}
    for switch in asw:
        assert sum(link.dst == switch for link in topology.links) <= npa
    # The generator's own count of links.
    num_asw = topology.num_other_switches - 2
    assert len(topology.links) == 2 * num_asw + gpus * (2 if dual else 1) + gpus * nv


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (flags_of(template="NVL73"), "known: Spectrum-X"),
        (flags_of(template="Spectrum-X", gpus=100), "multiple of the server"),
        (flags_of(template="Spectrum-X", gpus=8192), "one pod holds 4096"),
        (flags_of(template="Spectrum-X", gpus=0), "-g 0"),
        (flags_of(template="Spectrum-X", gpus=-8), "-g -8"),
        (flags_of(template="Spectrum-X", gpus=128, num_asw=9), "take 8 ASWs"),
        (flags_of(template="Spectrum-X", dual_tor=True), "--dt"),
        (flags_of(template="DCN+", rail_optimised=True), "--ro"),
        (flags_of(template="DCN+", dual_plane=True), "--dp"),
        (flags_of(dual_plane=True), "--dp without"),
        (flags_of(template="AlibabaHPN", dual_plane=True, gpus=64, num_psw=15), "even number"),
        (flags_of(template="NVL", gpus=144), "has 72"),
        (flags_of(template="NVL", gpus_per_server=8), "one rack of 72"),
        (flags_of(template="NVL", num_psw=4), "-psn"),
        (flags_of(template="NVL", nv_switches_per_server=9), "-nsps 9: a rack of NVL has 18"),
        (flags_of(bandwidth="400"), "Gbps"),
        (flags_of(bandwidth="0Gbps"), "above 0"),
        (flags_of(latency="fast"), "with ns, us"),
        (flags_of(error_rate="2"), "share"),
        (flags_of(gpu_type="H 100"), "one word"),
    ],
)
def test_what_does_not_fit_is_refused(flags: Flags, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        build_topology(flags)
