"""What was asked of single plans stands on the page with the figures that are printed."""

from dataclasses import replace

from solver.analysis.explanation import explain_plan
from solver.page.reason_sections import reason_sections
from solver.report.asked_reasons import NOTHING_ASKED, Answered, Held
from solver.report.reasons import compared_lines, why_not_lines
from spec.units import GIB
from tests.solver.report.test_reasons import ASKED, BEST, OTHER


def printed_lines(lines: list[str]) -> list[str]:
    """As printed, without the spaces that a table pads its cells with."""
    return [" ".join(line.split()) for text in lines for line in text.splitlines()]


def test_a_page_without_reasons_has_no_section_of_them() -> None:
    assert reason_sections(NOTHING_ASKED, BEST, calibrated=False) == []


def test_what_a_plan_loses_is_printed_and_on_the_page_alike() -> None:
    held = Held(answer=OTHER, broken=("kv heads do not divide by tp",))
    told = Answered(why_not=(held, Held(answer=BEST, broken=())))
    loser, winner = reason_sections(told, BEST, calibrated=False)
    printed = printed_lines(why_not_lines(BEST, OTHER, held.broken))
    assert loser.paragraphs[0] == "It cannot run: kv heads do not divide by tp."
    assert loser.paragraphs[1][1:-1] in printed[2]
    rows = [" ".join(row) for row in loser.tables[0].rows]
    assert rows == printed[-len(rows) :]
    assert rows[-1].startswith("step ")
    assert winner.paragraphs == ["It is the best plan."]
    assert not winner.tables
    assert loser.anchor != winner.anchor


def test_plans_side_by_side_are_printed_and_on_the_page_alike() -> None:
    terms = dict.fromkeys(OTHER.memory_bytes, 7.0 * GIB)
    allocated = sum(terms.values())
    large = replace(OTHER, memory_bytes=terms, allocated_bytes=allocated, needed_bytes=allocated + 3 * GIB)
    told = Answered(compare=(Held(answer=BEST, broken=()), Held(answer=large, broken=("too large",))))
    (section,) = reason_sections(told, BEST, calibrated=False)
    printed = printed_lines(compared_lines([BEST, large], [(), ("too large",)]))
    rows = [" ".join(row) for row in section.tables[0].rows]
    assert rows == printed[-len(rows) :]
    assert section.paragraphs[-1] == "B cannot run: too large."
    gib = {
        row[0]: [float(cell) for cell in row[1:]] for row in section.tables[0].rows if row[0].endswith("GiB")
    }
    needed = gib.pop("needed GiB")
    for at in (0, 1):
        assert abs(sum(one[at] for one in gib.values()) - needed[at]) < 0.01 * len(gib)


def test_a_plan_taken_apart_is_shown_beside_the_best_which_every_page_takes_apart() -> None:
    told = Answered(explain=tuple((one, explain_plan(ASKED, one.plan)) for one in (BEST, OTHER)))
    (section,) = reason_sections(told, BEST, calibrated=True)
    assert section.title.startswith(OTHER.plan.label())
    assert section.paragraphs == ["Its seconds are before the calibration."]
    step = section.tables[0]
    total = sum(float(row[4].replace(",", "")) for row in step.rows)
    assert abs(total - 1e3 * OTHER.step_s) < 0.06 * len(step.rows)
    assert "operation" in section.tables[2].header
