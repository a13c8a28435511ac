"""What a layer's backward holds for a moment, written out."""

from dataclasses import replace

import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters
from ops.layout import Layout
from ops.strategies import STRATEGIES
from solver.layers import LayerBytes
from solver.memory.layer_backward import widest_bytes, working_bytes
from spec.arrays import floats, ints
from spec.model import ModelSpec
from tests.ops.layouts import job
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import small_model

SEQ, HIDDEN, WIDTH, TOPK = 256, 512, 512, 2
ROWS = SEQ * TOPK


def held(model: ModelSpec, narrow: str = "", dispatcher: str = "hybridep", **degrees: int) -> float:
    asked = replace(job(seq_len=SEQ), moe_dispatcher=dispatcher)
    if narrow:
        asked = replace(asked, precision=replace(asked.precision, linear="fp8", scale_recipe=narrow))
    return float(widest_bytes(LayerContext(model=model, job=asked, layout=Layout.of(8, **degrees)))[0])


def of_layer(elements: int) -> LayerBytes:
    none = floats(0.0)
    whole = RankParameters(dense=ints(elements), weight=ints(0), expert=ints(0))
    frozen = RankParameters(dense=ints(0), weight=ints(0), expert=ints(0))
    return LayerBytes(
        saved_bytes=none,
        transient_bytes=none,
        cached_bytes=none,
        copied=none,
        host_bytes=none,
        logits=none,
        shapes=none,
        parameters=whole,
        frozen=frozen,
    )


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
    kinds = [of_layer(elements) for elements in (1000, 3000, 9000, 9000)]
    sharding = STRATEGIES[strategy]
    asked = job(seq_len=SEQ)
    context = LayerContext(sharding=sharding, model=small_model(), job=asked, layout=Layout.of(8, **degrees))
    found = float(working_bytes(context, sharding, kinds, ints(0))[0])
    motion = 2 * 2 * SEQ * HIDDEN
    assert found == motion + float(widest_bytes(context)[0]) + whole * 3000 * 4


def wide_experts(width: int) -> ModelSpec:
    (run,) = EXPERTS.blocks
    assert run.block.moe is not None
    moe = replace(run.block.moe, expert_ffn_hidden=width)
    return replace(EXPERTS, blocks=(replace(run, block=replace(run.block, moe=moe)),))


def test_experts_hold_gradients_of_their_result_and_of_what_it_was_made_of() -> None:
    """Routed rows of 2 bytes: h + f at the second product; experts wider than their input hold more later, 2 f."""
    assert held(EXPERTS, ep=8) == 2 * ROWS * (HIDDEN + WIDTH)
    assert held(wide_experts(4 * HIDDEN), ep=8) == 2 * ROWS * 2 * 4 * HIDDEN
    assert held(wide_experts(WIDTH // 2), ep=8) == 2 * ROWS * (HIDDEN + WIDTH // 2)


def test_rows_that_are_sorted_by_expert_stand_in_both_orders() -> None:
    """Megatron-LM's all-to-all dispatcher, where a rank has several experts and shares them; else h + f."""
    narrow = wide_experts(WIDTH // 4)
    assert held(narrow, dispatcher="all_to_all", ep=4) == 2 * ROWS * 2 * HIDDEN
    for ep in (1, 8):
        assert held(narrow, dispatcher="all_to_all", ep=ep) == 2 * ROWS * (HIDDEN + WIDTH // 4)


@pytest.mark.parametrize("ep", [1, 2])
def test_parts_of_experts_are_sorted_too(ep: int) -> None:
    """Rows come from the other ranks of etp, whoever is beside them in ep."""
    assert (
        held(wide_experts(WIDTH // 4), dispatcher="all_to_all", tp=2, etp=2, ep=ep) == 2 * ROWS * 2 * HIDDEN
    )


def test_ungated_ones_hold_one_gradient_where_gated_ones_hold_two() -> None:
    """And one more of the result where an adapter beside another product lets go of it."""
    (run,) = small_model().blocks
    assert run.block.mlp is not None
    plain = replace(
        small_model(),
        blocks=(replace(run, block=replace(run.block, mlp=replace(run.block.mlp, gated=False))),),
    )
    assert held(small_model()) == 2 * held(plain) == 2 * 2 * SEQ * 4 * HIDDEN
    (run,) = wide_experts(4 * HIDDEN).blocks
    assert run.block.moe is not None
    moe = replace(run.block.moe, gated=False)
    ungated = replace(EXPERTS, blocks=(replace(run, block=replace(run.block, moe=moe)),))
    assert held(ungated, ep=8) == 2 * ROWS * (HIDDEN + 4 * HIDDEN)
    context = LayerContext(
        model=small_model(), job=replace(job(seq_len=SEQ), adapter_rank=8), layout=Layout.of(8)
    )
    beside, itself = (
        replace(context, job=replace(context.job, adapted=frozenset({name}))) for name in ("out", "down")
    )
    assert widest_bytes(beside)[0] == 1.5 * widest_bytes(itself)[0] == 3 * 2 * SEQ * 4 * HIDDEN


def test_experts_cut_over_etp_hold_all_ranks_rows_of_their_part() -> None:
    assert held(EXPERTS, tp=2, etp=2, ep=4) == 2 * ROWS * (HIDDEN + WIDTH / 2)


@pytest.mark.parametrize("narrow", ["mx", "block"])
def test_products_that_read_narrow_gradients_have_two_copies_of_them(narrow: str) -> None:
    """MXFP8 and blocks: a byte an element along rows, and one along columns."""
    fine = wide_experts(WIDTH // 4)
    assert held(fine, narrow, ep=8) - held(fine, ep=8) == 2 * ROWS * HIDDEN
    assert held(EXPERTS, narrow, ep=8) == (2 + 2) * ROWS * 2 * WIDTH
    dense = small_model()
    assert held(dense, narrow) - held(dense) == 2 * SEQ * 2 * 4 * HIDDEN
    assert held(dense) == 2 * SEQ * 2 * 4 * HIDDEN
    assert held(dense, tp=2) == held(dense) / 2
    assert held(dense, narrow, tp=2) == held(dense, narrow) / 2
