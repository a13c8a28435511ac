"""The search space: every combination of degrees, cut down by the rules as it grows."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ops.layout import Layout
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.plans.constraints import SHARED, constraint_rules, fixed_degrees, fixed_modules
from solver.plans.plan_columns import PlanColumns
from solver.plans.plan_table import PlanTable
from solver.plans.rules import (
    MOST_CHUNKS,
    RULES,
    UNEQUAL,
    backward_runs_alone,
    nearly_equal,
    splits_no_compiled,
)
from solver.plans.schedules import SCHEDULES, Schedule
from spec.arrays import ints
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.settings.constraints import NO_CONSTRAINTS, Constraints

Shape = tuple[str, Recompute, Schedule]

# Assumption: shorter pieces of a sequence are never worth their messages; a plan may still specify them.
SHORTEST_PIECE_TOKENS = 4096

Columns = dict[str, Any]
# Columns that can be typed and that no search varies.
UNSEARCHED: dict[str, tuple[float, ...]] = {
    "etp": (1,),
    "optimizer_offload": (0.0,),
    "offloaded_layers": (0,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What to try: the degrees by column, the choices that change the formulas' shape, and what is demanded
    of plans.
    """

    degrees: dict[str, tuple[float, ...]]
    strategies: tuple[str, ...]
    recomputes: tuple[Recompute, ...]
    schedules: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B,)
    constraints: Constraints = NO_CONSTRAINTS

    @property
    def blocks(self) -> tuple[Shape, ...]:
        """Every combination of strategy, recompute mode and schedule."""
        return tuple(product(self.strategies, self.recomputes, self.schedules))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumeratedPlans:
    """Plans of one strategy and recompute mode, and why the others fell: reason -> plans."""

    plans: PlanTable
    seen: int
    rejected: dict[str, int]


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def tensor_degrees(limit: int) -> tuple[int, ...]:
    """1, 2, 4, 6, 8, then multiples of 8: InternEvo's pattern."""
    small = [d for d in (1, 2, 4, 6, 8) if d <= limit]
    return (*small, *range(16, limit + 1, 8))


def full_space(model: ModelSpec, job: JobSpec, constraints: Constraints = NO_CONSTRAINTS) -> Space:
    """Every plan the formulas can price for this model and job under its framework preset and the ``constraints``."""
    heads = min(model.cut_heads, default=job.world_size)
    experts = max((run.block.moe.num_experts for run in model.blocks if run.block.moe), default=1)
    world = job.world_size
    # With flash attention there is no score matrix whose recomputation would save anything.
    spares = bool(job.preset.recomputation.selective) and not (
        job.flash_attention and job.preset.recomputation.selective == "core_attn"
    )
    middle = (Recompute.SELECTIVE,) if spares else ()
    recomputes = (Recompute.NONE, *middle, Recompute.FULL)
    degrees: dict[str, tuple[float, ...]] = {
        "cp": _context_degrees(job),
        "pp": tuple(d for d in divisors(world) if d <= model.num_layers),
        "tp": tensor_degrees(min(world, heads)),
        "wp": tensor_degrees(world),
        "ep": divisors(experts),
        "zero_stage": job.preset.data_parallel.zero_stages,
        "zero_size": divisors(world),
        "micro_batch": divisors(job.global_batch_sequences),
        "vpp": _chunk_numbers(model, job),
    }
    return Space(
        degrees=degrees | fixed_degrees(constraints, UNSEARCHED | degrees),
        strategies=job.preset.tensor_parallel.strategies,
        recomputes=recomputes,
        schedules=_schedules(job),
        constraints=constraints,
    )


def _schedules(job: JobSpec) -> tuple[Schedule, ...]:
    """The framework's, without those that no strategy runs in this job."""
    copies = [STRATEGIES[name].traits.copies for name in job.preset.tensor_parallel.strategies]
    axes = job.preset.tensor_parallel.axes
    schedules = (SCHEDULES[name] for name in job.preset.pipeline.schedules)
    split = (
        schedule
        for schedule in schedules
        if splits_no_compiled(job, schedule) and ("pp" in axes or schedule is Schedule.ONE_F_ONE_B)
    )
    return tuple(schedule for schedule in split if any(backward_runs_alone(job, schedule, of) for of in copies))


def _context_degrees(job: JobSpec) -> tuple[int, ...]:
    """Powers of two that leave pieces of at least SHORTEST_PIECE_TOKENS."""
    most = job.seq_len // SHORTEST_PIECE_TOKENS if "cp" in job.preset.tensor_parallel.axes else 1
    return tuple(2**power for power in range(max(most, 1).bit_length()))


def _chunk_numbers(model: ModelSpec, job: JobSpec) -> tuple[int, ...]:
    """Numbers of chunks that some depth deals equally, with or without the ends of the model counted as layers;
    and, where a depth has none and stages can be written out, powers of two."""
    pipeline = job.preset.pipeline
    turning = {2} if any(SCHEDULES[name].traits.chunks == (2, 2) for name in pipeline.schedules) else set()
    if not pipeline.interleaves:
        return tuple(sorted({1} | turning))
    counted = [model.num_layers + ends for ends in range(3 if pipeline.uneven_chunks else 1)]
    numbers = {1} | turning
    for pp in (depth for depth in divisors(job.world_size) if 1 < depth <= model.num_layers):
        equal = {n for n in range(2, MOST_CHUNKS + 1) if any(layers % (pp * n) == 0 for layers in counted)}
        if not equal and pipeline.uneven_chunks == "layout":
            equal = {n for n in UNEQUAL if nearly_equal(model.num_layers, ints(pp * n))[0]}
        numbers |= equal
    return tuple(sorted(numbers))


def enumerate_block(
    model: ModelSpec,
    job: JobSpec,
    cluster: ClusterSpec,
    space: Space,
    block: Shape,
) -> EnumeratedPlans:
    """All plans of one block. Columns are added one by one and each rule runs as soon as it can; a
    prefix that falls takes every plan it would have grown into with it, and they are counted."""
    strategy, recompute, schedule = block
    degrees = UNSEARCHED | space.degrees
    if not STRATEGIES[strategy].traits.copies.has_weight_groups:
        degrees["wp"] = (1,)
    names = list(degrees)
    sizes = [len(degrees[name]) for name in names]
    rejected: dict[str, int] = {}
    columns: Columns = {}
    rules = (*constraint_rules(space.constraints), *RULES)
    modules: dict[str, Any] = {key: fixed_modules(space.constraints, key) for key in SHARED}
    for index, name in enumerate(names):
        columns = _grow(columns, name, degrees[name])
        to_come = int(np.prod(sizes[index + 1 :], dtype=np.int64))
        for rule in rules:
            if rule.after != name:
                continue
            draft = PlanColumns(
                model=model,
                job=job,
                cluster=cluster,
                strategy=strategy,
                columns=columns,
                recompute=recompute,
                schedule=schedule,
                **modules,
            )
            keep = rule.keeps(draft)
            fallen = int(np.count_nonzero(~keep))
            if fallen:
                rejected[rule.reason] = rejected.get(rule.reason, 0) + fallen * to_come
                columns = {key: value[keep] for key, value in columns.items()}
    return EnumeratedPlans(
        plans=replace(_table(job, columns, block), **modules),
        seen=int(np.prod(sizes, dtype=np.int64)),
        rejected=rejected,
    )


def _grow(columns: Columns, name: str, values: tuple[float, ...]) -> Columns:
    """Every row once for each of the new column's values."""
    rows = len(next(iter(columns.values()))) if columns else 1
    grown: Columns = {key: np.repeat(value, len(values)) for key, value in columns.items()}
    return grown | {name: np.tile(np.asarray(values), rows)}


def _table(job: JobSpec, columns: Columns, block: Shape) -> PlanTable:
    """The surviving rows as plans; dp fills the world and num_micro the batch."""
    strategy, recompute, schedule = block
    dp = job.world_size // (columns["tp"] * columns["cp"] * columns["pp"])
    degrees = {name: column for name, column in columns.items() if name != "vpp"}
    layout = Layout(world_size=job.world_size, dp=dp, **degrees)
    return PlanTable(
        strategy=strategy,
        recompute=recompute,
        schedule=schedule,
        preset=job.preset.name,
        layout=layout,
        vpp=columns["vpp"],
        num_micro=job.global_batch_sequences // (dp * columns["micro_batch"]),
        num_recompute_layers=np.zeros_like(dp),
    )
