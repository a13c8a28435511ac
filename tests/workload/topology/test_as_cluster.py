"""A topology file gives a cluster its sizes and bandwidths."""

import dataclasses
from pathlib import Path

import pytest

from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import save_profile
from solver.opening import open_question
from solver.request import Request
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from tests.solver.questions import ROOT
from workload.findings import WorkloadError
from workload.topology.as_cluster import cluster_with_topology, topology_shape, write_cluster
from workload.topology.templates import TopologyFlags, build_topology

GBPS = 1e9 / 8


@pytest.fixture(scope="module")
def h100() -> ClusterSpec:
    return read_cluster("h100-sxm", root=ROOT)


@pytest.mark.parametrize(
    ("flags", "ranks", "server", "scale_up", "scale_out"),
    [
        # One NV link of 2880Gbps and one NIC port of 400Gbps; 64 ports down, 64 uplinks: nothing lost.
        (TopologyFlags(template="Spectrum-X", gpus=1024), 8, 2880, 2880, 400),
        # Two ports of 200Gbps; 128 ports of 200Gbps down, 120 uplinks of 400Gbps: nothing lost.
        (TopologyFlags(template="AlibabaHPN", gpus=2048), 8, 2880, 2880, 400),
        # 64 ports of 400Gbps down, 8 uplinks of 400Gbps: an eighth.
        (TopologyFlags(template="DCN+", gpus=512), 8, 2880, 2880, 50),
        # All GPUs under one ASW never need the uplinks.
        (TopologyFlags(template="DCN+", gpus=64), 8, 2880, 2880, 400),
        (TopologyFlags(template="NVL"), 72, 18 * 800, 18 * 800, 0),
        # 18 cables of 14400Gbps for 36 GPUs.
        (TopologyFlags(template="NVL", gpus_per_server=36), 72, 18 * 800, 18 * 14400 / 36, 0),
        # 18 switches with 36 cables of 800Gbps each for 36 GPUs.
        (TopologyFlags(template="NVL576"), 576, 18 * 800, 18 * 800, 0),
    ],
)
def test_shapes(flags: TopologyFlags, ranks: int, server: float, scale_up: float, scale_out: float) -> None:
    shape = topology_shape(build_topology(flags))
    assert shape.scale_up_ranks == ranks
    assert shape.server == pytest.approx(server * GBPS)
    assert shape.scale_up == pytest.approx(scale_up * GBPS)
    assert shape.scale_out == pytest.approx(scale_out * GBPS)


def test_a_sheet_takes_the_network_of_the_file(h100: ClusterSpec) -> None:
    cluster = cluster_with_topology(h100, build_topology(TopologyFlags(template="DCN+", gpus=512)))
    assert [domain.ranks for domain in cluster.domains] == [8, 0]
    assert [domain.bandwidth for domain in cluster.domains] == pytest.approx([360e9, 6.25e9])
    assert [domain.latency_s for domain in cluster.domains] == [domain.latency_s for domain in h100.domains]
    assert (cluster.gpus_per_node, cluster.nics_per_node, cluster.max_nodes) == (8, 8, 64)
    assert cluster.gpu == h100.gpu
    assert "topology file DCN+SingleToR_512g" in cluster.sources["domains.nvlink"]


def test_racks_joined_by_fewer_cables_are_a_domain_of_their_own(h100: ClusterSpec) -> None:
    one_rack = cluster_with_topology(h100, build_topology(TopologyFlags(template="NVL", gpu_type="H100")))
    assert [(domain.name, domain.ranks) for domain in one_rack.domains] == [("nvlink", 72), ("infiniband", 0)]
    assert (one_rack.gpus_per_node, one_rack.max_nodes) == (72, 1)
    flags = TopologyFlags(template="NVL", gpus_per_server=36, gpu_type="H100")
    cluster = cluster_with_topology(h100, build_topology(flags))
    assert [(domain.name, domain.ranks) for domain in cluster.domains] == [("rack", 36), ("nvlink", 0)]


def test_another_gpu_is_refused(h100: ClusterSpec) -> None:
    with pytest.raises(WorkloadError, match="of B200"):
        cluster_with_topology(h100, build_topology(TopologyFlags(template="NVL")))


def test_what_cannot_be_a_cluster_is_refused() -> None:
    whole = build_topology(TopologyFlags(template="DCN+", gpus=16))
    no_nics = tuple(link for link in whole.links if link.dst < 18)
    with pytest.raises(WorkloadError, match="no way"):
        topology_shape(dataclasses.replace(whole, links=no_nics))
    half = tuple(link for link in whole.links if link.src >= 4 or link.dst >= 18)
    with pytest.raises(WorkloadError, match="whole, equal servers"):
        topology_shape(dataclasses.replace(whole, links=half))


@pytest.mark.parametrize(
    ("flags", "like"),
    [
        (TopologyFlags(template="DCN+", gpus=64, gpu_type="H200", bandwidth="100Gbps"), "h200"),
        (TopologyFlags(template="NVL", gpus_per_server=36), "b200"),
        # aws-p5 borrows its GPU from h100-sxm
        (TopologyFlags(template="Spectrum-X", gpus=256), "aws-p5"),
    ],
)
def test_a_written_sheet_reads_back_as_the_cluster(flags: TopologyFlags, like: str, tmp_path: Path) -> None:
    topology = build_topology(flags)
    expected = cluster_with_topology(read_cluster(like, root=ROOT), topology)
    read = write_cluster(topology, like, tmp_path / "mine.toml", root=ROOT)
    assert (read.domains, read.gpus_per_node) == (expected.domains, expected.gpus_per_node)
    assert (read.nics_per_node, read.max_nodes) == (expected.nics_per_node, expected.max_nodes)
    assert dataclasses.replace(read.gpu, device_names=()) == dataclasses.replace(
        expected.gpu, device_names=()
    )
    assert topology.file_name in read.sources["node"]


def test_a_sheet_needs_a_sheet_to_be_like(tmp_path: Path) -> None:
    topology = build_topology(TopologyFlags(template="DCN+", gpus=64))
    with pytest.raises(ConfigError, match="one of"):
        write_cluster(topology, "nowhere", tmp_path / "a.toml", root=ROOT)
    with pytest.raises(ConfigError, match=r"\.toml"):
        write_cluster(topology, "h100-sxm", tmp_path / "a.txt", root=ROOT)


def test_the_solver_takes_a_written_sheet_with_a_profile_of_its_name(tmp_path: Path) -> None:
    topology = build_topology(TopologyFlags(template="DCN+", gpus=64, gpu_type="H200", bandwidth="100Gbps"))
    write_cluster(topology, "h200", tmp_path / "mine.toml", root=ROOT)
    profile = tmp_path / "mine.pt"
    machine = MachineFacts(gpu="H200-SXM-141GB", cluster="mine")
    save_profile(profile, ProfileDatabase(machine=machine))

    def asked(cluster: str) -> Request:
        config = ROOT / "configs" / "7B_internlm2.py"
        return Request(root=ROOT, profile=profile, config=config, world_size=64, cluster=cluster)

    opened = open_question(asked(str(tmp_path / "mine.toml")))
    assert opened.question.cluster.domains[-1].bandwidth == 100 * GBPS
    assert opened.source == str(profile)
    assert "every time is modelled from its sheet" in open_question(asked("h100-sxm")).source
