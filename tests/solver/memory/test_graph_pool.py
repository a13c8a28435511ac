"""What CUDA graphs keep from what runs outside them, written out."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.layout import Layout
from ops.strategies import STRATEGIES
from solver.estimate import estimate_memory
from solver.memory.graph_pool import pool_bytes
from solver.memory.memory_cost import MemoryCost
from solver.plans.plan_table import Plan, PlanTable
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from tests.ops.layouts import job
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import question, small_model

TOKENS, HIDDEN, HEADS, KV_HEADS, HEAD = 256, 512, 8, 4, 64
A = 2.0 * TOKENS * HIDDEN
ATTENTION = 2.0 * TOKENS * (HEADS + KV_HEADS) * 2 * HEAD
MUCH, LITTLE = np.array([1e12]), np.array([5.0])


def pool(*scopes: str, model: ModelSpec = EXPERTS, passing: np.ndarray = MUCH, tp: int = 1) -> float:
    sharding = STRATEGIES["fsp"]
    asked = replace(job(seq_len=TOKENS), cuda_graphs=frozenset(scopes))
    context = LayerContext(sharding=sharding, model=model, job=asked, layout=Layout.of(tp, tp=tp))
    return float(pool_bytes(context, sharding, passing, np.array([7.0]))[0])


@pytest.mark.parametrize("tp", [1, 2])
def test_graphs_of_parts_hold_their_gradients_apart(tp: int) -> None:
    """Transformer Engine's static gradients of output and input; queries, keys, values and the kernel's
    output; the router's.
    """
    assert pool("attn", tp=tp, model=small_model()) == (2 * A + ATTENTION) / tp
    assert pool("moe_router", "moe_preprocess", tp=tp) == 3 * A / tp
    assert pool("attn", "moe_router", tp=tp) == pool("attn", tp=tp) + A / tp
    assert pool("moe_router", model=small_model()) == 2 * A


def test_no_more_is_apart_than_there_is_beside() -> None:
    assert pool("attn", passing=LITTLE) == LITTLE[0]
    assert pool(passing=LITTLE) == 0.0


@pytest.mark.parametrize(("seq_len", "finds_room"), [(1024, True), (16, False)])
def test_a_graph_of_the_iteration_leaves_the_step_no_room(seq_len: int, finds_room: bool) -> None:
    assert pool("full_iteration") == 7.0

    def memory(*scopes: str) -> MemoryCost:
        asked = question(
            world_size=2, sequences=16, seq_len=seq_len, preset=framework_preset("megatron-bridge")
        )
        asked_job = replace(asked.job, cuda_graphs=frozenset(scopes), expandable_segments=True)
        plan = Plan(strategy="mtp", preset="megatron-bridge", dp=2, zero_stage=1, zero_size=2, num_micro=8)
        return estimate_memory(asked.model, asked_job, PlanTable.of(plan), asked.cluster).memory

    graph, eager = memory("full_iteration"), memory()
    # The largest buffer of the step's end: fp32 gradients of the shard, or the embedding's 16-bit one.
    elements = graph.optimizer_bytes[0] / 12
    largest = max(4 * elements, 2 * HIDDEN * 4096)
    assert bool(eager.step_bytes[0] == 0.0) is finds_room
    assert graph.needed_bytes[0] - eager.needed_bytes[0] == pytest.approx(largest - eager.step_bytes[0])
    assert graph.allocated_bytes[0] == eager.allocated_bytes[0]
