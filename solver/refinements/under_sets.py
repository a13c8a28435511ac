"""Plans with parts of their layers run again, under many sets of parts at once.

Sets differ in what layers save, hold and run again, and in nothing else of a plan: layers are written down
once for all sets, and one table holds the memory of every plan under every set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import CORE_ATTENTION, Recompute
from solver.estimate import Estimate
from solver.layers import LayerBytes, LayerTable, RecomputePolicy
from solver.memory.stage_memory import StageBytes, Tables, stage_memory
from solver.plans.plan_table import PlanTable
from solver.question import Question
from spec.arrays import BoolArray, IntArray, bools, ints

Set = tuple[str, ...]
"""Names of parts, of ops.recompute.modules or the attention core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderSets:
    """``plain`` plans, in which nothing runs again, under every one of ``sets``: the layers of each, and what memory is
    counted of, and memory, of all plans under the first, then under the second ..."""

    plain: Estimate
    sets: Sequence[Set]
    layers: Sequence[LayerTable]
    tables: Tables
    bytes: StageBytes

    def fits(self, limit_bytes: float) -> BoolArray:
        """Whether each plan's worst stage needs at most so much under each set, of shape (sets, plans)."""
        needed = np.maximum.reduceat(self.bytes.cost.needed_bytes, self.tables.stages.starts)
        return bools(needed <= limit_bytes).reshape(len(self.sets), len(self.plain.plans))

    def table(self, place: int, plans: IntArray) -> Estimate:
        """These plans under the set at that place."""
        rows = ints(plans + place * len(self.plain.plans))
        return Estimate(
            plans=running_again(self.plain.plans.take(plans), self.sets[place]),
            layers=self.layers[place].of_plans(plans),
            stages=self.tables.stages.take(rows),
            bytes=self.bytes.take(self.tables.stages.rows(rows)),
        )


def under_sets(question: Question, plain: Estimate, sets: Sequence[Set]) -> UnderSets:
    """The plans of ``plain`` under each of ``sets``, of which there is one at least."""
    layers = [
        plain.layers.under(RecomputePolicy(*mode_and_modules(one), plain.layers.policy.offloaded))
        for one in sets
    ]
    count, layouts = len(plain.plans), len(plain.layers.layout)
    every = ints(np.tile(np.arange(count), len(sets)))
    tables = Tables(
        plans=plain.plans.take(every),
        kinds=[LayerBytes.stacked(kind) for kind in zip(*(one.bytes for one in layers), strict=True)],
        row=ints(plain.layers.row[every] + np.repeat(np.arange(len(sets)), count) * layouts),
        stages=plain.stages.take(every),
        cluster=question.cluster,
    )
    found = stage_memory(question.model, question.job, tables)
    return UnderSets(plain=plain, sets=sets, layers=layers, tables=tables, bytes=found)


def running_again(plain: PlanTable, chosen: Set) -> PlanTable:
    """The plans with the parts of a set run again."""
    mode, modules = mode_and_modules(chosen)
    return replace(plain, recompute=mode, recompute_modules=modules)


def mode_and_modules(chosen: Set) -> tuple[Recompute, Set]:
    """The recompute mode and the modules that a set stands for."""
    mode = Recompute.SELECTIVE if CORE_ATTENTION in chosen else Recompute.NONE
    return mode, tuple(name for name in chosen if name != CORE_ATTENTION)
