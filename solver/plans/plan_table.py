"""Plans: a table of N of them, or one in plain numbers."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ops.context import Sharding
from ops.layout import Layout
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.plans.schedules import Schedule
from spec.arrays import FloatArray, IntArray, floats, ints
from spec.settings.plan import WrittenPlan, plan_settings

# Of the table's keys those that a priced plan calls otherwise.
NAMES = {"recompute_layers": "num_recompute_layers", "layout": "stage_layout"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One parallel plan in plain numbers (spec.settings.plan says what each means); the relations between
    degrees are Layout's. ``num_recompute_layers`` of every chunk of a stage are recomputed with Recompute.BLOCK.
    """

    strategy: str
    preset: str
    recompute: Recompute = Recompute.NONE
    schedule: Schedule = Schedule.ONE_F_ONE_B
    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    wp: int = 1
    zero_stage: int = 0
    zero_size: int = 1
    micro_batch: int = 1
    num_micro: int = 1
    num_recompute_layers: int = 0
    recompute_modules: tuple[str, ...] = ()
    stage_layout: str = ""
    optimizer_offload: float = 0.0
    offloaded_layers: int = 0
    offload_modules: tuple[str, ...] = ()

    @property
    def sharding(self) -> Sharding:
        """The strategy that ``strategy`` names."""
        return STRATEGIES[self.strategy]

    @property
    def written(self) -> WrittenPlan:
        """Every key of the table as a user writes it (``python simulation_train_formulaic.py --plan``)."""
        named: dict[str, Any] = {key: getattr(self, NAMES.get(key, key)) for key in plan_settings()}
        partly = self.recompute is Recompute.BLOCK
        return replace(
            WrittenPlan(**named),
            recompute="full" if partly else named["recompute"].value,
            recompute_layers=self.num_recompute_layers if partly else None,
            schedule=self.schedule.value,
            layout=self.stage_layout or None,
        )

    @property
    def world_size(self) -> int:
        """tp * cp * dp * pp."""
        return self.tp * self.cp * self.dp * self.pp

    def label(self) -> str:
        """The plan in one line, degrees of 1 left out."""
        names = ("tp", "cp", "pp", "vpp", "ep", "etp", "wp", "dp")
        shown = [f"{name}{getattr(self, name)}" for name in names if getattr(self, name) > 1]
        if self.zero_size > 1:
            deep = f"{self.zero_stage}/" if self.zero_stage > 1 else ""
            shown.append(f"zero{deep}{self.zero_size}")
        shown += [f"mb{self.micro_batch}x{self.num_micro}"]
        if self.schedule is not Schedule.ONE_F_ONE_B:
            shown.append(self.schedule.value)
        if self.stage_layout:
            shown.append(f"layout={self.stage_layout}")
        if self.recompute is not Recompute.NONE:
            layers = self.num_recompute_layers or ""
            shown.append(f"recompute-{self.recompute.value}{layers}")
        if self.recompute_modules:
            shown.append(f"recompute-{'+'.join(self.recompute_modules)}")
        if self.optimizer_offload:
            shown.append(f"optimizer_offload={self.optimizer_offload:g}")
        if self.offloaded_layers:
            shown.append(f"offloaded_layers={self.offloaded_layers}")
        if self.offload_modules:
            shown.append(f"offload-{'+'.join(self.offload_modules)}")
        return " ".join([self.strategy, *shown])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """N plans that share strategy, recompute mode and modules, what of layers waits on the host, schedule and framework
    preset.

    Those choose the shape of the formulas, and so does an explicit ``stage_layout``
    (spec.pipeline_layout; "" deals layers by rule); every other column is a 1-D int64 or float64 array.
    ``num_recompute_layers`` counts only with Recompute.BLOCK.
    """

    strategy: str
    recompute: Recompute
    schedule: Schedule
    preset: str
    layout: Layout
    vpp: IntArray
    num_micro: IntArray
    num_recompute_layers: IntArray
    recompute_modules: tuple[str, ...] = ()
    offload_modules: tuple[str, ...] = ()
    stage_layout: str = ""

    def __len__(self) -> int:
        return len(self.layout)

    @property
    def sharding(self) -> Sharding:
        """The strategy that ``strategy`` names."""
        return STRATEGIES[self.strategy]

    @property
    def columns(self) -> dict[str, IntArray | FloatArray]:
        """Every column by the name that Plan gives it."""
        degrees = {name: getattr(self.layout, name) for name in LAYOUT_COLUMNS}
        return degrees | {name: getattr(self, name) for name in OWN_COLUMNS}

    def same_stages(self, other: "PlanTable") -> bool:
        """Returns whether the stages of these plans hold what those of the other table's do, plan by plan: nothing
        else decides it but how many layers are recomputed where only some are."""
        words = [
            (table.schedule, table.preset, table.stage_layout, table.recompute is Recompute.BLOCK)
            for table in (self, other)
        ]
        columns = (
            (self.layout.pp, other.layout.pp),
            (self.vpp, other.vpp),
            (self.num_recompute_layers, other.num_recompute_layers),
        )
        return words[0] == words[1] and all(np.array_equal(table, like) for table, like in columns)

    def take(self, rows: IntArray) -> "PlanTable":
        """The rows asked for, in that order."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in OWN_COLUMNS}
        return replace(self, layout=self.layout.take(rows), **columns)

    def plan(self, row: int) -> Plan:
        """One row in plain numbers."""
        values: dict[str, Any] = {}
        for name in CONSTANTS:
            values[name] = getattr(self, name)
        for name in LAYOUT_COLUMNS:
            values[name] = getattr(self.layout, name)[row].item()
        for name in OWN_COLUMNS:
            values[name] = getattr(self, name)[row].item()
        return Plan(**values)

    @staticmethod
    def of(*plans: Plan) -> "PlanTable":
        """A table with a row a plan; the plans differ in columns alone."""
        shared: dict[str, Any] = {name: getattr(plans[0], name) for name in CONSTANTS}
        assert all(getattr(plan, name) == shared[name] for plan in plans for name in shared)

        columns: dict[str, Any] = {}
        for name in (*LAYOUT_COLUMNS, *OWN_COLUMNS):
            values = tuple(getattr(plan, name) for plan in plans)
            columns[name] = floats(values) if isinstance(values[0], float) else ints(values)
        degrees = {name: columns.pop(name) for name in LAYOUT_COLUMNS}
        return PlanTable(layout=Layout(world_size=plans[0].world_size, **degrees), **columns, **shared)


LAYOUT_COLUMNS = tuple(column.name for column in fields(Layout) if column.name != "world_size")
OWN_COLUMNS = tuple(column.name for column in fields(PlanTable) if column.type is IntArray)
CONSTANTS = tuple(column.name for column in fields(PlanTable) if column.name not in ("layout", *OWN_COLUMNS))
