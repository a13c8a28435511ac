"""The page's tables hold the answer's own figures."""

from dataclasses import replace

import pytest

from ops.recompute.layers import Recompute
from solver.analysis.explanation import explain_plan
from solver.page.plan_plots import alike_together, memory_terms
from solver.page.plan_tables import origins_table, parts_table, ranking_table, stages_table
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from spec.presets.registry import PRESETS
from spec.units import bytes_to_gib, seconds_to_ms
from tests.solver.questions import question, small_model

PLANS = (
    Plan(strategy="fsp", preset="megatron", tp=2, pp=4, num_micro=16),
    Plan(strategy="fsp", preset="megatron", tp=2, pp=4, num_micro=16, recompute=Recompute.FULL),
)
CASE = question(model=small_model(layers=8), world_size=8, sequences=16, preset=PRESETS["megatron"])
ANSWERS = tuple(price_plan(CASE, PlanTable.of(plan))[0] for plan in PLANS)


def figure(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" %"))


def test_ranking_and_parts_are_the_answers() -> None:
    shown = ranking_table(ANSWERS, 80 * 2**30)
    for row, answer in zip(shown.rows, ANSWERS, strict=True):
        told = dict(zip(shown.header, row, strict=True))
        assert figure(told["step ms"]) == pytest.approx(seconds_to_ms(answer.step_s), abs=0.06)
        assert figure(told["of memory"]) == pytest.approx(answer.needed_bytes / (0.8 * 2**30), abs=0.51)
        shares = [figure(told[name]) for name in shown.header if name.endswith("%") and name != "MFU %"]
        beside = sum(answer.parts_s[part] for part in ("optimizer", "host", "offload"))
        assert sum(shares) == pytest.approx(100 * (1 - beside / answer.step_s), abs=0.2)
    parts = parts_table(ANSWERS)
    for row, answer in zip(parts.rows, ANSWERS, strict=True):
        assert sum(map(figure, row[1:-1])) == pytest.approx(seconds_to_ms(answer.step_s), rel=0.01)


def test_memory_terms_sum_to_what_a_stage_needs() -> None:
    found = explain_plan(CASE, PLANS[0])
    for stage in found.stages:
        held = memory_terms(stage)
        assert sum(held.values()) == pytest.approx(stage.needed_bytes, rel=1e-12)
        assert held["context"] > 0
    table = stages_table(found.stages)
    assert [figure(cell) for cell in table.rows[-1][1:]] == pytest.approx(
        [bytes_to_gib(stage.needed_bytes) for stage in found.stages], abs=0.006
    )


def test_neighbours_that_hold_the_same_share_a_bar() -> None:
    first, *others = explain_plan(CASE, PLANS[0]).stages
    pair = [replace(first, first=1, last=1), replace(first, first=2, last=3), *others]
    merged = alike_together(pair)
    assert (merged[0].first, merged[0].last) == (1, 3)
    assert merged[1:] == alike_together(others)


def test_origins_sum_to_the_step() -> None:
    assert sum(figure(row[1]) for row in origins_table(ANSWERS[0]).rows) == pytest.approx(100.0, abs=0.2)
