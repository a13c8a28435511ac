"""Hardware specs: shipped ones, borrowed GPUs, every way to get one wrong, and every name of a GPU."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spec.cluster import reader
from spec.cluster.reader import cluster_names, find_hardware_spec, read_cluster
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]

GOOD = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")


def sheet(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return str(path)


def test_every_shipped_sheet_reads_and_is_named_as_its_file() -> None:
    names = cluster_names(ROOT)
    assert {"a100-sxm-80g", "a800", "h100-sxm", "h800", "h200", "b200", "cpu"} <= set(names)
    for name in names:
        cluster = read_cluster(name, root=ROOT)
        assert cluster.name == name
        assert cluster.nodes_for(cluster.scale_up_ranks + 1) >= 1


def test_gb200_domain_is_wider_than_its_node() -> None:
    cluster = read_cluster("gb200-nvl72", root=ROOT)
    assert (cluster.gpus_per_node, cluster.scale_up_ranks) == (4, 72)
    assert cluster.nodes_for(72) == 18


def test_four_grace_hoppers_of_jupiter_are_joined_by_pairs_of_links() -> None:
    """JSC, JUPITER configuration: 96 GB at 4 TB/s, 300 GB/s both ways between each pair, NDR200 a GPU, 900
    GB/s to the host.
    """
    cluster = read_cluster("jupiter-booster", root=ROOT)
    assert (cluster.gpus_per_node, cluster.scale_up_ranks) == (4, 4)
    assert cluster.gpu.memory_bandwidth == 4e12
    assert [domain.bandwidth for domain in cluster.domains] == [3 * 150e9, 200e9 / 8]
    assert cluster.host.link_bandwidth == 900e9 / 2
    assert cluster.gpu.training_rate_ratio == pytest.approx(720e12 * (680 / 700) ** 0.716 / 794.5e12, abs=0.005)


@pytest.mark.parametrize(
    ("sheet", "flop_a_clock"),
    [("a40", 1024), ("rtx-a6000", 1024), ("l4", 1024), ("l40s", 1024), ("rtx-4090", 512), ("aws-g5", 512)],
)
def test_cards_of_gddr_accumulate_in_fp32_at_the_rate_of_their_die_or_half(sheet: str, flop_a_clock: int) -> None:
    """Four tensor cores of 128 multiply-adds a clock (GA102 and Ada whitepapers); GeForce and A10G accumulate
    in fp32 at half that.

    Beside them 128 fp32 cores an SM, and none sustains more than its peak.
    """
    gpu = read_cluster(sheet, root=ROOT).gpu
    assert gpu.peak_flops["bf16"] == pytest.approx(gpu.num_sms * flop_a_clock * gpu.boost_clock_hz, rel=0.02)
    assert gpu.peak_flops["fp32"] == pytest.approx(gpu.num_sms * 256 * gpu.boost_clock_hz, rel=0.02)
    assert gpu.sustained_flops["bf16"] <= gpu.peak_flops["bf16"]
    assert gpu.sustained_flops["fp16"] <= gpu.peak_flops["fp16"]


@pytest.mark.parametrize(
    ("sheet", "gpu", "gpus", "nics", "gigabits", "latency_s"),
    [
        # Figures of the providers' pages: Gb/s of a node's NICs together; aws-ofi-nccl's latencies
        ("aws-p4de", "A100-SXM-80GB", 8, 4, 400, 75e-6),
        ("aws-p5e", "H200-SXM-141GB", 8, 32, 3200, 20e-6),
        ("aws-p6-b200", "B200-SXM-180GB", 8, 8, 3200, 18e-6),
        ("azure-nd-h200-v5", "H200-SXM-141GB", 8, 8, 3200, 2.7e-6),
        ("gcp-a3-high", "H100-SXM-80GB", 8, 4, 800, 65e-6),
        ("gcp-a3-ultra", "H200-SXM-141GB", 8, 8, 3200, 2.7e-6),
        ("gcp-a4x", "GB200-186GB", 4, 4, 1600, 2.7e-6),
        ("oci-h100", "H100-SXM-80GB", 8, 8, 3200, 2.7e-6),
        ("alps", "GH200-96GB", 4, 4, 800, 2.7e-6),
        ("aws-g5", "A10G-24GB", 8, 1, 100, 75e-6),
        ("l4", "L4-24GB", 8, 1, 100, 75e-6),
    ],
)
def test_machines_of_the_clouds(sheet: str, gpu: str, gpus: int, nics: int, gigabits: int, latency_s: float) -> None:
    cluster = read_cluster(sheet, root=ROOT)
    outer = cluster.domains[-1]
    assert (cluster.gpu.name, cluster.gpus_per_node, cluster.nics_per_node) == (gpu, gpus, nics)
    assert (outer.bandwidth * gpus, outer.latency_s) == (gigabits * 1e9 / 8, latency_s)


def test_cards_that_reach_each_other_through_the_host_say_so() -> None:
    assert {
        name: read_cluster(name, root=ROOT).domains[0].peer_access
        for name in ("rtx-4090", "l4", "aws-g5", "a40", "l40s")
    } == {"rtx-4090": False, "l4": False, "aws-g5": False, "a40": True, "l40s": True}


def test_a_borrowed_gpu_brings_its_figures_and_sources() -> None:
    lender, borrower = read_cluster("h100-sxm", root=ROOT), read_cluster("aws-p5", root=ROOT)
    assert borrower.gpu.name == lender.gpu.name
    assert borrower.gpu.peak_flops == lender.gpu.peak_flops
    assert borrower.gpu.device_names == ()
    assert borrower.sources["gpu.sustained_flops"] == lender.sources["gpu.sustained_flops"]


def test_a_file_outside_the_folder_reads_by_path(tmp_path: Path) -> None:
    cluster = read_cluster(sheet(tmp_path, GOOD), root=ROOT)
    assert (cluster.name, cluster.gpu.num_sms, cluster.domains[1].ranks) == ("tiny", 10, 0)


def test_an_unknown_name_lists_those_like_it() -> None:
    more = len(cluster_names(ROOT)) - 8
    with pytest.raises(ConfigError, match=rf"one of .*\bh100-sxm\b.* and {more} more in configs/clusters$"):
        read_cluster("h101", root=ROOT)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "tiny"', "", "name = None: required: text"),
        (
            'name = "tiny"',
            'name = "tiny"\ncolour = "red"',
            "colour = 'red': unknown key, which might change the answer; known: domains",
        ),
        ('name = "T1"', 'name = ""', "gpu.name = '': text"),
        ('"hopper"', '"kepler"', "gpu.architecture = 'kepler': one of"),
        ("memory_bytes = 8e9", "memory_bytes = 80", "gpu.memory_bytes = 80: a number from 1e+08 to 1e+14 bytes"),
        ("memory_bandwidth = 1e12", "memory_bandwidth = nan", "gpu.memory_bandwidth = nan"),
        ("power_w = 100", "power_w = true", "gpu.power_w = True"),
        ("num_sms = 10", "num_sms = 0", "gpu.num_sms = 0: a whole number"),
        ("num_sms = 10", "num_sms = 10\nsms = 10", "gpu.sms = 10: unknown key"),
        ("bf16 = 1e14", "bf17 = 1e14", "gpu.peak_flops.bf17"),
        ("bf16 = 1e14", "bf16 = 312", "gpu.peak_flops.bf16 = 312: a number from"),
        ("bf16 = 1e14", "", "gpu.peak_flops = '<dict of 0>': FLOP/s of at least one format"),
        ("gpus = 4", "gpus = -4", "node.gpus = -4"),
        ("nics = 2", 'nics = "two"', "node.nics = 'two'"),
        ("max_nodes = 16", "max_nodes = 0", "node.max_nodes = 0"),
        ('link = "network"', 'link = "pigeon"', "domains.net.link = 'pigeon': one of"),
        (
            'link = "network"',
            'link = "network"\npeer_access = false',
            'domains.net.peer_access = False: true, or link = "pcie"',
        ),
        ("ranks = 0", "ranks = 8", "domains.ranks = [4, 8]"),
        ("ranks = 4", "ranks = 0", "domains.ranks = [0, 0]"),
        ("ranks = 4", "ranks = 3", "domains[0].ranks = 3"),
        ("latency_s = 3e-6", "latency_s = 3", "domains.net.latency_s = 3"),
        ("bandwidth = 1e10", "bandwidth = 0", "domains.net.bandwidth = 0"),
        ('name = "net"', 'name = "nvlink"', "a different name for each table"),
        ('"node" = "datasheet"', "", "sources.'node.gpus'"),
        ('"node" = "datasheet"', '"node" = ""', "sources.node = ''"),
        ('"node" = "datasheet"', '"node" = "d"\n"nodes.gpus" = "d"', "sources.'nodes.gpus'"),
        ("[gpu.peak_flops]", "[gpu.sustained_flop]\nbf16 = 1e14\n[gpu.peak_flops]", "gpu.sustained_flop = "),
        ("[node]", "[node", "TOML (Expected"),
    ],
)
def test_a_bad_sheet_is_one_clear_error(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert GOOD.count(old) >= 1
    path = sheet(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        read_cluster(path, root=ROOT)
    assert "tiny.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gpu", ["h101", "aws-p5"])
def test_only_a_sheet_with_a_gpu_table_can_lend_it(tmp_path: Path, gpu: str) -> None:
    start, end = GOOD.index("[gpu]"), GOOD.index("[node]")
    text = GOOD[:start] + f'gpu = "{gpu}"\n' + GOOD[end:]
    with pytest.raises(ConfigError, match=f"gpu = '{gpu}'.*h100-sxm"):
        read_cluster(sheet(tmp_path, text), root=ROOT)


def test_a_missing_domain_table_is_refused(tmp_path: Path) -> None:
    start, end = GOOD.index("[[domains]]"), GOOD.index("[sources]")
    with pytest.raises(ConfigError, match="domains = None"):
        read_cluster(sheet(tmp_path, GOOD[:start] + GOOD[end:]), root=ROOT)
    with pytest.raises(ConfigError, match=r"domains.ranks = \[0\]: two or three"):
        read_cluster(sheet(tmp_path, GOOD[:start] + GOOD[GOOD.rindex("[[domains]]") :]), root=ROOT)


HOST = "[host]\nlink_bandwidth = 31.5e9\nlinks = 2\nmemory_bandwidth = 2e11\n"


def test_the_host_is_read_and_its_links_shared(tmp_path: Path) -> None:
    sourced = GOOD.replace('"node" =', '"host" = "datasheet"\n"node" =')
    host = read_cluster(sheet(tmp_path, sourced.replace("[node]", HOST + "[node]")), root=ROOT).host
    assert host.memory_bandwidth == 2e11
    # Four GPUs on two links; where each has its own, they get all of it.
    assert host.link_per_gpu(4) == 31.5e9 / 2
    own = HOST.replace("links = 2\n", "")
    alone = read_cluster(sheet(tmp_path, sourced.replace("[node]", own + "[node]")), root=ROOT).host
    assert alone.link_per_gpu(4) == 31.5e9


def test_a_sheet_may_say_nothing_of_the_host_but_not_without_a_source(tmp_path: Path) -> None:
    assert read_cluster(sheet(tmp_path, GOOD), root=ROOT).host is None
    with pytest.raises(ConfigError, match="host"):
        read_cluster(sheet(tmp_path, GOOD.replace("[node]", HOST + "[node]")), root=ROOT)


@pytest.mark.parametrize(
    ("sheet", "flop_a_clock"),
    [("mi300x", 4 * 256 * 2), ("mi325x", 4 * 256 * 2), ("mi355x", 4 * 512 * 2), ("ascend-910b", 16**3 * 2)],
)
def test_other_makers_peaks_are_units_times_clock(sheet: str, flop_a_clock: int) -> None:
    """Matrix units alone: 4 cores of 256 or 512 multiply-adds a compute unit (AMD), one of 16 x 16 x 16 a
    core (Huawei).
    """
    gpu = read_cluster(sheet, root=ROOT).gpu
    assert gpu.peak_flops["bf16"] == pytest.approx(gpu.num_sms * flop_a_clock * gpu.boost_clock_hz, rel=1e-4)


NAMED = [
    (name, cluster.gpu.name)
    for cluster in (read_cluster(stem, root=ROOT) for stem in cluster_names(ROOT))
    for name in (cluster.name, cluster.gpu.name, *cluster.gpu.device_names)
]


@pytest.fixture(autouse=True, scope="module")
def each_sheet_is_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "read_cluster", cache(read_cluster))
        yield


def test_every_name_leads_to_its_gpu() -> None:
    for name, gpu in NAMED:
        for spelling in (name, name.upper(), f" {name} "):
            found = find_hardware_spec(spelling, root=ROOT)
            assert found.gpu.name == gpu, spelling


def test_of_several_sheets_the_one_with_the_table_answers() -> None:
    found = find_hardware_spec("H100-SXM-80GB", root=ROOT)
    assert found.gpu.device_names


def test_an_unknown_name_is_nobodys() -> None:
    assert find_hardware_spec("Cray-1", root=ROOT) is None
