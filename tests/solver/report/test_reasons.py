"""Reasons as printed: what breaks, what loses where, what stands beside what."""

from dataclasses import replace

from solver.analysis.explanation import explain_plan
from solver.plans.plan_table import Plan, PlanTable
from solver.report.reasons import Beside, compared_lines, explained_lines, why_not_lines
from solver.result import Answer
from solver.search import price_plan
from spec.presets.registry import PRESETS
from tests.solver.questions import question

ASKED = question(preset=PRESETS["megatron"])


def answer(**degrees: int) -> Answer:
    """A plan of the flat cost model."""
    plan = Plan(
        strategy="mtp", preset="megatron", num_micro=4 * degrees["tp"] * degrees.get("pp", 1), **degrees
    )
    return price_plan(ASKED, PlanTable.of(plan))[0]


BEST, OTHER = answer(tp=2, dp=8), answer(tp=4, dp=4)


def test_a_loss_is_told_term_by_term_and_they_sum_to_it() -> None:
    lines = "\n".join(why_not_lines(BEST, OTHER, ["kv heads do not divide by tp"]))
    assert "it cannot run: kv heads do not divide by tp" in lines
    rows = [line.split() for line in lines.splitlines() if line.split()[-1][0] in "+-"]
    losses = {" ".join(row[:-3]): float(row[-1]) for row in rows if len(row) > 3}
    whole = losses.pop("step")
    assert abs(whole - 1e3 * (OTHER.step_s - BEST.step_s)) < 0.06
    assert abs(sum(losses.values()) - whole) < 0.06 * len(losses)


def test_a_plan_that_wins_and_one_that_would_are_told_apart() -> None:
    assert why_not_lines(BEST, BEST, [])[-1] == "  it is the best plan"
    faster = replace(BEST, step_s=0.9 * BEST.step_s, plan=OTHER.plan, errors_s={"gemm": BEST.step_s})
    words = why_not_lines(BEST, faster, ["needs 9 GiB of 8"])[2]
    assert "would gain 10.0 %" in words
    assert words.endswith("a tie: within the 80 % interval of their difference")


def test_that_no_strategy_was_named_is_told() -> None:
    told = why_not_lines(BEST, OTHER, [], Beside(modes=("mtp", "fsp")))
    assert told[1] == "  no strategy is named: this is the best of mtp, fsp"
    assert (
        told[2:]
        == why_not_lines(BEST, OTHER, [], Beside(modes=("mtp",)))[1:]
        == why_not_lines(BEST, OTHER, [])[1:]
    )


def test_the_best_plan_with_the_keys_named_is_told_of_where_it_is_another() -> None:
    slower = replace(OTHER, step_s=1.25 * BEST.step_s)
    told = why_not_lines(BEST, answer(tp=4, pp=2, dp=2), [], Beside(others_searched=slower))
    label = OTHER.plan.label()
    assert told[2].startswith(f"  with the keys left out searched too it is {label}, which loses 25.0 %")
    assert "is the best plan" in why_not_lines(BEST, OTHER, [], Beside(others_searched=BEST))[2]
    none = why_not_lines(BEST, OTHER, ["too large"], Beside(none_runs=True))
    assert none[3] == "  no plan with these keys can run, whatever the keys left out"
    for same in (Beside(others_searched=OTHER), Beside()):
        assert why_not_lines(BEST, OTHER, [], same) == why_not_lines(BEST, OTHER, [])


def test_plans_stand_side_by_side() -> None:
    lines = compared_lines([BEST, OTHER], [[], ["too large"]])
    text = "\n".join(lines)
    assert lines[0] == f"A  {BEST.plan.label()}"
    assert "B  cannot run: too large" in lines
    step = next(line.split() for line in text.splitlines() if line.startswith("step ms"))
    assert [float(word) for word in step[2:]] == [round(1e3 * one.step_s, 1) for one in (BEST, OTHER)]
    needed = next(line.split() for line in text.splitlines() if line.startswith("needed GiB"))
    assert [float(word) for word in needed[2:]] == [
        round(one.needed_bytes / 2**30, 2) for one in (BEST, OTHER)
    ]


def test_every_operation_term_and_stage_is_printed() -> None:
    found = explain_plan(ASKED, answer(tp=2, pp=2, dp=4).plan)
    text = "\n".join(explained_lines(found))
    for row in found.operations:
        assert row.name in text
    for term in found.assembly:
        assert term.what in text
    assert "stage 1  stage 2" in text
