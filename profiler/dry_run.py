"""What a sweep would measure, and how long that takes about, tier by tier; nothing is launched."""

import contextlib
from collections import Counter
from collections.abc import Hashable, Sequence

from profdb.cases import (
    Case,
    ExpertExchangeCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.profile import modelled_seconds
from profiler.benchmarks.memory_bound import only_compiled
from profiler.cases.planned import Planned
from profiler.cases.smoke import kind_of
from profiler.cases.sweep_plan import benchmark_of
from profiler.measurement import FIRST_AND_TYPICAL, LONG_CALL_S
from profiler.step_parts.expected import step_parts_s
from profiler.timing import TrialPlan, burst_length
from spec.arrays import FloatArray, floats
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError, MissingCurveError

CASE_S = 0.03
"""Assumption: seconds a case costs beside its launches (allocating, filling with random numbers, agreeing). The two
gloo ranks of a processor take 0.02 to 0.05."""

COMPILE_S = 3.0
"""Assumption: seconds of torch.compile for one graph that its cache on disk does not hold. Eleven of these
graphs took 1.7 to 7.2 CPU seconds, 3.0 in the mean, on one core with the compiler's C++ output (torch 2.13);
Triton's is taken to cost as much."""

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
    """About how many seconds each case takes to measure, by the sheet of the machine; the first of those that share a
    compiled kernel waits for the compiler."""
    compiled = first_compiled(cases)
    return floats(
        [
            CASE_S
            + COMPILE_S * (row in compiled)
            + (case.seconds if isinstance(case, SustainedCase) else launches_s(call_s, plan))
            for row, (case, call_s) in enumerate(zip(cases, calls_s(cases, cluster), strict=True))
        ]
    )


def first_compiled(cases: Sequence[Case]) -> set[int]:
    """Rows of the cases that make the compiler work: the first of each kernel that only it fuses, direction
    and format (profiler.benchmarks.memory_bound.fused_forward keeps what it compiled). The few graphs more
    that odd shapes take are not foreseen."""
    fused = only_compiled()
    first: dict[Hashable, int] = {}
    for row, case in enumerate(cases):
        if isinstance(case, (MemoryBoundCase, WarmKernelCase)) and case.kernel in fused:
            first.setdefault((case.kernel, case.direction, case.dtype), row)
    return set(first.values())


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
    cost_model = ModelledCostModel(cluster=cluster)
    kinds: dict[Hashable, list[int]] = {}
    for row, case in enumerate(cases):
        kinds.setdefault(kind_of(case), []).append(row)
    for rows in kinds.values():
        with contextlib.suppress(ConfigError, MissingCurveError):
            for row, call_s in zip(rows, _kind_s([cases[row] for row in rows], cost_model), strict=True):
                seconds[row] = call_s
    return seconds


def _kind_s(cases: Sequence[Case], cost_model: ModelledCostModel) -> list[float]:
    """Of cases of one kind."""
    if isinstance(cases[0], STEP_PARTS):
        return [UNKNOWN_S if one is None else one for one in step_parts_s(cases, cost_model)]
    return [float(one) for one in modelled_seconds(cost_model, cases)]
