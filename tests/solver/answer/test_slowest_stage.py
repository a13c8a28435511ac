"""The columns of an answer are those of the stage that works longest, and the answer says which."""

import numpy as np
import pytest

from solver.answer.answer import Answer
from solver.answer.slowest_stage import SlowestStage
from solver.estimate import estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from tests.solver.questions import question, small_model


def answer(layers: int, pp: int) -> Answer:
    plan = Plan(strategy="mtp", preset="internevo", pp=pp, dp=4, num_micro=8)
    asked = question(model=small_model(layers=layers, kv_heads=8), world_size=4 * pp, sequences=32)
    return price_plan(asked, PlanTable.of(plan))[0]


def test_one_stage_holds_everything() -> None:
    words = answer(8, 1).slowest.words()
    assert words == "the only stage: 8 layers, embedding, head"


def test_the_head_makes_the_last_of_equal_stages_the_slowest() -> None:
    assert answer(8, 4).slowest.words() == "stage 4 of 4: 2 layers, head"


def test_a_layer_more_is_more_than_a_head() -> None:
    """Ten layers on four stages: 3, 3, 2, 2 or alike; a layer works longer than the head of 4,096 words."""
    slowest = answer(10, 4).slowest
    assert slowest.layers == 3
    assert not slowest.head


def test_words_of_stages_that_are_alike() -> None:
    stages = SlowestStage(first=2, last=5, stages=6, layers=1, predictions=2, embedding=False, head=False)
    assert stages.words() == "stages 2 to 5 of 6, all alike: 1 layer, 2 prediction blocks"


@pytest.mark.parametrize(("layers", "pp"), [(8, 4), (10, 4)])
def test_compute_columns_are_of_that_stage(layers: int, pp: int) -> None:
    """Matrix products of a step are proportional to the layers held and the head, by the flat book."""
    plan = Plan(strategy="mtp", preset="internevo", pp=pp, dp=4, num_micro=8)
    asked = question(model=small_model(layers=layers, kv_heads=8), world_size=4 * pp, sequences=32)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    cost = step_time(asked.model, asked.job, table, asked.pricer)
    rows = np.arange(table.stages.plan.shape[0])
    held = sum(column for column in table.stages.layers)
    h, f, vocab = 512, 2048, 4096
    flops = 3 * 2 * 1024 * (held * (4 * h * h + 3 * h * f) + table.stages.head * h * vocab)
    assert int(cost.stage[0]) == int(rows[np.argmax(flops)])
    assert cost.parts["gemm"][0] == pytest.approx(8 * flops.max() / 100e12, rel=1e-9)
