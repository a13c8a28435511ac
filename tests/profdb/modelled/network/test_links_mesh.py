"""Meshes: one link between every two accelerators of a server, so that a group has only those to each other."""

from pathlib import Path

import pytest

from profdb.lookup.queries import CollectiveQuery
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.network.links import scale_up_rate
from profdb.modelled.network.shares import LONG_SHARE, OWN_CHUNK
from spec.arrays import ints
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
MESHED = ("mi300x", "mi355x", "ascend-910b")
# Bytes/s of one link, one way (vendors' data sheets: 128, 153.6 and 392 / 7 GB/s both ways), and what of it
# carries data
LINK = {"mi300x": (64e9, 0.75), "mi355x": (76.8e9, 0.625), "ascend-910b": (28e9, 0.75)}


@pytest.mark.parametrize("name", MESHED)
def test_a_group_has_the_links_between_its_members(name: str) -> None:
    """Two ranks one link, four three, all eight seven."""
    link, share = LINK[name]
    cluster = read_cluster(name, root=ROOT)
    rates = scale_up_rate(cluster, ints([2, 4, 8]))
    assert rates.tolist() == pytest.approx([1 * link * share, 3 * link * share, 7 * link * share])


def test_behind_a_switch_a_group_has_all_links() -> None:
    cluster = read_cluster("h100-sxm", root=ROOT)
    assert scale_up_rate(cluster, ints([2, 4, 8])).tolist() == pytest.approx([450e9 * 20.6 / 25] * 3)


def gathered_s(cluster: ClusterSpec, ranks: int) -> float:
    """Seconds of a long all-gather of 8 GiB over ``ranks`` of one server."""
    query = CollectiveQuery(
        collective=Collective.ALL_GATHER,
        size_bytes=ints([2**33]),
        intra=ints([ranks]),
        inter=ints([1]),
        siblings=ints([1]),
    )
    return float(ModelledCostModel(cluster=cluster).collective_s(query).seconds[0])


def test_long_gathers_take_the_bytes_over_the_group_s_links() -> None:
    """n - 1 parts from the others and a copy of one's own, over n - 1 links."""
    cluster, (link, share) = read_cluster("mi300x", root=ROOT), LINK["mi300x"]
    for ranks in (2, 4, 8):
        moved = 2.0**33 * (ranks - 1 + OWN_CHUNK) / ranks
        rate = (ranks - 1) * link * share * LONG_SHARE
        assert gathered_s(cluster, ranks) == pytest.approx(moved / rate, rel=0.01)


def test_only_the_first_domain_is_a_mesh(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "clusters" / "mi300x.toml").read_text(encoding="utf-8")
    path = tmp_path / "odd.toml"
    path.write_text(text.replace('link = "network"', 'link = "mesh"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="first domain alone"):
        read_cluster(str(path), root=ROOT)


def test_the_sheets_of_other_makers_reduce_nothing_in_the_network() -> None:
    for name in MESHED:
        assert not any(domain.in_network_reduction for domain in read_cluster(name, root=ROOT).domains)
