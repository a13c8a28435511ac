"""Other partitions of layers over stages, where a framework takes layouts: held against all layouts there are."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.api import ask
from solver.candidates.layer_partition import _by_cost, _fewer_at_ends, span_s
from solver.pipeline.stages import pipeline_partition
from solver.plans.plan_table import PlanTable
from solver.plans.space import full_space
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.search import search
from spec.frameworks import FrameworkPreset, framework_preset
from spec.model import ModelSpec
from spec.pipeline_layout import layout_text, parse_pipeline_layout, short_layout
from spec.settings.constraints import constraints_of
from tests.solver.questions import question, small_model

MEGATRON = framework_preset("megatron")


def heavy_head(layers: int) -> ModelSpec:
    """A vocabulary whose head takes about as long as two layers."""
    return replace(small_model(layers=layers), vocab=24 * 1024)


def staged(layers: int, preset: FrameworkPreset = MEGATRON) -> Problem:
    """On four GPUs."""
    return question(model=heavy_head(layers), world_size=4, sequences=16, preset=preset)


def asked_for(asked: Problem, vpp: int) -> tuple[PlanTable, float]:
    """The best plan of four stages, and its step."""
    said = {"fix": {"tp": 1, "pp": 4, "vpp": vpp, "micro_batch": 1, "recompute": "none"}}
    space = full_space(asked.model, asked.job, constraints_of(said))
    best = search(asked, space, top_k=1).best[0]
    return PlanTable.of(best.plan), best.step_s


def every_layout(layers: int, stages: int) -> list[str]:
    """All layouts with a layer or more on every virtual stage between the ends."""
    found = []
    for borders in combinations(range(layers + stages - 1), stages - 1):
        held = [b - a - 1 for a, b in zip((-1, *borders), (*borders, layers + stages - 1), strict=True)]
        if min(held[1:-1]) > 0:
            found.append(layout_text(held))
    return found


@pytest.mark.parametrize(
    ("layers", "vpp"), [(8, 2), *(pytest.param(*one, marks=pytest.mark.nightly) for one in ((8, 1), (11, 1)))]
)
def test_no_layout_is_much_faster_than_the_one_found(layers: int, vpp: int) -> None:
    asked = staged(layers)
    plans, step_s = asked_for(asked, vpp)
    steps = [
        price_plan(asked, replace(plans, stage_layout=layout))[0].step_s for layout in every_layout(layers, 4 * vpp)
    ]
    # Deals whose busiest stages work the same differ in their bubbles, of 16 micro-batches here.
    assert step_s <= min(steps) * 1.01
    assert step_s < 0.95 * price_plan(asked, replace(plans, stage_layout=""))[0].step_s


def test_equal_stages_stay_where_the_framework_takes_no_layout() -> None:
    assert asked_for(staged(8), 1)[0].stage_layout
    assert not asked_for(staged(8, MEGATRON.changed({"pipeline.uneven_chunks": ""})), 1)[0].stage_layout


@pytest.mark.nightly
def test_the_framework_s_own_partition_is_not_tried_as_a_layout() -> None:
    job = {"world_size": 1024, "global_batch_tokens": 62_914_560, "framework": "megatron"}
    session = ask(model="configs/671B_deepseek_v3.toml", cluster="h100-sxm", job=job)
    model = session.inputs.problem.model
    for plan in (answer.plan for answer in session.search().best):
        own = pipeline_partition(model, plan.pp * plan.vpp, "uniform")
        if plan.stage_layout:
            assert parse_pipeline_layout(plan.stage_layout).layers != own.layers


def test_a_short_layout_says_the_same() -> None:
    for layers, predicted, at in (([7, *[8] * 14, 7], 0, 15), ([0, 1, 1, 3, 2, 0], 1, 4), ([2, 0], 2, 1)):
        layout = parse_pipeline_layout(short_layout(layers, predicted, at))
        assert layout.layers == tuple(layers)
        assert layout.predicting_stage == at
    assert short_layout([7, *[8] * 14, 7], 0, 15) == "Et*7|(t*8|)*14t*7L"


def test_partitions_by_hand() -> None:
    """Ten layers on four stages: three and a head as heavy as two layers leave the last stage one less."""
    layer_s, ends_s = np.ones(10), np.array([0.0, 0.0, 0.0, 2.0])
    assert _by_cost(layer_s, ends_s) == (3, 3, 3, 1)
    assert span_s((3, 3, 3, 1), layer_s, ends_s, (4, 1)) == 3.0
    assert span_s((2, 3, 3, 2), layer_s, ends_s, (4, 1)) == 4.0
    # Two chunks a stage: virtual stages 0 and 2 are the first stage's.
    assert span_s((3, 3, 3, 1), layer_s, ends_s, (2, 2)) == 6.0
    found = _fewer_at_ends(10, (4, 1))
    assert {(2, 3, 3, 2), (3, 3, 3, 1), (1, 3, 3, 3), (0, 4, 5, 1)} <= found
    assert all(sum(layers) == 10 and min(layers[1:-1]) >= 1 for layers in found)


@given(
    seconds=st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=4, max_size=9),
    ends=st.lists(st.sampled_from([0.0, 1.0, 4.0]), min_size=4, max_size=4),
)
def test_no_partition_leaves_the_busiest_stage_less_than_the_one_by_cost(
    seconds: list[float], ends: list[float]
) -> None:
    """Against every partition with a layer or more between the ends."""
    layer_s, ends_s, shape = np.array(seconds), np.array(ends), (4, 1)
    of_all = [
        span_s(parse_pipeline_layout(text).layers, layer_s, ends_s, shape) for text in every_layout(len(seconds), 4)
    ]
    assert span_s(_by_cost(layer_s, ends_s), layer_s, ends_s, shape) <= min(of_all) * (1 + 1e-5)
