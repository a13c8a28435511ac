"""Layers on stages, and what a stage holds at its peak."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.recompute.layers import Recompute
from solver.pipeline.stages import layers_per_stage, modules_per_stage, stage_table
from solver.plans.plan_table import Plan, PlanTable
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT, small_model


@pytest.mark.published
def test_llama3_405b_on_16_stages_is_lighter_at_both_ends() -> None:
    """arXiv 2407.21783 sec. 3.3.2: 126 layers, the first and the last stage hold one less."""
    assert layers_per_stage(126, 16).tolist() == [7, *[8] * 14, 7]


@pytest.mark.parametrize(("layers", "dealt"), [(7, [2, 2, 2, 1]), (6, [1, 2, 2, 1]), (5, [1, 1, 2, 1])])
def test_the_stage_of_the_head_gives_up_a_layer_first(layers: int, dealt: list[int]) -> None:
    """One layer short is Megatron-LM's --account-for-loss-in-pipeline-split; then that of the embedding, then
    those behind it.
    """
    assert layers_per_stage(layers, 4).tolist() == dealt


@given(num_layers=st.integers(1, 200), pp=st.integers(1, 64))
def test_every_layer_is_on_one_stage(num_layers: int, pp: int) -> None:
    pp = min(pp, num_layers)
    layers = layers_per_stage(num_layers, pp)
    assert layers.sum() == num_layers
    assert layers.max() - layers.min() <= 1


def test_modules_dealt_evenly_take_layers_from_the_stages_with_edges() -> None:
    """60 layers on 16 stages: 63 modules are 15 fours and a three, which holds one layer, norm and head."""
    assert modules_per_stage(60, 16).tolist() == [3, *[4] * 14, 1]
    assert modules_per_stage(40, 2).tolist() == [21, 19]


def test_ends_count_as_a_layer_each() -> None:
    """torchtitan: 126 layers on 16 stages are 128 modules; of 82 on four two are over, which the first stages take."""
    assert modules_per_stage(126, 16, behind=1).tolist() == [7, *[8] * 14, 7]
    assert modules_per_stage(80, 4, behind=1).tolist() == [20, 21, 20, 19]
    table = stage_table(small_model(layers=8), PlanTable.of(plan(4)), deals="ends")
    assert np.repeat(table.layers[0], table.count).tolist() == [2, 3, 2, 1]


@given(num_layers=st.integers(1, 200), pp=st.integers(1, 64))
def test_every_dealt_layer_is_on_one_stage(num_layers: int, pp: int) -> None:
    layers = modules_per_stage(num_layers, min(pp, num_layers))
    assert layers.sum() == num_layers
    assert layers.min() >= 0


def test_a_preset_that_deals_edges_is_obeyed() -> None:
    table = stage_table(small_model(layers=9), PlanTable.of(plan(4)), deals="modules")
    assert np.repeat(table.layers[0], table.count).tolist() == [2, 3, 3, 1]


def plan(pp: int, num_micro: int = 8) -> Plan:
    return Plan(strategy="mtp", preset="megatron", pp=pp, num_micro=num_micro)


@given(layers=st.integers(1, 40), depths=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_stage_rows_hold_every_stage_layer_embedding_and_head_once(layers: int, depths: list[int]) -> None:
    depths = [min(depth, layers) for depth in depths]
    for depth in depths:
        table = stage_table(small_model(layers=layers), PlanTable.of(plan(depth)))
        assert table.count.sum() == depth
        assert (table.count * table.layers[0]).sum() == layers
        assert table.embedding.tolist().count(True) == 1
        assert table.head.tolist().count(True) == 1
        assert table.position[0] == 0


def test_dense_first_layers_stand_on_the_first_stages() -> None:
    """DeepSeek-V3: 3 dense layers, then experts, then the prediction block with the head."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    table = stage_table(model, PlanTable.of(plan(16, 32)))
    dense, experts, extra = (np.repeat(column, table.count) for column in table.layers)
    assert dense.tolist() == [3, *[0] * 15]
    assert experts.sum() == 58
    assert extra.tolist() == [*[0] * 15, 1]
    assert (dense + experts).tolist() == [*[4] * 15, 1]


@pytest.mark.parametrize(("stages", "last"), [(4, 13), (8, 5), (16, 1), (32, 0)])
def test_a_predicting_last_stage_is_spared_layers(stages: int, last: int) -> None:
    """Megatron-Bridge, deepseek_v3.py, layout_map, and its Et|(tt|)*30mL for 32."""
    layers = layers_per_stage(61, stages, predicts=True)
    assert layers.sum() == 61
    assert layers[-1] == last
    assert layers[0] == (1 if stages == 32 else layers[1])


def test_the_first_layers_of_each_chunk_are_recomputed() -> None:
    """Recompute.BLOCK: as many layers of every chunk as asked, by block kind in model order."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    asked = replace(plan(16, 32), recompute=Recompute.BLOCK, num_recompute_layers=2)
    table = stage_table(model, PlanTable.of(asked))
    dense, experts, extra, dense_rest, experts_rest, extra_rest = (
        np.repeat(column, table.count) for column in table.layers
    )
    assert dense.tolist() == [2, *[0] * 15]
    assert dense_rest.tolist() == [1, *[0] * 15]
    assert (experts + extra)[1:].tolist() == [2] * 15
    assert (dense + experts + extra + dense_rest + experts_rest + extra_rest).sum() == 62
    chunked = replace(asked, pp=2, vpp=4, num_recompute_layers=1)
    assert stage_table(small_model(), PlanTable.of(chunked)).layers[0].tolist() == [4, 4]


def test_layers_to_recompute_are_the_first_of_a_chunk_whatever_their_kind() -> None:
    """Three of one layer of the first kind and seven of the second: 1 and 2, then 0 and 5."""
    model = small_model(layers=8)
    first = model.blocks[0]
    model = replace(model, blocks=(replace(first, count=1), replace(first, count=7)))
    plan = Plan(strategy="mtp", preset="megatron", recompute=Recompute.BLOCK, num_recompute_layers=3)
    assert [int(kind[0]) for kind in stage_table(model, PlanTable.of(plan)).layers] == [1, 2, 0, 5]
