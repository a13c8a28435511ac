"""What a sweep would measure, and how long that takes about, tier by tier; nothing is launched."""

import contextlib
from collections import Counter
from collections.abc import Hashable, Sequence

from profdb.cases import (
    Case,
    ExpertExchangeCase,
    HostCopyCase,
    LayerCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profdb.modelled.book import ModelledBook
from profdb.modelled.profile import modelled_seconds
from profiler.cases.planned import Planned
from profiler.cases.smoke import kind_of
from profiler.cases.sweep_plan import benchmark_of
from profiler.measurement import FIRST_AND_TYPICAL, LONG_CALL_S
from profiler.step_parts.expected import step_part_s
from profiler.timing import TrialPlan, burst_length
from spec.arrays import FloatArray, floats
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError, MissingCurveError

CASE_S = 0.03
"""Assumption: seconds a case costs beside its launches (allocating, filling with random numbers, agreeing). The two
gloo ranks of a processor take 0.02 to 0.05."""

STEP_PARTS = (OverlapCase, LayerCase, HostCopyCase, ExpertExchangeCase, WarmKernelCase)

UNKNOWN_S = 1e-3
"""Assumption: seconds of one launch of what the sheet has no model for."""


def dry_run_lines(plans: Sequence[Planned], cluster: ClusterSpec | None, plan: TrialPlan) -> list[str]:
    """A line for each tier, its cases by benchmark and about how many seconds, then the sum."""
    cases = [item.case for item in plans]
    seconds = expected_s(cases, cluster, plan)
    lines, begun_s = [], 0.0
    for tier in sorted({item.tier for item in plans}):
        rows = [row for row, item in enumerate(plans) if item.tier == tier]
        count = Counter(benchmark_of(cases[row]) for row in rows)
        spent_s = float(seconds[rows].sum())
        kinds = ", ".join(f"{number} {name}" for name, number in count.items())
        begun_s += spent_s
        lines.append(
            f"tier {tier}: {len(rows)} cases, about {spent_s:.0f} s, {begun_s:.0f} s with those before: {kinds}"
        )
    return [*lines, f"{len(cases)} cases, about {begun_s / 60.0:.1f} minutes"]


def expected_s(cases: Sequence[Case], cluster: ClusterSpec | None, plan: TrialPlan) -> FloatArray:
    """About how many seconds each case takes to measure, by the sheet of the machine."""
    return floats(
        [
            CASE_S + (case.seconds if isinstance(case, SustainedCase) else launches_s(call_s, plan))
            for case, call_s in zip(cases, calls_s(cases, cluster), strict=True)
        ]
    )


def launches_s(call_s: float, plan: TrialPlan) -> float:
    """Warm-up and trials of a call, as profiler.measurement makes them."""
    count = burst_length(call_s)
    warm = FIRST_AND_TYPICAL if call_s >= LONG_CALL_S else plan.warmup + count
    return call_s * (warm + count * plan.trials(call_s * count))


def calls_s(cases: Sequence[Case], cluster: ClusterSpec | None) -> list[float]:
    """Modelled seconds of one launch of each case; UNKNOWN_S of kinds that the sheet has no model for."""
    seconds = [UNKNOWN_S] * len(cases)
    if cluster is None:
        return seconds
    book = ModelledBook(cluster=cluster)
    kinds: dict[Hashable, list[int]] = {}
    for row, case in enumerate(cases):
        kinds.setdefault(kind_of(case), []).append(row)
    for rows in kinds.values():
        with contextlib.suppress(ConfigError, MissingCurveError):
            for row, call_s in zip(rows, _kind_s([cases[row] for row in rows], book), strict=True):
                seconds[row] = call_s
    return seconds


def _kind_s(cases: Sequence[Case], book: ModelledBook) -> list[float]:
    """Of cases of one kind."""
    if type(cases[0]) in STEP_PARTS:
        return [UNKNOWN_S if (one := step_part_s(case, book)) is None else one for case in cases]
    return [float(one) for one in modelled_seconds(book, cases)]
