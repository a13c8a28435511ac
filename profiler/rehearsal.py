"""Rehearsal of a sweep: its cases and their time, and whether this machine runs every kind of kernel."""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any

from profdb.cases import (
    FAMILY_OF,
    AttentionCase,
    Case,
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    ModuleCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
    product_dtypes,
)
from profdb.host_copies import host_transfer_s
from profdb.layer_sum import parts_of_layers
from profdb.modelled.case_times import modelled_seconds
from profdb.modelled.cost_model import ModelledCostModel
from profdb.store.columns import label_names
from profiler.benchmarks.memory_bound import compiled_kernels
from profiler.cases.module_cases import parts_of_modules
from profiler.cases.sweep_plan import benchmark_of, cases_here, describe, largest_array_bytes, plan_cases, plan_tiers
from profiler.cases.tiers import PlannedCase, in_tier
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.restart import restarts
from profiler.measurement import FIRST_AND_TYPICAL, LONG_CALL_S, POWER_BOUND
from profiler.profiling_run import RunOptions, device_and_spec, domain_of, run_profiling, sweep_plan
from profiler.timing import REST, TrialPlan, burst_length
from spec.arrays import FloatArray, floats
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.errors import ConfigError, MissingCurveError

SHORT = TrialPlan(warmup=1, min_trials=3, max_trials=3, seconds=0.01)

CASE_S = 0.075
"""Seconds of a case besides its launches (allocation, random numbers, loading of kernels, agreement): 0.069 and
0.080 in two sweeps of 1,902 cases on an H100 (benchmarks/notes/h100.md); two gloo ranks of a processor take 0.02 to
0.05."""

COMPILE_S = 3.0
"""Assumption: seconds of torch.compile for one graph that is not in its cache on disk. Eleven of these
graphs took 1.7 to 7.2 CPU seconds, 3.0 in the mean, on one core with the compiler's C++ output (torch 2.13);
Triton's is assumed to cost as much."""

UNKNOWN_S = 1e-3
"""Assumption: seconds of one launch of a case that the hardware spec does not determine."""


def dry_run(options: RunOptions, layout: RankLayout) -> list[str]:
    """Returns lines on what a sweep of this machine would measure; [] on all ranks but the first. Raises ConfigError
    without the device."""
    if layout.rank:
        return []
    device, hardware = device_and_spec(options, layout)
    domain = domain_of(options, hardware, layout)
    model_cases = options.model.cases() if options.model is not None else []
    plan = sweep_plan(options, device, domain, layout)
    plans = plan_tiers(plan, model_cases)
    if options.cases is not None:
        plans = in_tier(0, cases_here(options.cases, plan))
    return dry_run_lines(plans, hardware.cluster if hardware else None, options.trials)


def dry_run_lines(plans: Sequence[PlannedCase], cluster: ClusterSpec | None, plan: TrialPlan) -> list[str]:
    """Returns a line for each tier, with its cases by benchmark and their approximate seconds, then the sum."""
    cases = [item.case for item in plans]
    seconds = expected_s(cases, cluster, plan)
    lines, begun_s = [], 0.0
    for tier in sorted({item.tier for item in plans}):
        rows = [row for row, item in enumerate(plans) if item.tier == tier]
        count = Counter(benchmark_of(cases[row]) for row in rows)
        spent_s = float(seconds[rows].sum())
        kinds = ", ".join(f"{number} {name}" for name, number in count.items())
        # Seconds up to the end of this tier: what a budget has to have to complete it.
        begun_s += spent_s
        lines.append(
            f"tier {tier}: {len(rows)} cases, about {spent_s:.0f} s, {begun_s:.0f} s with those before: {kinds}"
        )
    return [*lines, f"{len(cases)} cases, about {begun_s / 60.0:.1f} minutes"]


def expected_s(cases: Sequence[Case], cluster: ClusterSpec | None, plan: TrialPlan) -> FloatArray:
    """Returns about how many seconds each case takes to measure, by the hardware spec of the machine; the first case
    of each compiled kernel includes the compiler's time."""
    compiled = first_compiled(cases)
    return floats(
        [
            CASE_S
            + COMPILE_S * (row in compiled)
            + (case.seconds if isinstance(case, SustainedCase) else launches_s(case, call_s, plan))
            for row, (case, call_s) in enumerate(zip(cases, calls_s(cases, cluster), strict=True))
        ]
    )


def first_compiled(cases: Sequence[Case]) -> set[int]:
    """Returns the rows of the cases that start the compiler: the first of each kernel that only it fuses, direction,
    format and width (profiler.benchmarks.memory_bound.compile_forward caches the result). The few further graphs for
    arrays of 2^31 elements are not counted."""
    fused = compiled_kernels()
    first: dict[Hashable, int] = {}
    for row, case in enumerate(cases):
        if isinstance(case, (MemoryBoundCase, WarmKernelCase)) and case.kernel in fused:
            first.setdefault((case.kernel, case.direction, case.dtype, case.width), row)
    return set(first.values())


def launches_s(case: Case, call_s: float, plan: TrialPlan) -> float:
    """Returns the seconds of warm-up and trials of a case's call on a GPU, as profiler.measurement makes them."""
    # The numbers of launches and trials are those of timing.TrialPlan for this call.
    count = burst_length(call_s)
    # Warm-up launches, and for short calls one burst more (profiler.measurement.time_trials).
    warm = FIRST_AND_TYPICAL if call_s >= LONG_CALL_S else plan.warmup + count
    rest = REST if isinstance(case, POWER_BOUND) else 0.0
    return call_s * (warm + (1.0 + rest) * count * plan.trials(call_s * count))


def calls_s(cases: Sequence[Case], cluster: ClusterSpec | None) -> list[float]:
    """Returns the modelled seconds of one launch of each case; UNKNOWN_S for kinds that the hardware spec does not
    determine."""
    seconds = [UNKNOWN_S] * len(cases)
    if cluster is None:
        return seconds
    cost_model = ModelledCostModel(cluster=cluster)
    # Cases of one kind share their labels, so one query of the model serves all of them.
    kinds: dict[Hashable, list[int]] = {}
    for row, case in enumerate(cases):
        kinds.setdefault(kind_of(case), []).append(row)
    for rows in kinds.values():
        # A kind without a model keeps UNKNOWN_S.
        with contextlib.suppress(ConfigError, MissingCurveError):
            for row, call_s in zip(rows, kind_s([cases[row] for row in rows], cost_model), strict=True):
                seconds[row] = float(call_s)
    return seconds


def kind_s(cases: Sequence[Any], cost_model: ModelledCostModel) -> Iterable[float]:
    """Returns the seconds of a launch of each of ``cases``, which are of one kind; of several operations by those of
    their parts.

    Raises ConfigError or MissingCurveError where the hardware spec determines no such part.
    """
    match cases[0]:
        case OverlapCase():
            return overlaps_s(cases, cost_model)
        case LayerCase():
            return sum(part.seconds for part in parts_of_layers(cost_model, cases))
        case ModuleCase():
            return sum(part.seconds for part in parts_of_modules(cost_model, cases))
        case HostCopyCase():
            host = cost_model.cluster.host
            if host is None:
                return [UNKNOWN_S] * len(cases)
            return [host_transfer_s(host, floats([case.size_bytes]), case.devices).seconds[0] for case in cases]
        case ExpertExchangeCase():
            return modelled_seconds(cost_model, [token_exchange(case) for case in cases])
        case WarmKernelCase():
            # The model has no caches: operands in the cache count as in memory.
            cold = [{one.name: getattr(case, one.name) for one in fields(case)} for case in cases]
            return modelled_seconds(cost_model, [MemoryBoundCase(**one) for one in cold])
        case _:
            return modelled_seconds(cost_model, cases)


def overlaps_s(cases: Sequence[OverlapCase], cost_model: ModelledCostModel) -> list[float]:
    """Returns the seconds of the longer side of each case, as if neither lost anything."""
    products = [GemmCase(m=case.m, k=case.k, n=case.n, layout="NT", **product_dtypes(case.dtype)) for case in cases]
    collectives = [collective_of(case, case.collective, case.size_bytes) for case in cases]
    product_s, collective_s = modelled_seconds(cost_model, products), modelled_seconds(cost_model, collectives)
    return [
        max(case.products * float(product_s[row]), case.collectives * float(collective_s[row]))
        for row, case in enumerate(cases)
    ]


def token_exchange(case: ExpertExchangeCase) -> CollectiveCase:
    """Returns an all-to-all of every token, once for each of its experts."""
    # Bytes of a rank, rounded up to equal parts for all ranks.
    size = ceil(case.tokens * case.topk * case.hidden * dtype_bytes(case.dtype))
    ranks = case.intra * case.inter
    return collective_of(case, Collective.ALL_TO_ALL, -(-size // ranks) * ranks)


def collective_of(case: OverlapCase | ExpertExchangeCase, kind: Collective, size_bytes: int) -> CollectiveCase:
    """Returns a collective in the groups of the case."""
    groups = {name: getattr(case, name) for name in ("intra", "inter", "siblings", "dtype")}
    return CollectiveCase(collective=kind, size_bytes=size_bytes, **groups)


def smoke(options: RunOptions, layout: RankLayout) -> list[str]:
    """Returns lines on how many kinds of kernel ran once, and why the others did not; [] on all ranks but the first.
    Keeps no samples. Raises UserError as run_profiling."""
    device, hardware = device_and_spec(options, layout)
    domain = domain_of(options, hardware, layout)
    cases = smoke_cases(plan_cases(sweep_plan(options, device, domain, layout)))
    # The same folder after a restart, which keeps the process id: the journal in it names the case to skip.
    folder = Path(tempfile.gettempdir()) / f"smoke-{os.getpid()}"
    folder.mkdir(mode=0o700, exist_ok=restarts(os.environ) > 0)
    try:
        short = replace(options, output=folder / "data.pt", cases=tuple(cases), trials=SHORT, resume=False)
        report = run_profiling(short, layout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if report is None:
        return []
    remaining = f", {report.sweep.num_remaining} remain, as the budget ran out" if report.sweep.num_remaining else ""
    return [
        f"{report.sweep.statuses['ok']} of {len(cases)} kinds of kernel ran in {report.sweep.seconds:.1f} s{remaining}",
        *(
            f"  {sample.status}: {describe(sample.case)}: {sample.launched.get('reason', '')}"
            for sample in report.profile.samples
            if sample.status != "ok"
        ),
        *(f"note: {note}" for note in report.notes),
    ]


def smoke_cases(cases: Sequence[Case]) -> list[Case]:
    """Returns the smallest case of each kind, in the order of ``cases``; without sustained cases, whose kernels are
    those of others."""
    smallest: dict[Hashable, Case] = {}
    for case in cases:
        key = kind_of(case)
        best = smallest.get(key, case)
        if not isinstance(case, SustainedCase):
            smallest[key] = min(best, case, key=largest_array_bytes)
    return list(smallest.values())


def kind_of(case: Case) -> Hashable:
    """Returns the key of the code that runs: the labels of a case, and the numbers that select a kernel rather than a
    size."""
    words = tuple(str(getattr(case, name)) for name in label_names(FAMILY_OF[type(case)]))
    match case:
        case GemmCase():
            return type(case), *words, case.bias, case.batch > 1
        case AttentionCase():
            return type(case), *words, case.qk_dim, case.v_dim, case.heads != case.kv_heads
        case CollectiveCase() | ExpertExchangeCase():
            return type(case), *words, case.intra, case.inter
        case OverlapCase():
            return type(case), *words, case.intra, case.inter, case.products > 0, case.collectives > 0
    return type(case), *words
