"""Other partitions of layers over pipeline stages: fewer layers at either end, or balanced by the seconds of each
layer.

Embedding, head and prediction blocks weigh on single stages, layers rarely divide, and most micro-batches are in flight
on early stages. Where the framework takes a layout (Megatron-LM's --pipeline-model-parallel-layout) the plans that
could win by it are tried with up to FEWER layers less on the first and on the last stage than on the others, and with
the partition whose busiest stage has least to do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.layout import unique_rows
from ops.recompute import Recompute
from solver.candidates.candidates import Candidates, StageEnds, candidates_of, fastest_s
from solver.estimate import Estimate, estimate_memory, least_ends_s, steps_s, with_stage_layout
from solver.pipeline.stages import pipeline_partition
from solver.plans.plan_table import PlanTable
from solver.problem.problem import Problem
from spec.arrays import FloatArray, IntArray, ints
from spec.pipeline_layout import short_layout

# Assumption: neither end of a pipeline takes longer than so many layers.
FEWER = 4
# Assumption: the fastest plan is among so many groups of plans with the least bounds, and of those that only fit with
# some recomputation among so many.
MOST_GROUPS = 64
MOST_RELAXED = 8
# Assumption: hybrids that change their kind of layer more often keep the framework's rule.
MOST_RUNS = 6

ZERO_COLUMNS = ("zero_stage", "zero_size")

Relax = Callable[[Estimate], Iterator[Estimate]]
"""Yields plans that fit with some recomputation, from plans that do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """Plans of a table that differ in ZeRO shards alone, and so share their partitions.

    ``rest_s`` is what a step takes at least besides the passes of the busiest stage; ``bound_s`` a bound of their steps
    if all stages were equally busy; ``mean_bytes`` what a stage needs on average, ``recompute_bytes`` the same with all
    layers recomputed.
    """

    owner: Candidates
    rows: IntArray
    bound_s: float
    rest_s: float
    mean_bytes: float
    recompute_bytes: float


def repartition(
    problem: Problem, candidates: Sequence[Candidates], limit: tuple[float, float], relax: Relax
) -> list[Candidates]:
    """Returns plans with other partitions that fit and could win: that need at most so many bytes, and have a bound
    below so many seconds (``limit``). Where none fits as it is, ``relax`` recomputes some of its layers."""
    limit_bytes, incumbent_s = limit
    if problem.job.preset.pipeline.uneven_chunks != "layout" or len(problem.model.blocks) > MOST_RUNS:
        return []
    groups = [group for one in candidates for group in _groups(problem, one, incumbent_s)]
    in_order = sorted(groups, key=lambda one: one.bound_s)
    # Groups that would fit if all stages needed the same, and groups that would with recomputation alone.
    fit = [one for one in in_order if one.mean_bytes <= limit_bytes]
    oom = [one for one in in_order if one.recompute_bytes <= limit_bytes < one.mean_bytes]
    result: list[Candidates] = []
    for group in sorted([*fit[:MOST_GROUPS], *oom[:MOST_RELAXED]], key=lambda one: one.bound_s):
        # The incumbent improves on the way, and groups come by their bounds.
        if group.bound_s >= incumbent_s:
            break
        fitting, lightest = _best_partition(problem, group, (limit_bytes, incumbent_s))
        tables = [fitting] if fitting is not None else []
        if lightest is not None and lightest.plans.recompute is Recompute.NONE:
            tables = list(relax(lightest))
        for table in tables:
            pieces = _pipeline(group).times.pieces if table is fitting else None
            result.append(candidates_of(problem, table, pieces))
            incumbent_s = min(incumbent_s, fastest_s(result[-1]))
    return result


def _pipeline(group: PlanGroup) -> StageEnds:
    assert isinstance(group.owner.pipeline, StageEnds)
    return group.owner.pipeline


def _groups(problem: Problem, one: Candidates, incumbent_s: float) -> list[PlanGroup]:
    """Returns the groups of a table that have a bound below ``incumbent_s``; none where a layout cannot express the
    schedule's stages."""
    plans, pipeline = one.table.plans, one.pipeline
    schedule = plans.schedule
    has_layout = schedule.placement.looped and not (schedule.traits.splits_backward or plans.stage_layout)
    if not has_layout or not isinstance(pipeline, StageEnds):
        return []
    stages, busy_s = one.table.stages, pipeline.times.per_micro.seconds
    mean_s = np.add.reduceat(busy_s * stages.count, stages.starts) / plans.layout.pp
    # Bounds of all plans, also of simulated ones: which of them were simulated must not decide what is tried.
    least_s = steps_s(one.table, pipeline.times, least_ends_s(one.table, pipeline.times))
    rest_s = least_s - np.maximum.reduceat(busy_s, stages.starts) * plans.num_micro
    bound_s = np.where(plans.layout.pp > 1, rest_s + mean_s * plans.num_micro, np.inf)
    if not (bound_s < incumbent_s).any():
        return []
    mean_bytes = recompute_bytes = _mean_bytes(one.table)
    if plans.recompute is Recompute.NONE:
        full = replace(plans, recompute=Recompute.FULL, recompute_modules=())
        table = estimate_memory(problem.model, problem.job, full, problem.cluster, like=one.table)
        recompute_bytes = _mean_bytes(table)
    # By the plan without its ZeRO shards; groups come by their bounds, and the rows of each.
    _, group = unique_rows(tuple(column for name, column in plans.columns.items() if name not in ZERO_COLUMNS))
    order = np.argsort(bound_s, kind="stable")
    first = np.sort(np.unique(group[order], return_index=True)[1])
    alike = [order[group[order] == group[row]] for row in order[first] if bound_s[row] < incumbent_s]
    return [
        PlanGroup(
            owner=one,
            rows=ints(rows),
            bound_s=float(bound_s[rows[0]]),
            rest_s=float(rest_s[rows[0]]),
            mean_bytes=float(mean_bytes[rows].min()),
            recompute_bytes=float(recompute_bytes[rows].min()),
        )
        for rows in alike
    ]


def _mean_bytes(table: Estimate) -> FloatArray:
    """Returns what a stage of every plan needs on average: where that does not fit, no partition helps much."""
    needed = table.bytes.cost.needed_bytes * table.stages.count
    return np.asarray(np.add.reduceat(needed, table.stages.starts) / table.plans.layout.pp, dtype=np.float64)


def _best_partition(
    problem: Problem, group: PlanGroup, limit: tuple[float, float]
) -> tuple[Estimate | None, Estimate | None]:
    """Returns the fastest partition of a group's plans that fits and could win (``limit``: bytes, seconds), else None;
    and where none fits the one that needs least memory, else None."""
    limit_bytes, incumbent_s = limit
    table = group.owner.table.take(group.rows)
    layer_s, ends_s = _stage_seconds(problem, group)
    shape = (int(table.plans.layout.pp[0]), int(table.plans.vpp[0]))
    # Seconds that a micro-batch may take on the busiest stage of a plan that wins.
    below_s = (incumbent_s - group.rest_s) / int(table.plans.num_micro[0])
    # The search has tried the framework's own partition already.
    default = pipeline_partition(problem.model, len(ends_s), problem.job.preset.pipeline.partition).layers
    partitions = {*_fewer_at_ends(len(layer_s), shape), _by_cost(layer_s, ends_s)} - {tuple(default)}
    by_span = sorted((span_s(layers, layer_s, ends_s, shape), layers) for layers in partitions)
    mtp_blocks = sum(run.count for run in problem.model.blocks if run.block.mtp)
    lightest: Estimate | None = None
    for busiest_s, layers in by_span:
        if busiest_s >= below_s:
            break
        layout = short_layout(list(layers), mtp_blocks, len(ends_s) - 1)
        estimate = with_stage_layout(problem.model, problem.job, table, layout, problem.cluster)
        fits = ints(np.flatnonzero(estimate.needed_bytes <= limit_bytes))
        if fits.size:
            return estimate.take(fits), None
        if lightest is None or estimate.needed_bytes.min() < lightest.needed_bytes.min():
            lightest = estimate
    return None, lightest


def _stage_seconds(problem: Problem, group: PlanGroup) -> tuple[FloatArray, FloatArray]:
    """Returns the seconds of a micro-batch through every layer in order, and through what each virtual stage has
    besides."""
    assert isinstance(group.owner.pipeline, StageEnds)
    plans: PlanTable = group.owner.table.plans
    row = int(group.rows[0])
    at = group.owner.table.layers.row[row]
    # By piece (LayerTable.stage_pieces): kinds of layers, the same as first layers, embedding, head.
    each_s = [float(one.forward.seconds[at] + one.backward.seconds[at]) for one in group.owner.pipeline.times.pieces]
    kinds = (len(each_s) - 2) // 2
    runs = problem.model.blocks
    # With partial recomputation every kind is there twice, the layers without it second.
    of_run = dict(zip(runs, each_s[kinds - len(runs) : kinds], strict=True))
    layer_s = [of_run[run] for run in runs if not run.block.mtp for _ in range(run.count)]
    ends_s = np.zeros(int(plans.layout.pp[row] * plans.vpp[row]))
    ends_s[0] += each_s[-2]
    ends_s[-1] += each_s[-1] + sum(run.count * of_run[run] for run in runs if run.block.mtp)
    return np.asarray(layer_s), ends_s


def span_s(layers: Sequence[int], layer_s: FloatArray, ends_s: FloatArray, shape: tuple[int, int]) -> float:
    """Returns the seconds of a micro-batch through the busiest stage where virtual stages hold so many ``layers``;
    ``shape`` is pp and vpp, ``layer_s`` the seconds of every layer in order, ``ends_s`` of what virtual stages have
    besides."""
    bounds = np.concatenate([[0], np.cumsum(layers)])
    total = np.concatenate([[0.0], np.cumsum(layer_s)])
    chunks = total[bounds[1:]] - total[bounds[:-1]] + ends_s
    # Virtual stages go round and round: (vpp, pp), a stage's chunks in one column.
    return float(chunks.reshape(shape[1], shape[0]).sum(axis=0).max())


def _fewer_at_ends(num_layers: int, shape: tuple[int, int]) -> set[tuple[int, ...]]:
    """Returns the partitions with up to FEWER layers less on the first and on the last virtual stage than on those
    between, which differ by one at most, the later ones with more."""
    stages = shape[0] * shape[1]
    result: set[tuple[int, ...]] = set()
    for first in range(FEWER + 1):
        for last in range(FEWER + 1):
            # Partition as if both ends had the layers that they have less, then take those off.
            even, more = divmod(num_layers + first + last, stages)
            layers = [even + (stage >= stages - more) for stage in range(stages)]
            layers[0] -= first
            layers[-1] -= last
            if min(layers[0], layers[-1]) >= 0 and min(layers[1:-1], default=1) >= 1:
                result.add(tuple(layers))
    return result


def _by_cost(layer_s: FloatArray, ends_s: FloatArray) -> tuple[int, ...]:
    """Returns the partition whose busiest virtual stage has least to do, with at least one layer on each stage between
    the ends; of equals the one with more layers on later stages, which have fewer micro-batches in flight.

    Exact, by dynamic programming: busiest[k] is the least seconds of the busiest of the stages so far if they hold the
    first k layers.
    """
    stages, num_layers = len(ends_s), len(layer_s)
    total = np.concatenate([[0.0], np.cumsum(layer_s)])
    # span[i, j]: the seconds of layers i to j - 1; infinite where a stage may not hold them.
    span = total[None, :] - total[:, None]
    empty_too = np.where(np.tri(num_layers + 1, k=-1, dtype=np.bool_), np.inf, span)
    one_at_least = np.where(np.tri(num_layers + 1, dtype=np.bool_), np.inf, span)
    busiest = empty_too[0] + ends_s[0]
    # By stage: the first layer that it holds if the layers so far end at j.
    firsts: list[IntArray] = []
    for stage in range(1, stages):
        chunk = (one_at_least if stage < stages - 1 else empty_too) + ends_s[stage]
        so_far = np.maximum(busiest[:, None], chunk)
        firsts.append(so_far.argmin(axis=0))
        busiest = so_far.min(axis=0)
    # Back from the last stage, which ends at the last layer.
    bounds = [num_layers]
    for first in reversed(firsts):
        bounds.append(int(first[bounds[-1]]))
    return tuple(int(one) for one in np.diff([0, *reversed(bounds)]))
