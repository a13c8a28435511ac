"""The page that --report asks for, of what was printed."""

import argparse
from collections.abc import Sequence

from solver.analysis.named_plans import obstacles
from solver.analysis.sensitivity import WhatIf
from solver.opening import Opened
from solver.page.pages import Told, best_row, plans_page, sweep_page
from solver.page.plan_sections import Ranked
from solver.page.written_page import write_page
from solver.report.asked_reasons import NOTHING_ASKED, Answered
from solver.report.asked_sweep import REPLANNED, SweepShown, judged_run, run_asked
from solver.report.shown import Shown
from solver.report.swept import cost_line, goodput_line, replanned_table, swept_table
from solver.report.tables import question_lines


def report_plans(
    options: argparse.Namespace,
    opened: Opened,
    shown: Shown,
    question: str,
    what_if: Sequence[WhatIf] = (),
    reasons: Answered = NOTHING_ASKED,
) -> None:
    """Write the page of a search or of a priced plan; ``question`` as printed, ``what_if`` and ``reasons``
    where they were asked for.
    """
    best = shown.answers[0]
    goodput, cost = judged_run(run_asked(options), opened, best)
    lines = (goodput and goodput_line(goodput), cost and cost_line(cost))
    notes = [_sentence(line) for line in lines if line]
    if shown.result is None:
        notes += [
            f"Not feasible: {reason}" for reason in obstacles(opened.question, best, opened.constraints)
        ]
    ranked = Ranked(
        opened=opened,
        answers=shown.answers,
        result=shown.result,
        what_if=tuple(what_if),
        reasons=reasons,
    )
    told = Told(command=options.command, question=question, notes=notes)
    print(f"\nwrote {write_page(plans_page(ranked, told), options.report)}")


def report_sweep(options: argparse.Namespace, shown: SweepShown) -> None:
    """Write the page of a sweep."""
    tables = [("The best plan of every question", swept_table(shown.judged))]
    if options.every_node_count:
        tables.append((f"{REPLANNED[0].upper()}{REPLANNED[1:]}", replanned_table(shown.rows)))
    notes = [
        f"Of the first row: {_sentence(goodput_line(one))}"
        for one in [shown.judged[0].goodput]
        if one is not None
    ]
    best = best_row(shown.judged).row.opened
    question = question_lines(best.question, best.times, constraints=best.constraints)
    told = Told(command=options.command, question=question, notes=notes)
    print(f"\nwrote {write_page(sweep_page(shown.judged, tables, told), options.report)}")


def _sentence(line: str) -> str:
    """A printed line that begins with its column's word, as a sentence."""
    word, said = line.split(maxsplit=1)
    return f"{word.capitalize()}: {said}."
