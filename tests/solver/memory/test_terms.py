"""What a layer's backward holds for a moment, written out."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters
from ops.layout import Layout
from ops.strategies import STRATEGIES
from solver.estimate import estimate_memory
from solver.memory.peak import (
    layer_backward_bytes,
    pool_bytes,
    segment_bytes,
    slice_bytes,
    slice_segment_bytes,
    step_buffers,
    widest_bytes,
)
from solver.memory.stage import gathered_weights_bytes
from solver.memory.terms import MemoryEstimate
from solver.plans.layers import BYTES, LayerBytes
from solver.plans.plan_table import Plan, PlanTable
from spec.arrays import floats, ints
from spec.dtypes import dtype_bytes
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from tests.ops.layouts import job
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import question, small_model, with_part

SEQ, HIDDEN, WIDTH, TOPK = 256, 512, 512, 2
ROWS = SEQ * TOPK


def elements(dense: int, low_precision: int = 0) -> RankParameters:
    """All of a rank's elements under one owner."""
    none = ints(0)
    read = RankParameters(dense=ints(low_precision), weight=none, expert=none)
    return RankParameters(dense=ints(dense), weight=none, expert=none, low_precision=read)


def piece(trained: int, low_precision: int = 0, frozen: RankParameters | None = None) -> LayerBytes:
    columns = {name: np.zeros(1) for name in BYTES}
    return LayerBytes(parameters=elements(trained, low_precision), frozen=frozen or elements(0), **columns)


def widest(model: ModelSpec, low_precision: str = "", dispatcher: str = "hybridep", **degrees: int) -> float:
    asked = replace(job(seq_len=SEQ), moe_dispatcher=dispatcher)
    if low_precision:
        asked = replace(asked, precision=replace(asked.precision, linear="fp8", scale_recipe=low_precision))
    return float(widest_bytes(LayerContext(model=model, job=asked, layout=Layout.of(8, **degrees)))[0])


@pytest.mark.parametrize(
    ("strategy", "degrees", "whole"),
    [
        ("mtp", {"zero_stage": 0}, 0),
        ("mtp", {"zero_stage": 1, "zero_size": 8}, 0),
        ("mtp", {"zero_stage": 2, "zero_size": 8}, 1),
        ("mtp", {"zero_stage": 3, "zero_size": 8}, 1),
        ("isp", {"wp": 1}, 0),
        ("isp", {"wp": 2}, 2),  # a rank holds half of a layer, and its gradient is whole
    ],
)
def test_the_whole_gradient_of_the_largest_layer_stands_before_it_is_reduced(
    strategy: str, degrees: dict[str, int], whole: int
) -> None:
    """Of two kinds of layers, embedding and head: in fp32, as gradients travel; beside it the layer's output
    and its gradient, and what is widest."""
    kinds = [piece(size) for size in (1000, 3000, 9000, 9000)]
    sharding = STRATEGIES[strategy]
    asked = job(seq_len=SEQ)
    context = LayerContext(sharding=sharding, model=small_model(), job=asked, layout=Layout.of(8, **degrees))
    found = float(layer_backward_bytes(context, kinds, ints(0))[0])
    motion = 2 * 2 * SEQ * HIDDEN
    assert found == motion + float(widest_bytes(context)[0]) + whole * 3000 * 4


def experts_of_width(width: int) -> ModelSpec:
    return with_part(EXPERTS, "moe", expert_ffn_hidden=width)


def test_experts_hold_gradients_of_their_result_and_of_what_it_was_made_of() -> None:
    """Routed rows of 2 bytes: h + f at the second product; experts wider than their input hold more later, 2 f."""
    assert widest(EXPERTS, ep=8) == 2 * ROWS * (HIDDEN + WIDTH)
    assert widest(experts_of_width(4 * HIDDEN), ep=8) == 2 * ROWS * 2 * 4 * HIDDEN
    assert widest(experts_of_width(WIDTH // 2), ep=8) == 2 * ROWS * (HIDDEN + WIDTH // 2)


def test_rows_that_are_sorted_by_expert_stand_in_both_orders() -> None:
    """Megatron-LM's all-to-all dispatcher, where a rank has several experts and shares them; else h + f."""
    slim = experts_of_width(WIDTH // 4)
    assert widest(slim, dispatcher="all_to_all", ep=4) == 2 * ROWS * 2 * HIDDEN
    for ep in (1, 8):
        assert widest(slim, dispatcher="all_to_all", ep=ep) == 2 * ROWS * (HIDDEN + WIDTH // 4)


@pytest.mark.parametrize("ep", [1, 2])
def test_parts_of_experts_are_sorted_too(ep: int) -> None:
    """Rows come from the other ranks of etp, whoever is beside them in ep."""
    assert widest(experts_of_width(WIDTH // 4), dispatcher="all_to_all", tp=2, etp=2, ep=ep) == 2 * ROWS * 2 * HIDDEN


def test_ungated_ones_hold_one_gradient_where_gated_ones_hold_two() -> None:
    """And one more of the result where an adapter beside another product lets go of it."""
    plain = with_part(small_model(), "mlp", gated=False)
    assert widest(small_model()) == 2 * widest(plain) == 2 * 2 * SEQ * 4 * HIDDEN
    ungated = with_part(experts_of_width(4 * HIDDEN), "moe", gated=False)
    assert widest(ungated, ep=8) == 2 * ROWS * (HIDDEN + 4 * HIDDEN)
    context = LayerContext(model=small_model(), job=replace(job(seq_len=SEQ), adapter_rank=8), layout=Layout.of(8))
    beside, itself = (replace(context, job=replace(context.job, adapted=frozenset({name}))) for name in ("out", "down"))
    assert widest_bytes(beside)[0] == 1.5 * widest_bytes(itself)[0] == 3 * 2 * SEQ * 4 * HIDDEN


def test_experts_cut_over_etp_hold_all_ranks_rows_of_their_part() -> None:
    assert widest(EXPERTS, tp=2, etp=2, ep=4) == 2 * ROWS * (HIDDEN + WIDTH / 2)


@pytest.mark.parametrize("low_precision", ["mx", "block"])
def test_products_that_read_low_precision_gradients_have_two_copies_of_them(low_precision: str) -> None:
    """MXFP8 and blocks: a byte an element along rows, and one along columns."""
    fine = experts_of_width(WIDTH // 4)
    assert widest(fine, low_precision, ep=8) - widest(fine, ep=8) == 2 * ROWS * HIDDEN
    assert widest(EXPERTS, low_precision, ep=8) == (2 + 2) * ROWS * 2 * WIDTH
    dense = small_model()
    assert widest(dense, low_precision) - widest(dense) == 2 * SEQ * 2 * 4 * HIDDEN
    assert widest(dense) == 2 * SEQ * 2 * 4 * HIDDEN
    assert widest(dense, tp=2) == widest(dense) / 2
    assert widest(dense, low_precision, tp=2) == widest(dense, low_precision) / 2


# What CUDA graphs keep from what runs outside them, written out.

TOKENS, HEADS, KV_HEADS, HEAD = 256, 8, 4, 64
A = 2.0 * TOKENS * HIDDEN
ATTENTION = 2.0 * TOKENS * (HEADS + KV_HEADS) * 2 * HEAD
MUCH, LITTLE = np.array([1e12]), np.array([5.0])


def pool(*scopes: str, model: ModelSpec = EXPERTS, passing: np.ndarray = MUCH, tp: int = 1) -> float:
    sharding = STRATEGIES["fsp"]
    asked = replace(job(seq_len=TOKENS), cuda_graphs=frozenset(scopes))
    context = LayerContext(sharding=sharding, model=model, job=asked, layout=Layout.of(tp, tp=tp))
    return float(pool_bytes(context, passing, np.array([7.0]))[0])


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


@pytest.mark.parametrize(("seq_len", "finds_room"), [(1024, True), (16, False)])
def test_a_graph_of_the_iteration_leaves_the_step_no_room(seq_len: int, finds_room: bool) -> None:
    assert pool("full_iteration") == 7.0

    def memory(*scopes: str) -> MemoryEstimate:
        asked = question(world_size=2, sequences=16, seq_len=seq_len, preset=framework_preset("megatron-bridge"))
        job_request = replace(asked.job, cuda_graphs=frozenset(scopes), expandable_segments=True)
        plan = Plan(strategy="mtp", preset="megatron-bridge", dp=2, zero_stage=1, zero_size=2, num_micro=8)
        return estimate_memory(asked.model, job_request, PlanTable.of(plan), asked.cluster).memory

    graph, eager = memory("full_iteration"), memory()
    # The largest buffer of the step's end: fp32 gradients of the shard, or the embedding's 16-bit one.
    elements = graph.optimizer_bytes[0] / 12
    largest = max(4 * elements, 2 * HIDDEN * 4096)
    assert bool(eager.step_bytes[0] == 0.0) is finds_room
    assert graph.needed_bytes[0] - eager.needed_bytes[0] == pytest.approx(largest - eager.step_bytes[0])
    assert graph.allocated_bytes[0] == eager.allocated_bytes[0]


# Buffers of the step's end, in bytes counted by hand.

ELEMENTS = 1000


def test_the_embeddings_gradient_is_whole_before_it_is_added() -> None:
    """16 bits an element."""
    context = LayerContext(model=small_model(), job=job(world_size=8), layout=Layout.of(8))
    assert step_buffers(context, elements(ELEMENTS), ints([300]), ints([ELEMENTS]))[0].tolist() == [2 * 300]


def test_slices_return_through_a_copy_of_the_parameters_where_an_optimizer_is_sharded() -> None:
    """nanotron under ZeRO-1 alone."""
    layout = Layout.of(8, zero_size=np.array([1, 2, 8]), zero_stage=np.array([1, 1, 0]))
    asked = job(world_size=8, preset=framework_preset("nanotron"))
    found = slice_bytes(LayerContext(model=small_model(), job=asked, layout=layout), elements(ELEMENTS))
    assert found.tolist() == [0.0, ELEMENTS * dtype_bytes(asked.precision.parameter_gather), 0.0]


def test_a_buffer_finds_room_where_a_tensor_as_large_was() -> None:
    largest = floats([10.0])
    assert segment_bytes((floats([10.0]), floats([11.0]), floats([12.0])), largest).tolist() == [23.0]


@pytest.mark.parametrize(
    ("slices", "widest", "expected"),
    [
        (10.0, 0.0, 0.0),  # whole where the largest tensor was, its four pieces too
        (12.0, 0.0, 12.0),  # the whole one alone is larger
        (48.0, 0.0, 96.0),  # its pieces of 12 as well
        (48.0, 12.0, 48.0),  # which activations left room for
    ],
)
def test_pieces_for_each_rank_find_room_where_the_whole_does_not(slices: float, widest: float, expected: float) -> None:
    found = slice_segment_bytes(floats([slices]), ints([4]), floats([10.0]), floats([widest]))
    assert found.tolist() == [expected]


# Weights that are gathered for a moment, counted from elements by hand.

RANKS = 8


def gathered(zero_stage: int = 3, layers: int = 4, head: int = 500, live: int = 0, **precision: object) -> float:
    """Layers of 1,000 trained elements, 800 of them read by products of 8 bits, and 200 frozen, 100 of them; an
    embedding of 300.
    """
    asked = job(world_size=RANKS, preset=framework_preset("deepspeed").changed({"data_parallel.live_elements": live}))
    asked = replace(asked, precision=replace(asked.precision, **precision))
    layout = Layout.of(RANKS, zero_stage=zero_stage, zero_size=RANKS)
    context = LayerContext(model=small_model(), job=asked, layout=layout)
    kinds = [piece(1000, 800, frozen=elements(200, 100)), piece(300), piece(head)]
    return float(gathered_weights_bytes(context, kinds, ints(0), (ints(layers), ints(1), ints(1)))[0])


def test_two_layers_are_gathered_or_the_head_where_that_is_more() -> None:
    """The one in use and the one that comes, two bytes an element."""
    assert gathered() == 2 * 2 * 1200
    assert gathered(head=5000) == 2 * 5000
    assert gathered(layers=0) == 2 * 500
    assert gathered(zero_stage=0) == gathered(zero_stage=2) == 0.0


def test_of_ends_that_are_units_of_their_own_one_is_gathered_beside_the_layers() -> None:
    """An embedding of 300 and a head of 500, beside two layers of 1,200; weights that both share stay in the
    outermost unit.
    """
    for separate, tied, ends in ((False, False, 800), (True, False, 500), (True, True, 800)):
        preset = framework_preset("fsdp").changed({"data_parallel.separate_ends": separate})
        model = replace(small_model(), tied_embeddings=tied)
        layout = Layout.of(RANKS, zero_stage=3, zero_size=RANKS)
        context = LayerContext(model=model, job=job(world_size=RANKS, preset=preset), layout=layout)
        kinds = [piece(size) for size in (1200, 300, 500)]
        told = gathered_weights_bytes(context, kinds, ints(0), (ints(4), ints(1), ints(1)))
        assert told[0] == 2 * (2 * 1200 + ends)


def test_deepspeed_fetches_ahead_until_its_limit_of_live_parameters() -> None:
    """stage3_max_live_parameters; four layers of 1,200 elements, an embedding of 300 and a head of 500."""
    assert gathered(live=3000) == 2 * 3000
    assert gathered(live=10**9) == 2 * (4 * 1200 + 300 + 500)
    assert gathered(live=3000, head=5000) == 2 * 5000
    assert gathered(live=3000, zero_stage=2) == 0.0
    assert (
        framework_preset("deepspeed").data_parallel.live_elements
        == framework_preset("xtuner").data_parallel.live_elements
        == 10**9
    )


@pytest.mark.parametrize(("low_precision_parameters", "layer"), [(False, 1200 - 900 / 2), (True, 1200)])
def test_what_low_precision_products_read_is_gathered_in_a_byte(low_precision_parameters: bool, layer: float) -> None:
    """900 of 1,200 elements; where they exist in low precision alone both orders are gathered, two bytes together."""
    told = gathered(linear="fp8", parameter_gather="fp8", low_precision_parameters=low_precision_parameters)
    assert told == 2 * 2 * layer
