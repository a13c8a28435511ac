"""``NAME:key=value``: what a machine has otherwise than its hardware spec, and what follows from the GPUs of its node."""

from pathlib import Path

import pytest

from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def cluster(text: str) -> ClusterSpec:
    return read_cluster(text, root=ROOT)


def test_four_gpus_of_eight_keep_their_links_and_their_part_of_the_rest() -> None:
    eight, four = cluster("a100-sxm-80g"), cluster("a100:node.gpus=4")
    assert (four.gpus_per_node, four.nics_per_node, four.domains[0].ranks) == (4, 4, 4)
    assert [domain.bandwidth for domain in four.domains] == [domain.bandwidth for domain in eight.domains]
    assert eight.host
    assert four.host
    assert four.host.link_per_gpu(4) == eight.host.link_per_gpu(8)
    assert four.host.memory_bandwidth == eight.host.memory_bandwidth
    # The name is a spec as well, as reports and profiles keep it.
    assert cluster(four.name) == four


@pytest.mark.parametrize(
    ("text", "ranks", "bandwidth"),
    [
        # the link of 22 GB/s between two processors, of two GPUs each now
        ("l40s:node.gpus=4", [2, 4, 0], [32e9, 11e9, 25e9]),
        # one GPU has a whole NIC of 400 Gb/s, and nothing to cross
        ("l40s:node.gpus=1", [1, 0], [32e9, 50e9]),
        # three of seven links of a mesh; four of six of the cube mesh
        ("mi300x:node.gpus=4", [4, 0], [3 * 64e9, 50e9]),
        ("dgx1-v100:node.gpus=4", [4, 0], [100e9, 6.25e9]),
        # a bridge joins two cards in any server
        ("h100-nvl:node.gpus=4", [2, 4, 0], [300e9, 11e9, 25e9]),
        ("h100-nvl:node.gpus=2", [2, 0], [300e9, 25e9]),
        # an NVLink domain of many nodes stays
        ("gb200-nvl72:node.gpus=2", [72, 0], [900e9, 50e9]),
        # eight NICs of 200 Gb/s for four GPUs; what is stated stays
        ("a100:node.gpus=4:node.nics=8", [4, 0], [300e9, 50e9]),
        ("a100:domains.infiniband.bandwidth=12.5e9:node.gpus=4", [4, 0], [300e9, 12.5e9]),
    ],
)
def test_domains_follow_the_gpus_of_a_node(text: str, ranks: list[int], bandwidth: list[float]) -> None:
    domains = cluster(text).domains
    assert [domain.ranks for domain in domains] == ranks
    assert [domain.bandwidth for domain in domains] == pytest.approx(bandwidth)


def test_links_of_the_gpus_that_are_left() -> None:
    domain = cluster("dgx1-v100:node.gpus=4").domains[0]
    assert domain.pair_links == ("0 1 1 2", "1 0 2 1", "1 2 0 2", "2 1 2 0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h100-sxm:nodes.gpus=4", "nodes.gpus"),
        ("h100-sxm:node.gpu=4", "unknown key"),
        ("h100-sxm:node.gpus=four", "whole number"),
        ("h100-sxm:domains.nvlink.bandwidth=900", "1e\\+06"),
        ("alps:gpu.memory_bytes=1e9", "gpu.memory_bytes"),
        ("l40s:node.gpus=3", "whole domains"),
        ("gb200-nvl72:node.gpus=7", "multiple or a divisor"),
        ("dgx1-v100:node.gpus=16", "whole domains"),
    ],
)
def test_changes_that_cannot_be_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        cluster(text)
    assert "\n" not in str(refused.value)
    assert text in str(refused.value)
