"""Plans of which only some columns exist yet: what a rule reads while the search space grows column by column."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from ops.context import Sharding, Traits
from ops.layout import Layout, ranks_and_stride
from ops.op import Owner
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.plans.plan_table import PlanTable
from solver.plans.schedules import Schedule
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec
from spec.frameworks import FrameworkPreset
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanColumns:
    """N plans by the columns that exist so far, each of length N; whole numbers but for optimizer_offload."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    strategy: str
    columns: Mapping[str, IntArray | FloatArray]
    recompute: Recompute = Recompute.NONE
    recompute_modules: tuple[str, ...] = ()
    offload_modules: tuple[str, ...] = ()
    schedule: Schedule = Schedule.ONE_F_ONE_B

    def __getitem__(self, name: str) -> IntArray:
        return cast(IntArray, self.columns[name])

    @property
    def dp(self) -> IntArray:
        """Returns the data-parallel ranks: what tp, cp and pp leave of the world."""
        return self.job.world_size // (self["tp"] * self["cp"] * self["pp"])

    @property
    def preset(self) -> FrameworkPreset:
        """Returns the framework's preset."""
        return self.job.preset

    @property
    def sharding(self) -> Sharding:
        """Returns the strategy."""
        return STRATEGIES[self.strategy]

    @property
    def traits(self) -> Traits:
        """Returns the strategy's traits."""
        return self.sharding.traits

    @property
    def stage_ranks(self) -> IntArray:
        """Returns the ranks of one pipeline stage."""
        return self["tp"] * self["cp"] * self.dp

    @property
    def num_micro(self) -> IntArray:
        """Returns the micro-batches of a step, rounded down."""
        return self.sequences_per_rank // self["micro_batch"]

    @property
    def layout(self) -> Layout:
        """Returns the layouts by the columns so far; those to come are 1 (also zero_stage, on which no group
        depends)."""
        ones = np.broadcast_to(np.int64(1), self["tp"].shape)
        names = [field.name for field in fields(Layout) if field.name not in ("world_size", "dp")]
        columns: dict[str, Any] = {name: self.columns.get(name, ones) for name in names}
        return Layout(world_size=self.job.world_size, dp=self.dp, **columns)

    def copies(self, owner: Owner) -> IntArray:
        """Returns the ranks that hold the same weights of ``owner``."""
        ranks, _ = ranks_and_stride(self.sharding.traits.copies.axes(owner)[0], self.layout)
        return ranks

    @property
    def sequences_per_rank(self) -> IntArray:
        """Returns the sequences of one data-parallel rank in a step, rounded down."""
        return self.job.global_batch_sequences // self.dp

    @property
    def experts(self) -> int:
        """Returns the routed experts of the model's largest expert block, 0 for a dense model."""
        return max((run.block.moe.num_experts for run in self.model.blocks if run.block.moe), default=0)


def plan_columns(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, plans: PlanTable) -> PlanColumns:
    """Returns whole plans as solver.plans.rules reads them."""
    return PlanColumns(
        model=model,
        job=job,
        cluster=cluster,
        strategy=plans.strategy,
        columns=plans.columns,
        recompute=plans.recompute,
        recompute_modules=plans.recompute_modules,
        offload_modules=plans.offload_modules,
        schedule=plans.schedule,
    )
