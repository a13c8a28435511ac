"""Plans: a table of N of them, or one in plain numbers."""

from dataclasses import dataclass, fields

from ops.layout import Layout
from ops.recompute.layers import Recompute
from ops.strategies.registry import STRATEGIES
from ops.strategies.sharding import Sharding
from solver.schedules.registry import Schedule
from spec.arrays import IntArray, ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One parallel plan in plain numbers; the relations between degrees are Layout's.

    ``num_recompute_layers`` of every chunk of a stage are recomputed with Recompute.BLOCK.
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
    stage_layout: str = ""

    @property
    def sharding(self) -> Sharding:
        """The strategy that ``strategy`` names."""
        return STRATEGIES[self.strategy]

    @property
    def world_size(self) -> int:
        """tp * cp * dp * pp."""
        return self.tp * self.cp * self.dp * self.pp

    def label(self) -> str:
        """The plan in one line, degrees of 1 left out."""
        degrees = {
            "tp": self.tp,
            "cp": self.cp,
            "pp": self.pp,
            "vpp": self.vpp,
            "ep": self.ep,
            "etp": self.etp,
            "wp": self.wp,
            "dp": self.dp,
        }
        shown = [f"{name}{value}" for name, value in degrees.items() if value > 1]
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
        return " ".join([self.strategy, *shown])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """N plans that share strategy, recompute mode, schedule and framework preset.

    Those four choose the shape of the formulas, and so does an explicit ``stage_layout``
    (spec.pipeline_layout; "" deals layers by rule); every other column is a 1-D int64 array.
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
    stage_layout: str = ""

    def __len__(self) -> int:
        return len(self.layout)

    @property
    def sharding(self) -> Sharding:
        """The strategy that ``strategy`` names."""
        return STRATEGIES[self.strategy]

    def take(self, rows: IntArray) -> "PlanTable":
        """The rows asked for, in that order."""
        return PlanTable(
            strategy=self.strategy,
            recompute=self.recompute,
            schedule=self.schedule,
            preset=self.preset,
            layout=self.layout.take(rows),
            vpp=self.vpp[rows],
            num_micro=self.num_micro[rows],
            num_recompute_layers=self.num_recompute_layers[rows],
            stage_layout=self.stage_layout,
        )

    def plan(self, row: int) -> Plan:
        """One row in plain numbers."""
        degrees = {
            field.name: int(getattr(self.layout, field.name)[row])
            for field in fields(Layout)
            if field.name != "world_size"
        }
        return Plan(
            strategy=self.strategy,
            recompute=self.recompute,
            schedule=self.schedule,
            preset=self.preset,
            vpp=int(self.vpp[row]),
            num_micro=int(self.num_micro[row]),
            num_recompute_layers=int(self.num_recompute_layers[row]),
            stage_layout=self.stage_layout,
            **degrees,
        )

    @staticmethod
    def of(plan: Plan) -> "PlanTable":
        """A table with one row."""
        layout = Layout(
            world_size=plan.world_size,
            **{
                field.name: ints(getattr(plan, field.name))
                for field in fields(Layout)
                if field.name != "world_size"
            },
        )
        return PlanTable(
            strategy=plan.strategy,
            recompute=plan.recompute,
            schedule=plan.schedule,
            preset=plan.preset,
            layout=layout,
            vpp=ints(plan.vpp),
            num_micro=ints(plan.num_micro),
            num_recompute_layers=ints(plan.num_recompute_layers),
            stage_layout=plan.stage_layout,
        )
