"""Sections of what was asked of single plans: why not that one, these side by side, one taken apart."""

from solver.analysis.explanation import Explanation
from solver.page.content import PageTable, Section
from solver.page.plan_plots import alike_together
from solver.page.plan_tables import assembly_table, operations_table, stages_table
from solver.report.asked_reasons import Answered, Held
from solver.report.reasons import LOSS_HEADER, compared_cells, letters, loss_cells, why_not_words
from solver.result import Answer


def reason_sections(answered: Answered, best: Answer, *, calibrated: bool) -> list[Section]:
    """A section for each plan held against the ``best``, one for plans side by side, and one for each that is
    taken apart beside the best, which every page takes apart. ``calibrated``: whether steps are after a
    calibration."""
    apart = [found for answer, found in answered.explain if answer.plan != best.plan]
    return [
        *(_why_not(place, held, best) for place, held in enumerate(answered.why_not, start=1)),
        *([_compared(answered.compare)] if answered.compare else []),
        *(_apart(place, found, calibrated=calibrated) for place, found in enumerate(apart, start=1)),
    ]


def _why_not(place: int, held: Held, best: Answer) -> Section:
    words = why_not_words(best, held.answer, held.broken, held.beside)
    shown = PageTable(
        caption=f"What {held.answer.plan.label()} loses, term by term, ms",
        header=("term", *LOSS_HEADER[1:]),
        rows=loss_cells(best, held.answer),
    )
    return Section(
        anchor=f"why-not-{place}",
        title=f"Why not {held.answer.plan.label()}",
        paragraphs=[_sentence(line) for line in words],
        tables=() if held.answer.plan == best.plan else (shown,),
    )


def _compared(plans: tuple[Held, ...]) -> Section:
    names = letters(len(plans))
    said = [f"{name} is {one.answer.plan.label()}." for name, one in zip(names, plans, strict=True)]
    said += [
        f"{name} cannot run: {reason}."
        for name, one in zip(names, plans, strict=True)
        for reason in one.broken
    ]
    shown = PageTable(
        caption="Plans side by side; the parts of a step are of its slowest stage",
        header=("what", *names),
        rows=compared_cells([one.answer for one in plans]),
    )
    return Section(anchor="compare", title="Side by side", paragraphs=said, tables=(shown,))


def _apart(place: int, found: Explanation, *, calibrated: bool) -> Section:
    return Section(
        anchor=f"apart-{place}",
        title=f"{found.plan.label()}, taken apart",
        paragraphs=["Its seconds are before the calibration."] if calibrated else (),
        tables=(
            assembly_table(found),
            stages_table(alike_together(found.stages)),
            operations_table(found),
        ),
    )


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."
