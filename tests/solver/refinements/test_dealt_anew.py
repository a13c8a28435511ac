"""Plans with layers dealt anew, where a framework takes layouts: held against all layouts there are."""

from dataclasses import replace
from itertools import combinations

import pytest

from solver.plans.plan_table import PlanTable
from solver.plans.space import full_space
from solver.question import Question
from solver.search import price_plan, search
from spec.model import ModelSpec
from spec.pipeline.layout import layout_text, parse_pipeline_layout, short_layout
from spec.presets.preset import FrameworkPreset
from spec.presets.registry import PRESETS
from spec.settings.constraints import constraints_of
from tests.solver.questions import question, small_model

MEGATRON = PRESETS["megatron"]


def heavy_head(layers: int) -> ModelSpec:
    """A vocabulary whose head takes about as long as two layers."""
    return replace(small_model(layers=layers), vocab=24 * 1024)


def staged(layers: int, preset: FrameworkPreset = MEGATRON) -> Question:
    """On four GPUs."""
    return question(model=heavy_head(layers), world_size=4, sequences=16, preset=preset)


def asked_for(asked: Question, vpp: int) -> tuple[PlanTable, float]:
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
        price_plan(asked, replace(plans, stage_layout=layout))[0].step_s
        for layout in every_layout(layers, 4 * vpp)
    ]
    # Deals whose busiest stages work the same differ in their bubbles, of 16 micro-batches here.
    assert step_s <= min(steps) * 1.01
    assert step_s < 0.95 * price_plan(asked, replace(plans, stage_layout=""))[0].step_s


def test_equal_stages_stay_where_the_framework_takes_no_layout() -> None:
    assert asked_for(staged(8), 1)[0].stage_layout
    assert not asked_for(staged(8, MEGATRON.changed({"pipeline.uneven_chunks": ""})), 1)[0].stage_layout


def test_a_short_layout_says_the_same() -> None:
    for layers, predicted, at in (([7, *[8] * 14, 7], 0, 15), ([0, 1, 1, 3, 2, 0], 1, 4), ([2, 0], 2, 1)):
        layout = parse_pipeline_layout(short_layout(layers, predicted, at))
        assert layout.layers == tuple(layers)
        assert layout.predicting_stage == at
    assert short_layout([7, *[8] * 14, 7], 0, 15) == "Et*7|(t*8|)*14t*7L"
