"""Plans: a table of N of them (``PlanTable``), or one in plain numbers (``Plan``)."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ops.context import Sharding
from ops.layout import Layout
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.plans.schedules import Schedule
from spec.arrays import FloatArray, IntArray, floats, ints
from spec.settings.plan import PlanSettings, plan_settings

# Keys of a plan as users write it whose fields here have another name.
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
        """Returns the strategy that ``strategy`` names."""
        return STRATEGIES[self.strategy]

    @property
    def settings(self) -> PlanSettings:
        """Returns every key of the plan as a user writes it (``python simulation_train_formulaic.py --plan``)."""
        values: dict[str, Any] = {key: getattr(self, NAMES.get(key, key)) for key in plan_settings()}
        # Recompute.BLOCK is a full recompute of some layers.
        partial = self.recompute is Recompute.BLOCK
        return replace(
            PlanSettings(**values),
            recompute="full" if partial else values["recompute"].value,
            recompute_layers=self.num_recompute_layers if partial else None,
            schedule=self.schedule.value,
            layout=self.stage_layout or None,
        )

    @property
    def world_size(self) -> int:
        """Returns tp * cp * dp * pp."""
        return self.tp * self.cp * self.dp * self.pp

    def label(self) -> str:
        """Returns the plan in one line, without degrees of 1: ``fsp tp8 pp4 dp2 zero2 mb1x16 recompute-full``."""
        names = ("tp", "cp", "pp", "vpp", "ep", "etp", "wp", "dp")
        words = [f"{name}{getattr(self, name)}" for name in names if getattr(self, name) > 1]
        if self.zero_size > 1:
            stage = f"{self.zero_stage}/" if self.zero_stage > 1 else ""
            words.append(f"zero{stage}{self.zero_size}")
        words += [f"mb{self.micro_batch}x{self.num_micro}"]
        if self.schedule is not Schedule.ONE_F_ONE_B:
            words.append(self.schedule.value)
        if self.stage_layout:
            words.append(f"layout={self.stage_layout}")
        if self.recompute is not Recompute.NONE:
            layers = self.num_recompute_layers or ""
            words.append(f"recompute-{self.recompute.value}{layers}")
        if self.recompute_modules:
            words.append(f"recompute-{'+'.join(self.recompute_modules)}")
        if self.optimizer_offload:
            words.append(f"optimizer_offload={self.optimizer_offload:g}")
        if self.offloaded_layers:
            words.append(f"offloaded_layers={self.offloaded_layers}")
        if self.offload_modules:
            words.append(f"offload-{'+'.join(self.offload_modules)}")
        return " ".join([self.strategy, *words])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """N plans that share strategy, recompute mode and modules, offloaded modules, schedule and framework preset.

    Those choose the shape of the formulas, and so does an explicit ``stage_layout`` (spec.pipeline_layout; ""
    partitions layers by the framework's rule); every other column is a 1-D int64 or float64 array.
    ``num_recompute_layers`` counts only with Recompute.BLOCK."""

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
        """Returns the strategy that ``strategy`` names."""
        return STRATEGIES[self.strategy]

    @property
    def columns(self) -> dict[str, IntArray | FloatArray]:
        """Returns every column by the name that Plan gives it."""
        degrees = {name: getattr(self.layout, name) for name in LAYOUT_COLUMNS}
        return degrees | {name: getattr(self, name) for name in OWN_COLUMNS}

    def same_stages(self, other: "PlanTable") -> bool:
        """Returns whether the stages of these plans hold the same layers as those of the other table, plan by plan."""
        words = [
            (table.schedule, table.preset, table.stage_layout, table.recompute is Recompute.BLOCK)
            for table in (self, other)
        ]
        # With partial recomputation recomputed layers are a column of their own (solver.pipeline.stages.stage_table).
        columns = (
            (self.layout.pp, other.layout.pp),
            (self.vpp, other.vpp),
            (self.num_recompute_layers, other.num_recompute_layers),
        )
        return words[0] == words[1] and all(np.array_equal(table, like) for table, like in columns)

    def take(self, rows: IntArray) -> "PlanTable":
        """Returns these rows, in that order."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in OWN_COLUMNS}
        return replace(self, layout=self.layout.take(rows), **columns)

    def plan(self, row: int) -> Plan:
        """Returns one row in plain numbers."""
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
        """Returns a table with one row for each of the plans, which differ in columns alone."""
        shared: dict[str, Any] = {name: getattr(plans[0], name) for name in CONSTANTS}
        assert all(getattr(plan, name) == shared[name] for plan in plans for name in shared)

        columns: dict[str, Any] = {}
        for name in (*LAYOUT_COLUMNS, *OWN_COLUMNS):
            values = tuple(getattr(plan, name) for plan in plans)
            columns[name] = floats(values) if isinstance(values[0], float) else ints(values)
        degrees = {name: columns.pop(name) for name in LAYOUT_COLUMNS}
        return PlanTable(layout=Layout(world_size=plans[0].world_size, **degrees), **columns, **shared)


# Columns that are in ``layout``, those that are the table's own, and what all rows share.
LAYOUT_COLUMNS = tuple(column.name for column in fields(Layout) if column.name != "world_size")
OWN_COLUMNS = tuple(column.name for column in fields(PlanTable) if column.type is IntArray)
CONSTANTS = tuple(column.name for column in fields(PlanTable) if column.name not in ("layout", *OWN_COLUMNS))
