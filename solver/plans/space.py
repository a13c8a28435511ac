"""The search space: every combination of degrees, reduced by the rules while it grows.

A block is a strategy, a recompute mode and a schedule, which choose the formulas. Within a block plans are a table that
``enumerate_block`` grows column by column: each value of the next column times every row, then the rules that only need
the columns so far. Most plans fall with a short prefix and are never made, but counted."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ops.layout import Layout
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.plans.constraints import MODULE_KEYS, constraint_rules, degrees_under, modules_under
from solver.plans.plan_columns import PlanColumns
from solver.plans.plan_table import PlanTable
from solver.plans.rules import MOST_CHUNKS, RULES, UNEQUAL, backward_can_split, backward_runs_alone, nearly_equal
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
# Columns that a plan or a constraint may specify, and that no search varies by itself.
FIXED_COLUMNS: dict[str, tuple[float, ...]] = {"etp": (1,), "optimizer_offload": (0.0,), "offloaded_layers": (0,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search tries: the degrees by column, the choices of a block, and the constraints on plans."""

    degrees: dict[str, tuple[float, ...]]
    strategies: tuple[str, ...]
    recomputes: tuple[Recompute, ...]
    schedules: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B,)
    constraints: Constraints = NO_CONSTRAINTS

    @property
    def blocks(self) -> tuple[Shape, ...]:
        """Returns every combination of strategy, recompute mode and schedule."""
        return tuple(product(self.strategies, self.recomputes, self.schedules))


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumeration:
    """The plans of one block, how many there were before the rules, and how many were rejected, by reason."""

    plans: PlanTable
    seen: int
    rejected: dict[str, int]


def divisors(number: int) -> tuple[int, ...]:
    """Returns all divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def tensor_degrees(limit: int) -> tuple[int, ...]:
    """Returns 1, 2, 4, 6, 8, then multiples of 8, up to ``limit``: InternEvo's pattern."""
    small = [d for d in (1, 2, 4, 6, 8) if d <= limit]
    return (*small, *range(16, limit + 1, 8))


def full_space(model: ModelSpec, job: JobSpec, constraints: Constraints = NO_CONSTRAINTS) -> Space:
    """Returns every plan that the formulas can price for this model and job under its framework preset and the
    ``constraints``."""
    heads = min(model.cut_heads, default=job.world_size)
    experts = max((run.block.moe.num_experts for run in model.blocks if run.block.moe), default=1)
    world = job.world_size
    # With flash attention there is no score matrix whose recomputation would save anything.
    saves = bool(job.preset.recomputation.selective) and not (
        job.flash_attention and job.preset.recomputation.selective == "core_attn"
    )
    selective = (Recompute.SELECTIVE,) if saves else ()
    recomputes = (Recompute.NONE, *selective, Recompute.FULL)
    named = {bound.key for bound in constraints.bounds}
    has_stages = job.preset.pipeline.searched or not named.isdisjoint(("pp", "vpp", "schedule"))
    degrees: dict[str, tuple[float, ...]] = {
        "cp": _context_degrees(job),
        "pp": tuple(d for d in divisors(world) if d <= model.num_layers) if has_stages else (1,),
        "tp": tensor_degrees(min(world, heads)),
        "wp": tensor_degrees(world),
        "ep": divisors(experts),
        "zero_stage": job.preset.data_parallel.zero_stages,
        "zero_size": divisors(world),
        "micro_batch": divisors(job.global_batch_sequences),
        "vpp": _chunk_numbers(model, job),
    }
    return Space(
        degrees=degrees | degrees_under(constraints, FIXED_COLUMNS | degrees),
        strategies=job.preset.tensor_parallel.strategies,
        recomputes=recomputes,
        schedules=_schedules(job),
        constraints=constraints,
    )


def _schedules(job: JobSpec) -> tuple[Schedule, ...]:
    """Returns the framework's schedules, without those that no strategy can run in this job."""
    copies = [STRATEGIES[name].traits.copies for name in job.preset.tensor_parallel.strategies]
    axes = job.preset.tensor_parallel.axes
    schedules = (SCHEDULES[name] for name in job.preset.pipeline.schedules)
    possible = (
        schedule
        for schedule in schedules
        if backward_can_split(job, schedule) and ("pp" in axes or schedule is Schedule.ONE_F_ONE_B)
    )
    return tuple(schedule for schedule in possible if any(backward_runs_alone(job, schedule, of) for of in copies))


def _context_degrees(job: JobSpec) -> tuple[int, ...]:
    """Returns the powers of two that leave pieces of a sequence of at least SHORTEST_PIECE_TOKENS."""
    most = job.seq_len // SHORTEST_PIECE_TOKENS if "cp" in job.preset.tensor_parallel.axes else 1
    return tuple(2**power for power in range(max(most, 1).bit_length()))


def _chunk_numbers(model: ModelSpec, job: JobSpec) -> tuple[int, ...]:
    """Returns the numbers of chunks that divide the layers equally for some depth, with or without embedding and loss
    counted as layers; and, where a depth has none and the framework takes a layout, powers of two."""
    pipeline = job.preset.pipeline
    # ZB-V and DualPipe-V have two chunks a stage.
    folded = {2} if any(SCHEDULES[name].traits.chunks == (2, 2) for name in pipeline.schedules) else set()
    if not pipeline.interleaves:
        return tuple(sorted({1} | folded))
    layer_counts = [model.num_layers + ends for ends in range(3 if pipeline.uneven_chunks else 1)]
    numbers = {1} | folded
    for pp in (depth for depth in divisors(job.world_size) if 1 < depth <= model.num_layers):
        equal = {n for n in range(2, MOST_CHUNKS + 1) if any(layers % (pp * n) == 0 for layers in layer_counts)}
        if not equal and pipeline.uneven_chunks == "layout":
            equal = {n for n in UNEQUAL if nearly_equal(model.num_layers, ints(pp * n))[0]}
        numbers |= equal
    return tuple(sorted(numbers))


def enumerate_block(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, space: Space, block: Shape) -> Enumeration:
    """Returns the plans of one block. Columns are added one by one and each rule runs as soon as it can; a rejected
    prefix counts for every plan that it would have grown into."""
    strategy, recompute, schedule = block
    degrees = FIXED_COLUMNS | space.degrees
    if not STRATEGIES[strategy].traits.copies.has_weight_groups:
        degrees["wp"] = (1,)
    names = list(degrees)
    sizes = [len(degrees[name]) for name in names]
    rejected: dict[str, int] = {}
    columns: Columns = {}
    rules = (*constraint_rules(space.constraints), *RULES)
    modules: dict[str, Any] = {key: modules_under(space.constraints, key) for key in MODULE_KEYS}
    for index, name in enumerate(names):
        columns = _grow(columns, name, degrees[name])
        # Plans that each row of the columns so far would grow into.
        plans_of_row = int(np.prod(sizes[index + 1 :], dtype=np.int64))
        for rule in rules:
            if rule.after != name:
                continue
            plans = PlanColumns(
                model=model,
                job=job,
                cluster=cluster,
                strategy=strategy,
                columns=columns,
                recompute=recompute,
                schedule=schedule,
                **modules,
            )
            keep = rule.keeps(plans)
            count = int(np.count_nonzero(~keep))
            if count:
                rejected[rule.reason] = rejected.get(rule.reason, 0) + count * plans_of_row
                columns = {key: value[keep] for key, value in columns.items()}
    return Enumeration(
        plans=replace(_table(job, columns, block), **modules),
        seen=int(np.prod(sizes, dtype=np.int64)),
        rejected=rejected,
    )


def _grow(columns: Columns, name: str, values: tuple[float, ...]) -> Columns:
    """Returns every row once for each of the new column's values."""
    rows = len(next(iter(columns.values()))) if columns else 1
    earlier: Columns = {key: np.repeat(value, len(values)) for key, value in columns.items()}
    return earlier | {name: np.tile(np.asarray(values), rows)}


def _table(job: JobSpec, columns: Columns, block: Shape) -> PlanTable:
    """Returns the rows as plans; dp fills the world and num_micro the batch."""
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
