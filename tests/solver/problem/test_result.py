"""Answers: which are believable, and whose stage they are of."""

from dataclasses import replace
from math import inf, nan, sqrt

import numpy as np
import pytest

from solver.estimate import estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.result import Answer, SlowestStage, check_believable, is_tie, paired_error_s
from spec.errors import ProfileError
from tests.solver.flat_cost_model import FlatCostModel
from tests.solver.questions import question, small_model

# An answer that no machine could give is an error that names whose times it comes from.

PLAN = Plan(strategy="mtp", preset="internevo", dp=16, num_micro=4)


def answer_of_step(cost_model: FlatCostModel | None = None) -> Answer:
    return price_plan(question(cost_model=cost_model), PlanTable.of(PLAN))[0]


def test_a_plain_answer_passes() -> None:
    check_believable([answer_of_step()], "p.pt")


@pytest.mark.parametrize("changes", [{"interval_high_s": inf}, {"interval_low_s": nan}, {"step_s": 0.0}])
def test_times_that_cannot_be_name_the_profile(changes: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match=r"^p\.pt: its times give mtp .* no time that can be"):
        check_believable([replace(answer_of_step(), **changes)], "p.pt")  # type: ignore[arg-type]


def test_no_gpu_does_more_than_its_peak() -> None:
    """The flat cost model's GPU has a peak of 100 TFLOP/s; these products run ten thousand times as fast."""
    with pytest.raises(ProfileError, match=r"p\.pt: .* of the GPUs' peak FLOP/s, which no GPU reaches"):
        check_believable([replace(answer_of_step(FlatCostModel(flops=1e18)), mfu=1.2)], "p.pt")


# The columns of an answer are those of the stage that works longest, and the answer says which.


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
    """Matrix products of a step are proportional to the layers held and the head, by the flat cost model."""
    plan = Plan(strategy="mtp", preset="internevo", pp=pp, dp=4, num_micro=8)
    asked = question(model=small_model(layers=layers, kv_heads=8), world_size=4 * pp, sequences=32)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    cost = step_time(asked.model, asked.job, table, asked.op_timer)
    rows = np.arange(table.stages.plan.shape[0])
    held = sum(column for column in table.stages.layers)
    h, f, vocab = 512, 2048, 4096
    flops = 3 * 2 * 1024 * (held * (4 * h * h + 3 * h * f) + table.stages.head * h * vocab)
    assert int(cost.stage[0]) == int(rows[np.argmax(flops)])
    assert cost.parts["gemm"][0] == pytest.approx(8 * flops.max() / 100e12, rel=1e-9)


def test_errors_of_one_family_cancel_and_those_of_two_do_not() -> None:
    plan = Plan(strategy="mtp", preset="internevo", num_micro=4)
    any_answer = price_plan(question(world_size=1, sequences=4), PlanTable.of(plan))[0]

    def priced(**scatter_s: float) -> Answer:
        return replace(any_answer, scatter_s=scatter_s)

    one = priced(gemm=3.0, attention=4.0)
    assert paired_error_s(one, one) == 0.0
    assert paired_error_s(one, priced(gemm=3.0)) == pytest.approx(4.0)
    assert paired_error_s(priced(gemm=3.0), priced(all_reduce=4.0)) == pytest.approx(5.0)
    assert paired_error_s(one, priced(gemm=1.0, attention=1.0)) == pytest.approx(sqrt(4.0 + 9.0))
    # What formulas err by differs from plan to plan.
    assert paired_error_s(priced(gemm=3.0, formulas=1.0), priced(gemm=3.0, formulas=2.0)) == pytest.approx(sqrt(5.0))


@pytest.mark.parametrize(("other_s", "tie"), [(1.009, True), (1.0095, False), (0.991, True), (0.99, False)])
def test_two_runs_of_one_plan_differ_by_nine_tenths_of_a_per_cent(other_s: float, tie: bool) -> None:
    """No error of the prediction: 1.2816 times 0.5 % of either step."""
    one = replace(answer_of_step(), step_s=1.0, scatter_s={})
    assert is_tie(one, replace(one, step_s=other_s)) is tie


@pytest.mark.parametrize(("layers", "pp"), [(8, 4), (10, 4), (8, 1)])
def test_mean_parts_are_of_all_gpus_and_sum_to_the_step(layers: int, pp: int) -> None:
    """Matrix products of all stages together, by the flat cost model, over the stages: 10 layers on four as well."""
    plan = Plan(strategy="mtp", preset="internevo", pp=pp, dp=4, num_micro=8)
    asked = question(model=small_model(layers=layers, kv_heads=8), world_size=4 * pp, sequences=32)
    one = price_plan(asked, PlanTable.of(plan))[0]
    h, f, vocab = 512, 2048, 4096
    flops = 3 * 2 * 1024 * (layers * (4 * h * h + 3 * h * f) + h * vocab)
    assert one.mean_parts_s["gemm"] == pytest.approx(8 * flops / pp / 100e12, rel=1e-9)
    assert sum(one.mean_parts_s.values()) == pytest.approx(one.step_s, rel=1e-12)
    assert one.mean_parts_s["gemm"] <= one.parts_s["gemm"] * (1 + 1e-12)
    assert one.mean_parts_s["bubble"] >= one.parts_s["bubble"] - 1e-12
    assert one.mean_parts_s["pp_comm"] == pytest.approx(one.parts_s["pp_comm"])
