"""The step time of a SimAI file by our own curves: compute as in the file, collectives by a profile on a cluster, and
the pipeline by the solver's simulation instead of SimAI's fixed share.

Every collective is exposed, as in SimAI-Analytical; ``hidden`` shares take a part of a group's time away. All stages
are equal to the one in the file."""

from dataclasses import dataclass, field

import numpy as np

from ops.layout import Layout
from ops.op import Axis, Comm, Phase
from ops.recompute import Recompute
from ops.roles import Module, Role
from solver.pipeline.spans import P2PTimes, stage_spans_s
from solver.pipeline.stages import ChunkTable, PassTimes, StageTable
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.times.op_times import OpTimer
from spec.arrays import ints
from spec.collectives import Collective
from workload.diagnostics import WorkloadError
from workload.simai.export import beyond_of, header_of, rows_of
from workload.simai.format import SimaiGroup, SimaiHeader, SimaiPass, SimaiRow, SimaiWorkload, read_token
from workload.stage_work import slowest, stage_works

AXES: dict[SimaiGroup, Axis] = {
    SimaiGroup.TP: Axis.TP,
    SimaiGroup.DP: Axis.DP_CP,
    SimaiGroup.EP: Axis.EP,
    SimaiGroup.DP_EP: Axis.EDP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Seconds of one step by part: ``parts`` (compute, each group, pp, bubble) sum to ``step_s``. ``pp`` is the time of
    messages between stages, ``bubble`` the other waiting of the pipeline."""

    compute_s: float
    groups_s: dict[SimaiGroup, float]
    pp_s: float
    bubble_s: float

    @property
    def parts(self) -> dict[str, float]:
        """Returns the parts in the order of the simulator's result file."""
        groups = {group.value: self.groups_s.get(group, 0.0) for group in AXES}
        order = ("dp", "dp_ep", "tp", "ep")
        return {
            **{name: groups[name] for name in order},
            "pp": self.pp_s,
            "bubble": self.bubble_s,
            "compute": self.compute_s,
        }

    @property
    def step_s(self) -> float:
        """Returns the seconds of the step."""
        return sum(self.parts.values())

    @property
    def communication_s(self) -> float:
        """Returns the seconds of all collectives."""
        return sum(self.groups_s.values())


def replay_simai(
    workload: SimaiWorkload, op_timer: OpTimer, *, hidden: dict[SimaiGroup, float] | None = None
) -> ReplayReport:
    """Returns the step time of a workload.

    Raises WorkloadError for degrees that do not divide and shares outside 0 to 1, MissingCurveError where the cost
    model has no curve."""
    header = workload.header
    shares = hidden or {}
    for group, share in shares.items():
        if not 0 <= share <= 1:
            raise WorkloadError(f"hidden share of {group.value} = {share}: 0 to 1")
    prices = _Prices(header=header, layout=layout_of(header), op_timer=op_timer, shares=shares)
    sums = _Sums()
    rows = list(workload.rows)
    for row, replays in zip(rows, header.replays(len(rows)), strict=True):
        sums.add(row, replays, prices)
    pp_s, bubble_s = _waiting(header, sums, op_timer)
    return ReplayReport(compute_s=sums.compute_s, groups_s=sums.groups_s, pp_s=pp_s, bubble_s=bubble_s)


def layout_of(header: SimaiHeader) -> Layout:
    """Returns the degrees of a header as a layout. Experts are sharded over tp as well, because the format has dp / ep
    ranks in an expert data-parallel group. Raises WorkloadError when degrees do not divide."""
    stage = header.tp * header.pp
    if header.all_gpus % stage or header.dp % header.ep:
        raise WorkloadError(
            f"{header.all_gpus} GPUs, tp {header.tp}, pp {header.pp}, ep {header.ep}: tp x pp must divide the "
            "number of GPUs, and ep the quotient"
        )
    return Layout.of(header.all_gpus, tp=header.tp, pp=header.pp, ep=header.ep, etp=header.tp if header.ep > 1 else 1)


def collective_s(op_timer: OpTimer, layout: Layout, collective: Collective, axis: Axis, size_bytes: int) -> float:
    """Returns the seconds of one collective by the curves."""
    op = Comm(
        module=Module.OTHER,
        role=Role.MESSAGE,
        name=collective.value,
        phase=Phase.FORWARD,
        collective=collective,
        axis=axis,
        size_bytes=ints(size_bytes),
    )
    return float(op_timer.time(op, layout).seconds[0])


@dataclass(slots=True, kw_only=True)
class _Prices:
    """Seconds of each distinct collective, looked up once."""

    header: SimaiHeader
    layout: Layout
    op_timer: OpTimer
    shares: dict[SimaiGroup, float]
    cache: dict[tuple[str, SimaiPass, int], tuple[SimaiGroup, float]] = field(default_factory=dict)

    def of(self, row: SimaiRow, column: SimaiPass) -> tuple[SimaiGroup, float]:
        """Returns group and seconds of the collective of one pass."""
        token, size_bytes = row.comm(column)
        key = (token, column, size_bytes)
        if key not in self.cache:
            self.cache[key] = self._price(token, size_bytes, column)
        return self.cache[key]

    def _price(self, token: str, size_bytes: int, column: SimaiPass) -> tuple[SimaiGroup, float]:
        collective, group = read_token(token, column)
        if collective is None or self.header.group_ranks(group) == 1 or size_bytes == 0:
            return SimaiGroup.NONE, 0.0
        # Without expert parallelism the expert data-parallel groups are the data-parallel ones.
        axis = Axis.DP_CP if group is SimaiGroup.DP_EP and self.header.ep == 1 else AXES[group]
        seconds = collective_s(self.op_timer, self.layout, collective, axis, size_bytes)
        return group, seconds * (1.0 - self.shares.get(group, 0.0))


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Sums of seconds over the rows. ``forward_s``, ``backward_s`` and ``weight_s`` are those of the micro-batches,
    which pass through the pipeline: rows before the first forward work are of the step."""

    compute_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    weight_s: float = 0.0
    groups_s: dict[SimaiGroup, float] = field(default_factory=dict)
    in_micro_batches: bool = False

    def add(self, row: SimaiRow, replays: int, prices: _Prices) -> None:
        """Adds one row, whose forward is recomputed ``replays`` times in the backward."""
        self.in_micro_batches |= bool(row.forward_ns or row.forward_bytes)
        times = {column: row.compute_ns(column) * 1e-9 for column in SimaiPass}
        recompute_s = replays * times[SimaiPass.FORWARD]
        self.compute_s += sum(times.values()) + recompute_s
        waits = {}
        for column in SimaiPass:
            group, seconds = prices.of(row, column)
            waits[column] = seconds
            if group is not SimaiGroup.NONE:
                self.groups_s[group] = self.groups_s.get(group, 0.0) + seconds
        if not self.in_micro_batches:
            return
        self.forward_s += times[SimaiPass.FORWARD] + waits[SimaiPass.FORWARD]
        self.backward_s += recompute_s + times[SimaiPass.INPUT_GRAD] + waits[SimaiPass.INPUT_GRAD]
        # Collectives of weight gradients (data parallel) run once a step, and delay no stage.
        self.backward_s += times[SimaiPass.WEIGHT_GRAD]
        self.weight_s += times[SimaiPass.WEIGHT_GRAD]


def _waiting(header: SimaiHeader, sums: _Sums, op_timer: OpTimer) -> tuple[float, float]:
    """Returns the seconds of the pipeline's messages and of its other waiting, for (interleaved) 1F1B over equal
    stages."""
    if header.pp == 1:
        return 0.0, 0.0
    # A table with one plan, whose stages are one class.
    plan = Plan(
        strategy="mtp",
        preset="",
        recompute=Recompute.NONE,
        tp=header.tp,
        pp=header.pp,
        vpp=header.vpp,
        dp=header.dp,
        num_micro=header.ga,
    )
    plans = PlanTable.of(plan)
    zero, true = ints(0), np.ones(1, dtype=np.bool_)
    stages = StageTable(
        plan=zero,
        position=zero,
        count=ints(header.pp),
        embedding=true,
        head=true,
        layers=(),
        starts=zero,
        chunk_starts=zero,
        chunks=ChunkTable(stage=zero, embedding=true, head=true, layers=()),
    )
    # The rows have all micro-batches; each chunk takes an equal part of one.
    equal = np.full(header.vpp, 1.0 / (header.ga * header.vpp))
    passes = PassTimes(
        forward_s=sums.forward_s * equal, backward_s=sums.backward_s * equal, weight_s=sums.weight_s * equal
    )
    p2p_s = op_timer.p2p(plans.layout, ints(header.pp_comm_bytes)).seconds
    span_s = float(stage_spans_s(plans, stages, passes, P2PTimes(seconds=p2p_s))[0])
    free_s = float(stage_spans_s(plans, stages, passes, P2PTimes(seconds=0.0 * p2p_s))[0])
    busy_s = sums.forward_s + sums.backward_s
    return max(span_s - free_s, 0.0), max(free_s - busy_s, 0.0)


# Why the step of an exported file and the solver's step differ, line by line: the file has the operations of one stage,
# all exposed. The solver also has what the format cannot express, overlap, CPU overhead, and stages that differ.

WAITS = ("tp_comm", "cp_comm", "ep_comm", "wp_comm", "dp_comm")
PIPELINE = ("pp_comm", "bubble")
HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComparison:
    """The step by the file and by the solver. ``differences`` (seconds, solver minus replay) sum to the difference of
    both."""

    replay: ReplayReport
    solver_s: float
    differences: dict[str, float]

    def lines(self) -> list[str]:
        """Returns the two steps and the differences between them, in ms."""
        rows = [("replay of the file", self.replay.step_s)]
        rows += [(name, seconds) for name, seconds in self.differences.items() if abs(seconds) > 5e-7]
        rows.append(("solver's step", self.solver_s))
        return [f"{name:<68}{seconds * 1e3:>12.3f} ms" for name, seconds in rows]


def compare(problem: Problem, plan: Plan) -> ReplayComparison:
    """Returns the comparison of a plan's SimAI file with the solver's step of the plan."""
    answer = price_plan(problem, PlanTable.of(plan))[0]
    work = slowest(stage_works(problem, plan))
    header = header_of(plan, work)
    replay = replay_simai(SimaiWorkload(header=header, rows=rows_of(work, header, plan)), problem.op_timer)
    beyond = [one for one in beyond_of(work, header, plan) if one.axis != "pp"]
    beyond_s = sum(one.seconds for one in beyond)
    # All collectives of the exported stage, as if none were hidden.
    serial_s = sum(times * item.seconds for times, item in work.per_step() if item.collective is not None)
    parts = answer.parts_s
    waits_s = sum(parts[part] for part in WAITS)
    pipeline_s = sum(parts[part] for part in PIPELINE)
    others_s = answer.step_s - waits_s - pipeline_s - parts[HOST]
    differences = {f"beyond the format: {one.what} ({one.collective} over {one.axis})": one.seconds for one in beyond}
    differences |= {
        "collectives placed otherwise by the file": serial_s - beyond_s - replay.communication_s,
        "hidden by overlap, or on another stage": waits_s - serial_s,
        "kernel launches": parts[HOST],
        "stages that differ, and their waiting": pipeline_s - replay.pp_s - replay.bubble_s,
        "compute of another stage": others_s - replay.compute_s,
    }
    return ReplayComparison(replay=replay, solver_s=answer.step_s, differences=differences)
