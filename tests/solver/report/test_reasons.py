"""Reasons: what breaks, what loses where, what stands beside what."""

from dataclasses import replace

from solver.analysis.explanation import explain_plan
from solver.analysis.named_plans import Candidate
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.result import Answer
from solver.report.reasons import compare_section, explanation_sections, why_not_section
from solver.report.sections import record
from solver.report.terminal import text
from spec.frameworks import framework_preset
from spec.units import GIB
from tests.solver.questions import question

ASKED = question(preset=framework_preset("megatron"))


def answer(**degrees: int) -> Answer:
    """A plan of the flat cost model."""
    plan = Plan(strategy="mtp", preset="megatron", num_micro=4 * degrees["tp"] * degrees.get("pp", 1), **degrees)
    return price_plan(ASKED, PlanTable.of(plan))[0]


BEST, OTHER = answer(tp=2, dp=8), answer(tp=4, dp=4)


def why_not(other: Answer, obstacles: tuple[str, ...] = (), **beside: object) -> list[str]:
    one = Candidate(answer=other, obstacles=obstacles, **beside)  # type: ignore[arg-type]
    return list(why_not_section(1, BEST, one).paragraphs)


def test_losses_by_term_sum_to_the_whole() -> None:
    section = why_not_section(1, BEST, Candidate(answer=OTHER, obstacles=("kv heads do not divide by tp",)))
    assert section.paragraphs[0] == "it cannot run: kv heads do not divide by tp"
    losses = {row[0]: float(row[-1]) for row in section.tables[0].rows}
    whole = losses.pop("step")
    assert abs(whole - 1e3 * (OTHER.step_s - BEST.step_s)) < 0.06
    assert abs(sum(losses.values()) - whole) < 0.06 * len(losses)


def test_a_plan_that_wins_has_no_losses_and_a_faster_one_that_cannot_run_gains() -> None:
    assert why_not(BEST) == ["it is the best plan"]
    assert not why_not_section(1, BEST, Candidate(answer=BEST, obstacles=())).tables
    faster = replace(BEST, step_s=0.9 * BEST.step_s, plan=OTHER.plan, scatter_s={"gemm": BEST.step_s})
    words = why_not(faster, ("needs 9 GiB of 8",))[1]
    assert "would gain 10.0 %" in words
    assert words.endswith("a tie: within the 80 % interval of their difference")


def test_it_says_that_no_strategy_was_named() -> None:
    several = why_not(OTHER, modes=("mtp", "fsp"))
    assert several[0] == "no strategy is named: this is the best of mtp, fsp"
    assert several[1:] == why_not(OTHER, modes=("mtp",)) == why_not(OTHER)


def test_the_best_plan_of_the_keys_is_named_where_it_is_another() -> None:
    slower = replace(OTHER, step_s=1.25 * BEST.step_s)
    words = why_not(answer(tp=4, pp=2, dp=2), best_of_keys=slower)
    label = OTHER.plan.label()
    assert words[1].startswith(f"the best plan with these keys, the others searched, is {label}, which loses 25.0 %")
    assert words[1].count("the best plan") == 1
    assert why_not(OTHER, best_of_keys=BEST)[1].endswith("which is the best plan")
    none = why_not(OTHER, ("too large",), none_runs=True)
    assert none[2] == "no plan with these keys can run, whatever the other keys"
    assert why_not(OTHER, best_of_keys=OTHER) == why_not(OTHER)


def test_plans_stand_side_by_side_and_their_memory_sums_to_what_they_need() -> None:
    terms = dict.fromkeys(OTHER.memory_bytes, 7.0 * GIB)
    allocated = sum(terms.values())
    large = replace(OTHER, memory_bytes=terms, allocated_bytes=allocated, needed_bytes=allocated + 3 * GIB)
    plans = (Candidate(answer=BEST, obstacles=()), Candidate(answer=large, obstacles=("too large",)))
    section = compare_section(plans)
    assert list(section.facts) == [("A", BEST.plan.label()), ("B", large.plan.label()), ("B", "cannot run: too large")]
    rows = {row[0]: row[1:] for row in section.tables[0].rows}
    assert [float(cell) for cell in rows["step ms"]] == [round(1e3 * o.step_s, 1) for o in (BEST, large)]
    gib = {name: [float(cell) for cell in row] for name, row in rows.items() if name.endswith("GiB")}
    needed = gib.pop("needed GiB")
    for at, one in enumerate((BEST, large)):
        assert needed[at] == round(one.needed_bytes / GIB, 2)
        assert abs(sum(sizes[at] for sizes in gib.values()) - needed[at]) < 0.01 * len(gib)


def test_every_operation_term_and_stage_of_a_plan_taken_apart_is_printed() -> None:
    one = answer(tp=2, pp=2, dp=4)
    found = explain_plan(ASKED, one.plan)
    sections = explanation_sections([(one, found), (BEST, explain_plan(ASKED, BEST.plan))], calibrated=True)
    printed = text(sections[:1], 1000)
    assert all(row.name in printed for row in found.operations)
    assert all(term.what in printed for term in found.assembly)
    assert "stage 1  stage 2" in printed
    assert sections[0].paragraphs == [f"before the calibration, which makes {1e3 * one.step_s:.1f} ms of it"]
    *terms, step = sections[0].tables[1].rows
    assert abs(sum(float(row[4]) for row in terms) - float(step[4])) < 0.06 * len(terms)
    assert abs(float(step[4]) - 1e3 * one.step_s) < 0.06
    apart = record(sections)["explain"]
    assert isinstance(apart, list)
    assert [of_one["plan"]["tp"] for of_one in apart] == [2, 2]
