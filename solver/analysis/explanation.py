"""The explanation of one plan: every operation of its layers and of its step, the step as a sum, and memory by stage.

All figures come from the code that estimates the plan (solver.estimate, solver.times); there is no second formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.layout import Layout, group_of
from ops.memory_bound import bytes_moved
from ops.op import (
    Attention,
    BatchedGemm,
    Comm,
    CpuOverhead,
    GroupedGemm,
    HostTransfer,
    HostUpdate,
    MemoryBound,
    Op,
    Pass,
    Update,
)
from solver.estimate import Estimate, StageTimes, estimate_memory, stage_times, step_operations, step_time
from solver.memory.terms import TERM_NAMES
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.times.layer_times import timed_passes
from solver.times.op_times import TimedOp
from solver.times.stage_times import piece_weights
from spec.arrays import FloatArray, ints
from spec.origin import ORIGIN_NAMES


def shape_words(op: Op, row: int = 0) -> str:
    """Returns ``m 8192 k 8192 n 2560 NT bf16``: the sizes of one launch, with the number of launches if there are
    several."""

    def at(values: object) -> int:
        return round(number_at(values, row))

    match op:
        case BatchedGemm():
            several = f"{at(op.batch)} of " * (at(op.batch) > 1)
            words = f"{several}m {at(op.m)} k {at(op.k)} n {at(op.n)} {op.layout} {op.dtype}"
        case GroupedGemm():
            words = f"{at(op.groups)} groups, m {at(op.m)} k {at(op.k)} n {at(op.n)} {op.layout} {op.dtype}"
        case Attention():
            words = (
                f"batch {at(op.batch)} heads {at(op.heads)}/{at(op.kv_heads)} q {at(op.q_len)} kv {at(op.kv_len)} "
                f"dim {at(op.qk_dim)}/{at(op.v_dim)} {op.mask} {op.kernel}"
            )
        case MemoryBound():
            words = f"{op.kernel} {at(op.rows)} x {at(op.width)} {op.dtype}"
        case Comm():
            words = op.collective.value.replace("_", "-")
        case Update() | HostUpdate():
            words = f"{at(op.elements)} parameters"
        case CpuOverhead():
            words = f"{at(op.launches)} launches"
        case _:
            words = ""
    times = number_at(op.repeat, row)
    return f"{times:g} x {words}" if times != 1 else words


def moved_bytes(op: Op, row: int = 0) -> float:
    """Returns the bytes that a collective or a copy carries (the whole array on one rank), or that a memory-bound
    kernel moves; 0 for operations that compute."""
    if isinstance(op, Comm | HostTransfer):
        return number_at(op.size_bytes, row) * number_at(op.repeat, row)
    return number_at(bytes_moved(op), row) if isinstance(op, MemoryBound) else 0.0


def group_words(op: Op, layout: Layout, gpus_per_node: int) -> str:
    """Returns ``tp: 8 ranks on 1 node, stride 1``; "" for operations of one rank."""
    if not isinstance(op, Comm):
        return ""
    group = group_of(op.axis, layout, gpus_per_node)
    ranks, nodes, stride = (int(one[0]) for one in (group.ranks, group.inter, group.stride))
    return f"{op.axis.value}: {ranks} ranks on {nodes} node{'s' * (nodes > 1)}, stride {stride}"


def number_at(values: object, row: int) -> float:
    """Returns one row of a column, or the one number that all rows share."""
    array = np.ravel(values)  # type: ignore[call-overload]
    return float(array[row if len(array) > 1 else 0])


PASSES = ("forward", "backward", "weight gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One operation of a plan: the ``piece`` and ``phase`` that it runs in, its name and shape, the bytes that it
    carries or moves, those that it saves for the backward, its group of ranks, the seconds that it takes (``own_s``)
    and that the rank waits for it (``waited_s``; None at the step's end, where collectives overlap together), origin
    and relative standard error of the seconds."""

    piece: str
    phase: str
    name: str
    shape: str
    size_bytes: float
    saved_bytes: float
    group: str
    own_s: float
    waited_s: float | None
    origin: str
    relative_std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A term of the step: ``count`` times a forward and a backward of a piece, or ``seconds`` alone."""

    what: str
    count: int
    forward_s: float
    backward_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of stages ``first`` to ``last`` (from 1), which are equal: bytes by term, and what they need of a
    device."""

    first: int
    last: int
    terms_bytes: dict[str, float]
    needed_bytes: float

    def words(self) -> str:
        """Returns ``stage 1`` or ``stages 2 to 7``, from 1."""
        if self.first == self.last:
            return f"stage {self.first}"
        return f"stages {self.first} to {self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan, its operations, the terms that sum to ``step_s``, and its stages."""

    plan: Plan
    step_s: float
    operations: tuple[OpRow, ...]
    assembly: tuple[StepRow, ...]
    stages: tuple[StageMemory, ...]


def explain_plan(problem: Problem, plan: Plan) -> Explanation:
    """Returns the explanation of a plan, before any calibration."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan), problem.cluster)
    cost = step_time(problem.model, problem.job, table, problem.op_timer)
    seconds = stage_times(problem.model, problem.job, table, problem.op_timer)
    stage = int(cost.stage[0])
    waiting = {name: float(cost.parts[name][0]) for name in ("pp_comm", "bubble")}
    return Explanation(
        plan=plan,
        step_s=float(cost.step_s[0]),
        operations=(*_layer_rows(problem, table), *_step_rows(problem, table, stage)),
        assembly=_assembly(problem, table, seconds, stage, (float(cost.step_s[0]), waiting)),
        stages=_stages(table),
    )


def _named_pieces(problem: Problem, table: Estimate, stages: slice) -> list[tuple[str, Pass, int]]:
    """Returns the distinct pieces that these stage rows run, each with its name and how often it runs."""
    pieces = table.layers.stage_pieces
    counts = [int(weight[stages].sum()) for weight in piece_weights(table.stages)]
    runs = len(problem.model.blocks)
    # With partial recomputation every kind is there twice (ops.block), recomputed first.
    again = [", recomputed", ""] if len(table.layers.ops.blocks) > runs else [""]
    kinds = [f"{_kind_name(problem, index)}{words}" for words in again for index in range(runs)]
    names = [*kinds, *(f"{kind}, first of its stage" for kind in kinds), "embedding", "head"]
    result: dict[int, tuple[str, Pass, int]] = {}
    for name, piece, count in zip(names, pieces, counts, strict=True):
        if count:
            # A first layer that is like the others is the same object: it goes under the name of the others.
            earlier = result.get(id(piece))
            result[id(piece)] = (earlier[0] if earlier else name, piece, count + (earlier[2] if earlier else 0))
    return list(result.values())


def _kind_name(problem: Problem, index: int) -> str:
    """Returns ``layer``, with its token mixer and feed-forward network where the model has several kinds."""
    block = problem.model.blocks[index].block
    of_kinds = len({id(run.block) for run in problem.model.blocks}) > 1
    if block.mtp:
        return "prediction block"
    feed = "experts" if block.moe else "dense" if block.mlp else "no feed-forward"
    return f"layer ({type(block.mixer).__name__.removesuffix('Spec').lower()}, {feed})" if of_kinds else "layer"


def _layer_rows(problem: Problem, table: Estimate) -> list[OpRow]:
    rows = []
    split = table.plans.schedule.traits.splits_backward
    for name, piece, _ in _named_pieces(problem, table, slice(None)):
        passes = timed_passes(problem.op_timer, problem.job, piece, table.layers.layout, split=split)
        for timed, shares in passes:
            rows += [
                _row(problem, name, one, table, waited_s=number_at(share.seconds, 0))
                for one, share in zip(timed, shares, strict=True)
            ]
    return [row for row in rows if row.own_s > 0 or row.saved_bytes > 0]


def _step_rows(problem: Problem, table: Estimate, stage: int) -> list[OpRow]:
    layout = table.plans.layout.take(table.stages.plan)
    timed = (problem.op_timer.time(op, layout) for op in step_operations(problem.model, problem.job, table))
    rows = [_row(problem, "step", one, table, waited_s=None, at=stage) for one in timed]
    return [row for row in rows if row.own_s > 0]


def _row(problem: Problem, piece: str, one: TimedOp, table: Estimate, *, waited_s: float | None, at: int = 0) -> OpRow:
    return OpRow(
        piece=piece,
        phase=one.op.phase.value,
        name=one.op.name,
        shape=shape_words(one.op, at),
        size_bytes=moved_bytes(one.op, at),
        saved_bytes=number_at(one.op.saved_bytes, at),
        group=group_words(one.op, table.plans.layout, problem.cluster.gpus_per_node),
        own_s=number_at(one.seconds, at),
        waited_s=waited_s,
        origin=ORIGIN_NAMES[int(number_at(one.origin, at))],
        relative_std=number_at(one.relative_std, at),
    )


def _assembly(
    problem: Problem, table: Estimate, seconds: StageTimes, stage: int, step: tuple[float, dict[str, float]]
) -> tuple[StepRow, ...]:
    """Returns the step of the slowest stage as a sum: passes of its pieces times micro-batches, waiting, the step's
    end. ``step`` are the seconds of the step, and of waiting by part."""
    step_s, waiting = step
    op_timer, num_micro = problem.op_timer, int(table.plans.num_micro[0])
    rows = []
    for name, piece, count in _named_pieces(problem, table, slice(stage, stage + 1)):
        passes = timed_passes(
            op_timer, problem.job, piece, table.layers.layout, split=table.plans.schedule.traits.splits_backward
        )
        each = [sum(number_at(share.seconds, 0) for share in shares) for _, shares in passes]
        forward_s, backward_s = each[0], sum(each[1:])
        rows.append(
            StepRow(
                what=name,
                count=count * num_micro,
                forward_s=forward_s,
                backward_s=backward_s,
                seconds=count * num_micro * (forward_s + backward_s) / table.plans.schedule.placement.directions,
            )
        )
    busy_s = float(seconds.per_micro.take(ints(stage)).seconds[0]) * num_micro
    pieces_s = sum(row.seconds for row in rows)
    # The reduction is what is left: the stage that is ready last may be another one than the slowest.
    update = seconds.step.update.seconds + seconds.step.gather.seconds
    after = int(np.argmax(update))
    update_s, gather_s = (float(one.seconds[after]) for one in (seconds.step.update, seconds.step.gather))
    reduction_s = step_s - busy_s - sum(waiting.values()) - update_s - gather_s
    alone = {
        "the host, where launching takes longer, and exchanges that pairs hide": busy_s - pieces_s,
        "messages between stages": waiting["pp_comm"],
        "bubble": waiting["bubble"],
        "gradient reduction after the last backward": reduction_s,
        "optimizer": update_s,
        "parameter gather before the next step": gather_s,
    }
    rows += [
        StepRow(what=what, count=1, forward_s=0.0, backward_s=0.0, seconds=value)
        for what, value in alone.items()
        if abs(value) > 1e-9 * step_s
    ]
    return tuple(rows)


def _stages(table: Estimate) -> tuple[StageMemory, ...]:
    """Returns the memory of every class of equal stages."""
    cost = table.bytes.cost
    outside_tensors = ("slack_bytes", "nccl_bytes", "host_bytes")

    def term(values: FloatArray, row: int) -> float:
        return float(values[row])

    return tuple(
        StageMemory(
            first=int(table.stages.position[row]) + 1,
            last=int(table.stages.position[row] + table.stages.count[row]),
            terms_bytes={
                name.removesuffix("_bytes"): term(getattr(cost, name), row) for name in (*TERM_NAMES, *outside_tensors)
            },
            needed_bytes=term(cost.needed_bytes, row),
        )
        for row in range(len(table.stages.plan))
    )


def adjacent_equal(stages: Sequence[StageMemory]) -> list[StageMemory]:
    """Returns the stages with neighbours of the same bytes in every term as one, though they may differ in what they
    compute."""
    classes: list[StageMemory] = []
    for stage in stages:
        if classes and classes[-1].terms_bytes == stage.terms_bytes and classes[-1].needed_bytes == stage.needed_bytes:
            classes[-1] = replace(classes[-1], last=stage.last)
        else:
            classes.append(stage)
    return classes


def memory_terms(stage: StageMemory) -> dict[str, float]:
    """Returns the bytes of the device by term, the CUDA context among them; they sum to what the stage needs."""
    of_device = {name: size for name, size in stage.terms_bytes.items() if name != "host"}
    return of_device | {"context": stage.needed_bytes - sum(of_device.values())}
