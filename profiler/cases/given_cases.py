"""Cases that a file names (--cases): which of them this machine can measure, and why not the others."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from profdb.cases import Case, GroupedCase, MemoryBoundCase
from profdb.store.case_file import read_cases
from profiler.cases.group_tilings import why_untiled
from profiler.cases.planned import Planned, planned
from profiler.cases.sweep_plan import SweepPlan


def given_cases(path: Path | None) -> tuple[Case, ...] | None:
    """The cases of a file, in its order; None without one. ProfileError as read_cases."""
    return None if path is None else read_cases(path)


def reason_left(case: Case, plan: SweepPlan) -> str:
    """Why a case is not measured here; "" where it is."""
    if isinstance(case, MemoryBoundCase) and case.kernel in plan.left_out:
        return "fused by a compiler alone (--compile)"
    if not plan.takes(case):
        return "left out by --only or --max_size"
    if isinstance(case, GroupedCase):
        return why_untiled(case, plan.domain_ranks, plan.domains)
    return ""


def cases_here(cases: Sequence[Case], plan: SweepPlan) -> list[Case]:
    """The cases that this machine can measure, in their order."""
    return [case for case in cases if not reason_left(case, plan)]


def plans_here(cases: Sequence[Case], plan: SweepPlan) -> list[Planned]:
    """The same as one tier."""
    return planned(0, cases_here(cases, plan))


def notes_of_left(cases: Sequence[Case] | None, plan: SweepPlan) -> list[str]:
    """A line for each reason why cases are left out, with how many; nothing is stored of those, so that a larger
    machine measures them."""
    reasons = Counter(reason_left(case, plan) for case in cases or ())
    return [f"{count} of the given cases left: {why}" for why, count in reasons.items() if why]
