"""What NCCL and the driver keep of a device, counted by hand."""

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Axis
from solver.estimate import estimate_memory
from solver.memory.device_memory import (
    LOCAL_CONNECTION_BYTES,
    NETWORK_CONNECTION_BYTES,
    communicator_bytes,
    usable_bytes,
)
from solver.plans.plan_table import Plan, PlanTable
from spec.frameworks import framework_preset
from spec.units import GIB, MIB
from tests.solver.questions import cluster, question

# 24 channels, in each a ring and a tree's way up and down.
INSIDE = 3 * 24 * 12 * MIB


def test_a_hundredth_of_the_capacity_is_the_drivers() -> None:
    assert usable_bytes(cluster(memory_gib=100.0)) == pytest.approx(99.0 * GIB)


@pytest.mark.parametrize(
    ("degrees", "groups"),
    [
        ({}, 1),  # the gradients' group is that of the world
        ({"tp": 8}, 1),
        ({"tp": 2}, 3),  # tp, dp and the world
        ({"tp": 2, "pp": 2}, 4),
        ({"ep": 8}, 1),  # one copy of an expert: no gradients to reduce
        ({"ep": 4}, 3),  # ep, the world, and two copies of each expert
        ({"tp": 2, "ep": 2, "etp": 2}, 5),  # tp (also etp), ep, dp, the world, and two copies of each expert
        ({"wp": 2}, 3),  # isp: weights, those of other weights, and the world
    ],
)
def test_a_rank_has_a_communicator_for_every_group_of_its_own(degrees: dict[str, int], groups: int) -> None:
    held = communicator_bytes(Layout.of(8, **degrees), cluster())
    assert held.tolist() == [groups * INSIDE]


def test_between_nodes_two_of_a_nodes_ranks_talk_to_the_network() -> None:
    """16 ranks on two nodes: 16 channels, of whose 8 ranks in a node two use the network: 20 MiB (LL, LL128
    and Simple on both ends) instead of 12."""
    each = 2 / 8 * NETWORK_CONNECTION_BYTES + 6 / 8 * LOCAL_CONNECTION_BYTES
    assert communicator_bytes(Layout.of(16), cluster()).tolist() == [3 * 16 * each]
    assert (NETWORK_CONNECTION_BYTES, LOCAL_CONNECTION_BYTES) == (20 * MIB, 12 * MIB)


def test_exchanging_ranks_are_connected_with_all_others() -> None:
    """32 channels to each of seven; two over the network, and its pools."""
    layout = Layout.of(16, ep=np.array([8, 16]))
    plain = communicator_bytes(layout, cluster())
    more = communicator_bytes(layout, cluster(), exchanging=frozenset({Axis.EP})) - plain
    pools = 2 * 32 * 16 * 128 * 1024
    assert more.tolist() == [32 * 7 * 12 * MIB, 2 * 7 * 12 * MIB + pools]


def test_a_device_shows_a_context_beside_what_is_reserved() -> None:
    """Hugging Face Transformers documentation, "Model training anatomy": 1343 MB used by a process with one tensor."""
    asked = question(world_size=8, sequences=16, preset=framework_preset("megatron"))
    plan = PlanTable.of(Plan(strategy="mtp", preset="megatron", dp=8, num_micro=2))
    held = estimate_memory(asked.model, asked.job, plan, asked.cluster).memory
    beside = held.device_bytes - held.reserved_bytes - held.nccl_bytes
    assert beside == pytest.approx(1343 * MIB)
    assert held.nccl_bytes[0] >= INSIDE
