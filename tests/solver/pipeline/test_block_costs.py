"""Stages cut by what blocks cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.pipeline.block_costs import block_cost, stages_by_cost
from solver.pipeline.stages import stage_table
from solver.plans.plan_table import Plan, PlanTable
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec


def model(layers: int, hidden: int, ffn: int, vocab: int) -> ModelSpec:
    attention = AttentionSpec(
        kind=AttentionKind.MHA, num_heads=32, num_kv_heads=32, qk_dim=hidden // 32, v_dim=hidden // 32
    )
    block = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=ffn, gated=True))
    return ModelSpec(
        name="m", hidden=hidden, vocab=vocab, blocks=(BlockRun(block=block, count=layers),), source=""
    )


SMALL = model(16, 2048, 8192, 131072)  # its head costs as much as four layers: 20 units
LARGE = model(32, 4096, 14336, 131072)  # 2.2069 layers


@pytest.mark.parametrize(
    ("one", "pp", "layers", "head"),
    [
        (SMALL, 2, [11, 5], 1),  # past 10 of 20 units
        (SMALL, 4, [6, 5, 5, 0], 3),  # past 5, 10 and 15
        (SMALL, 8, [3, 3, 2, 3, 2, 3, 0, 0], 6),  # past 2.5, 5, ...; the head passes 17.5
        (LARGE, 4, [9, 9, 8, 6], 3),  # past 8.55, 17.1, 25.66
        (LARGE, 16, [3, *[2] * 6, 3, *[2] * 6, 2, 0], 14),
    ],
)
def test_stages_end_behind_the_block_that_passes_their_share(
    one: ModelSpec, pp: int, layers: list[int], head: int
) -> None:
    """nanotron models/base.py, build_model, by hand."""
    dealt = stages_by_cost(one, pp)
    assert (list(dealt.layers), dealt.head_stage) == (layers, head)


def test_a_sum_equal_to_the_share_does_not_end_a_stage() -> None:
    """31 of LARGE's layers cost 29/32 of it, to the element."""
    assert stages_by_cost(LARGE, 32).layers == (2, *[1] * 13, 2, *[1] * 13, 2, 0, 0, 0)


@given(layers=st.integers(1, 60), pp=st.integers(1, 32))
def test_every_layer_and_the_head_are_on_one_stage(layers: int, pp: int) -> None:
    dealt = stages_by_cost(model(layers, 256, 512, 4096), pp)
    assert sum(dealt.layers) == layers
    assert not any(dealt.layers[dealt.head_stage + 1 :])
    table = stage_table(
        model(layers, 256, 512, 4096),
        PlanTable.of(Plan(strategy="mtp", preset="nanotron", pp=pp, num_micro=64)),
        deals="costs",
    )
    assert np.repeat(table.head, table.count).tolist().index(True) == dealt.head_stage


def test_few_key_heads_cost_as_many_as_the_queries() -> None:
    """get_block_compute_costs counts 4 n d h whatever num_key_value_heads."""
    block = SMALL.blocks[0].block
    assert isinstance(block.mixer, AttentionSpec)
    grouped = replace(block, mixer=replace(block.mixer, kind=AttentionKind.GQA, num_kv_heads=8))
    assert block_cost(grouped, 2048) == block_cost(block, 2048) == 4 * 2048**2 + 3 * 8192 * 2048


def test_a_block_without_a_half_costs_the_other_alone() -> None:
    """4 n d h of attention, 3 f h of a gated network (nanotron, get_block_compute_costs)."""
    whole = SMALL.blocks[0].block
    assert block_cost(whole, 2048) == 4 * 2048**2 + 3 * 8192 * 2048
    assert block_cost(replace(whole, mlp=None), 2048) == 4 * 2048**2
    assert block_cost(replace(whole, mixer=None), 2048) == 3 * 8192 * 2048
