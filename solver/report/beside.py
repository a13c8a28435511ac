"""What is printed beside a winner: ties, a plan with room in memory, step against memory, and what a change
would bring.
"""

from collections.abc import Sequence

from solver.analysis.sensitivity import WhatIf
from solver.decision.beside_winner import ROOMY_SHARE, roomiest_fast
from solver.report.explain import tied
from solver.report.result_files import answer_record
from solver.report.tables import table
from solver.result import Answer
from solver.search import SearchResult
from spec.units import bytes_to_gib, seconds_to_ms

MOST_OF_FRONT = 8
"""Plans of a front that are printed; files have all."""


def ties(best: Sequence[Answer]) -> list[int]:
    """Places, from 2, of the plans shown whose step nobody can tell from the first one's."""
    return [place for place, answer in enumerate(best[1:], start=2) if tied(best[0], answer)]


def beside_lines(result: SearchResult, usable_bytes: float) -> list[str]:
    """Ties within the interval, the fastest plan with room in memory, and the plans no other beats in step
    and memory.
    """
    winner = result.best[0]
    alike = ties(result.best)
    places = f"place{'s' * (len(alike) > 1)} {', '.join(map(str, alike))}"
    said = f"the best and {places}: apart by less than the 80 % interval of the difference"
    lines = [f"ties     {said if alike else 'none within the 80 % interval of the difference'}"]
    roomy = roomiest_fast(result.pareto, usable_bytes)
    share = f"{100 * ROOMY_SHARE:g} % of memory"
    # Plans are eased to fit into all of memory, not into this share of it.
    more_said = f"(--headroom {100 - 100 * ROOMY_SHARE:.0f}% looks for others)"
    if roomy is None:
        lines.append(f"room     of the plans priced none needs at most {share} {more_said}")
    elif roomy.plan == winner.plan:
        lines.append(f"room     the best plan needs less than {share}")
    else:
        lines.append(
            f"room     of the plans priced the best below {share} is {roomy.plan.label()}: "
            f"{seconds_to_ms(roomy.step_s):.1f} ms ({_slower(roomy, winner)}), "
            f"{bytes_to_gib(roomy.needed_bytes):.1f} GiB {more_said}"
        )
    front = result.pareto[:MOST_OF_FRONT]
    rows = [
        [
            answer.plan.label(),
            f"{seconds_to_ms(answer.step_s):.1f}",
            _slower(answer, winner),
            f"{bytes_to_gib(answer.needed_bytes):.1f}",
            f"{100 * answer.needed_bytes / usable_bytes:.0f} %",
        ]
        for answer in front
    ]
    more = len(result.pareto) - len(front)
    lines += ["", "step against memory (no plan is better in both)"]
    lines.append(table(rows, ("plan", "step ms", "slower", "GiB", "of memory")))
    return [*lines, *[f"and {more} more, in --json"] * (more > 0)]


def beside_record(result: SearchResult, usable_bytes: float) -> dict[str, object]:
    """The same as plain values; the front is a search's own."""
    roomy = roomiest_fast(result.pareto, usable_bytes)
    return {"ties": ties(result.best), "roomy": None if roomy is None else answer_record(roomy)}


WHAT_IF_HEADER = ("change", "step ms", "step", "GiB", "best plan")


def sensitivity_lines(now: Answer, found: Sequence[WhatIf]) -> list[str]:
    """What each change would bring."""
    return ["what if", table(what_if_cells(now, found), WHAT_IF_HEADER)]


def what_if_cells(now: Answer, found: Sequence[WhatIf]) -> list[list[str]]:
    """The plan as it is, and the best one with each change, under WHAT_IF_HEADER."""
    rows = [
        [
            "as it is",
            f"{seconds_to_ms(now.step_s):.1f}",
            "",
            f"{bytes_to_gib(now.needed_bytes):.1f}",
            now.plan.label(),
        ]
    ]
    for one in found:
        if one.answer is None:
            rows.append([one.words, "", "", "", one.why_none or "no plan fits"])
            continue
        base = one.against or now
        rows.append(
            [
                one.words,
                f"{seconds_to_ms(one.answer.step_s):.1f}",
                f"{100 * (one.answer.step_s / base.step_s - 1):+.1f} %",
                f"{bytes_to_gib(one.answer.needed_bytes):.1f}",
                one.answer.plan.label(),
            ]
        )
    return rows


def sensitivity_record(found: Sequence[WhatIf]) -> list[dict[str, object]]:
    """The same as plain values."""
    return [
        {
            "what": one.words,
            "best": None if one.answer is None else answer_record(one.answer),
            "against": None if one.against is None else answer_record(one.against),
            "why_none": one.why_none,
        }
        for one in found
    ]


def _slower(answer: Answer, winner: Answer) -> str:
    return f"{100 * (answer.step_s / winner.step_s - 1):+.1f} %"
