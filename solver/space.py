"""The search space: every combination of degrees, cut down by the rules as it grows."""

from dataclasses import dataclass

import numpy as np

from ops.layout import Layout
from ops.recompute import Recompute
from ops.strategies.sharding import StrategyName
from solver.plans import PlanTable
from solver.rules import RULES, Draft
from solver.schedules import Schedule
from spec.arrays import IntArray, ints
from spec.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What to try: the degrees by column, and the choices that change the formulas' shape."""

    degrees: dict[str, tuple[int, ...]]
    strategies: tuple[StrategyName, ...]
    recomputes: tuple[Recompute, ...]

    @property
    def blocks(self) -> tuple[tuple[StrategyName, Recompute], ...]:
        """Every pair of strategy and recompute mode."""
        return tuple((s, r) for s in self.strategies for r in self.recomputes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
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


def full_space(model: ModelSpec, job: JobSpec) -> Space:
    """Every plan the formulas can price for this model and job under its framework preset."""
    heads = max(run.block.attention.num_heads for run in model.blocks)
    experts = max((run.block.moe.num_experts for run in model.blocks if run.block.moe), default=1)
    world = job.world_size
    # With flash attention there is no score matrix whose recomputation would save anything.
    middle = () if job.flash_attention else (Recompute.SELECTIVE,)
    recomputes = (Recompute.NONE, *middle, Recompute.FULL)
    return Space(
        degrees={
            "cp": (1,),
            "pp": tuple(d for d in divisors(world) if d <= model.num_layers),
            "tp": tensor_degrees(min(world, heads)),
            "wp": tensor_degrees(world),
            "ep": divisors(experts),
            "zero_stage": job.preset.zero_stages,
            "zero_size": divisors(world),
            "micro_batch": divisors(job.global_batch_sequences),
            "vpp": (1, 2, 4, 8) if job.preset.interleaves else (1,),
        },
        strategies=tuple(StrategyName(name) for name in job.preset.strategies),
        recomputes=recomputes,
    )


def enumerate_block(
    model: ModelSpec,
    job: JobSpec,
    cluster: ClusterSpec,
    space: Space,
    block: tuple[StrategyName, Recompute],
) -> Block:
    """All plans of one block. Columns are added one by one and each rule runs as soon as it can; a
    prefix that falls takes every plan it would have grown into with it, and they are counted."""
    strategy, recompute = block
    degrees = dict(space.degrees)
    if strategy is not StrategyName.ISP:
        degrees["wp"] = (1,)
    names = list(degrees)
    sizes = [len(degrees[name]) for name in names]
    rejected: dict[str, int] = {}
    columns: dict[str, IntArray] = {}
    for index, name in enumerate(names):
        columns = _grow(columns, name, degrees[name])
        to_come = int(np.prod(sizes[index + 1 :], dtype=np.int64))
        for rule in RULES:
            if rule.after != name:
                continue
            draft = Draft(model=model, job=job, cluster=cluster, strategy=strategy, columns=columns)
            keep = rule.keep(draft)
            fallen = int(np.count_nonzero(~keep))
            if fallen:
                rejected[rule.reason] = rejected.get(rule.reason, 0) + fallen * to_come
                columns = {key: value[keep] for key, value in columns.items()}
    return Block(
        plans=_table(job, columns, strategy, recompute),
        seen=int(np.prod(sizes, dtype=np.int64)),
        rejected=rejected,
    )


def _grow(columns: dict[str, IntArray], name: str, values: tuple[int, ...]) -> dict[str, IntArray]:
    """Every row once for each of the new column's values."""
    if not columns:
        return {name: ints(values)}
    rows = len(next(iter(columns.values())))
    grown = {key: np.repeat(value, len(values)) for key, value in columns.items()}
    return grown | {name: np.tile(ints(values), rows)}


def _table(
    job: JobSpec, columns: dict[str, IntArray], strategy: StrategyName, recompute: Recompute
) -> PlanTable:
    """The surviving rows as plans; dp fills the world and num_micro the batch."""
    dp = job.world_size // (columns["tp"] * columns["cp"] * columns["pp"])
    degrees = {name: column for name, column in columns.items() if name != "vpp"}
    layout = Layout(world_size=job.world_size, dp=dp, etp=np.ones_like(dp), **degrees)
    return PlanTable(
        strategy=strategy,
        recompute=recompute,
        schedule=Schedule.ONE_F_ONE_B,
        preset=job.preset.name,
        layout=layout,
        vpp=columns["vpp"],
        num_micro=job.global_batch_sequences // (dp * columns["micro_batch"]),
        num_recompute_layers=np.zeros_like(dp),
    )
