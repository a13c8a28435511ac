"""What one rank of a pipeline stage runs in a step, in plain numbers: the operations of the solver, item by item.

Exporters write these items (SimAI, AICB, bundles), traffic counts their bytes, and the runner compares its measurements
with their seconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ops.layout import Layout, group_of
from ops.op import Attention, Axis, BatchedGemm, Comm, CpuOverhead, GroupedGemm, HostTransfer, Lane, Op, Pass, Phase
from ops.roles import Identity
from profdb.cases import AttentionCase
from solver.estimate import Estimate, estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import SCHEDULES
from solver.problem.problem import Problem
from solver.times.op_times import OpTimer
from solver.times.stage_times import p2p_bytes
from spec.arrays import ints
from spec.collectives import Collective
from spec.errors import ExportError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem(Identity):
    """One operation of one rank in plain numbers.

    Compute has ``collective`` None. A collective moves ``size_bytes`` (the whole array on one rank) over ``axis``, in
    groups of ``ranks``, and takes ``seconds`` if it is exposed. An item is ``count`` identical launches: ``seconds``
    are of all of them, ``size_bytes`` and ``host_bytes`` of one. ``shape`` of a matrix product is (batch, m, k, n),
    else empty; ``attention`` is the call of an attention kernel; ``host_bytes`` travel between the rank and its host.
    """

    phase: Phase
    seconds: float
    collective: Collective | None = None
    axis: Axis | None = None
    size_bytes: int = 0
    ranks: int = 1
    lane: Lane = Lane.MAIN
    count: int = 1
    shape: tuple[int, ...] = ()
    attention: AttentionCase | None = None
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Returns the bytes of all launches."""
        return self.size_bytes * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWork:
    """A layer, the embedding or the head, which a stage runs ``repeat`` times in a row for each micro-batch."""

    name: str
    repeat: int
    forward: tuple[WorkItem, ...]
    backward: tuple[WorkItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """All that one rank of a pipeline stage runs in a step; ``count`` equal stages from ``position`` on.

    ``pieces`` in forward order, ``num_micro`` times; ``step`` once; ``p2p_messages`` to and from neighbouring stages
    per micro-batch, of ``p2p_bytes`` and ``p2p_s`` each. ``chunk_layers[c][k]`` is the number of layers of block kind k
    in virtual chunk c; empty: the layers are partitioned evenly."""

    position: int
    count: int
    num_micro: int
    pieces: tuple[PieceWork, ...]
    step: tuple[WorkItem, ...]
    p2p_messages: int
    p2p_bytes: int
    p2p_s: float
    chunk_layers: tuple[tuple[int, ...], ...] = ()

    def per_step(self) -> list[tuple[int, WorkItem]]:
        """Returns every item of a step with the number of times it runs."""
        per_step = [(repeat * self.num_micro, item) for repeat, item in self.per_micro_batch()]
        return per_step + [(1, item) for item in self.step]

    def per_micro_batch(self) -> list[tuple[int, WorkItem]]:
        """Returns every item of one micro-batch with the number of times it runs."""
        return [(piece.repeat, item) for piece in self.pieces for item in (*piece.forward, *piece.backward)]


# From a plan to the items of each of its stages: the operations that the solver times.


def stage_works(problem: Problem, plan: Plan) -> tuple[StageWork, ...]:
    """Returns one entry for each class of equal stages, in stage order. Raises ExportError for a schedule whose virtual
    stages are not looped."""
    check_schedule(plan.schedule.value)
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan))
    return tuple(_stage(problem, table, row) for row in range(len(table.stages.plan)))


def check_schedule(name: str) -> None:
    """Raises ExportError for a schedule whose virtual stages are not looped."""
    if name in SCHEDULES and not SCHEDULES[name].placement.looped:
        raise ExportError(f"a workload file needs looped virtual stages; those of schedule {name} are not")


def slowest(works: tuple[StageWork, ...]) -> StageWork:
    """Returns the stage class with the most seconds per micro-batch, if nothing is hidden."""

    def busy_s(work: StageWork) -> float:
        return sum(repeat * item.seconds for repeat, item in work.per_micro_batch())

    return max(works, key=busy_s)


def _stage(problem: Problem, table: Estimate, row: int) -> StageWork:
    stages, op_timer = table.stages, problem.op_timer
    layout = table.layers.layout
    pieces = [
        _piece(op_timer, layout, f"block{kind}", int(count[row]), piece)
        for kind, (count, piece) in enumerate(zip(stages.layers, table.layers.ops.blocks, strict=True))
    ]
    ops = table.layers.ops
    pieces.insert(0, _piece(op_timer, layout, "embedding", int(stages.embedding[row]), ops.embedding))
    pieces.append(_piece(op_timer, layout, "head", int(stages.head[row]), ops.head))
    depth = int(table.plans.layout.pp[0])
    vpp = int(table.plans.vpp[0])
    position = int(stages.position[row])
    size = p2p_bytes(problem.model, problem.job, table.plans)
    return StageWork(
        position=position,
        count=int(stages.count[row]),
        num_micro=int(table.plans.num_micro[0]),
        pieces=tuple(piece for piece in pieces if piece.repeat),
        step=_step(problem, table, row),
        # A send and a receive on both sides of each chunk, but for the ends of the model.
        p2p_messages=2 * (2 * vpp - int(position == 0) - int(position == depth - 1)) if depth > 1 else 0,
        p2p_bytes=int(size[0]) if depth > 1 else 0,
        p2p_s=float(op_timer.p2p(table.plans.layout, size).seconds[0]),
        chunk_layers=tuple(
            tuple(int(layers[stages.chunk_starts[row] + chunk]) for layers in stages.chunks.layers)
            for chunk in range(vpp)
        ),
    )


def _piece(op_timer: OpTimer, layout: Layout, name: str, repeat: int, piece: Pass) -> PieceWork:
    return PieceWork(
        name=name,
        repeat=repeat,
        forward=tuple(work_item(op_timer, layout, op) for op in piece.forward),
        backward=tuple(work_item(op_timer, layout, op) for op in piece.backward),
    )


def _step(problem: Problem, table: Estimate, row: int) -> tuple[WorkItem, ...]:
    """Returns the items of a step's end on one stage row, without CPU overhead."""
    one = ints(row)
    layout = table.plans.layout.take(table.stages.plan[one])
    ops = step_operations(problem.model, problem.job, table, one)
    items = tuple(work_item(problem.op_timer, layout, op) for op in ops if not isinstance(op, CpuOverhead))
    return tuple(item for item in items if item.collective is None or item.size_bytes)


def work_item(op_timer: OpTimer, layout: Layout, op: Op) -> WorkItem:
    """Returns one operation of the first row of ``layout`` with its seconds."""
    comm = op if isinstance(op, Comm) else None
    ranks = int(group_of(comm.axis, layout, op_timer.domain_ranks).ranks[0]) if comm else 1
    return WorkItem(
        module=op.module,
        role=op.role,
        serves=op.serves,
        name=op.name,
        phase=op.phase,
        seconds=float(op_timer.time(op, layout).seconds[0]),
        collective=comm.collective if comm else None,
        axis=comm.axis if comm else None,
        size_bytes=_first(comm.size_bytes) if comm and ranks > 1 else 0,
        ranks=ranks,
        lane=op.lane,
        count=_first(op.repeat),
        shape=_shape(op),
        attention=_attention(op),
        host_bytes=_first(op.size_bytes) if isinstance(op, HostTransfer) else 0,
    )


def _shape(op: Op) -> tuple[int, ...]:
    """Returns (batch, m, k, n) of a matrix product; m of grouped experts are the rows of all of them."""
    if isinstance(op, BatchedGemm):
        return tuple(_first(each) for each in (op.batch, op.m, op.k, op.n))
    if isinstance(op, GroupedGemm):
        return (1, *(_first(each) for each in (op.m, op.k, op.n)))
    return ()


def _attention(op: Op) -> AttentionCase | None:
    """Returns the call of an attention kernel, of the first row; None for other operations."""
    if not isinstance(op, Attention):
        return None
    names = ("batch", "q_len", "kv_len", "heads", "kv_heads", "qk_dim", "v_dim", "window")
    sizes = {name: _first(getattr(op, name)) for name in names}
    return AttentionCase(**sizes, mask=op.mask, direction=op.direction, kernel=op.kernel, dtype=op.dtype)


def _first(column: ArrayLike) -> int:
    return int(np.ravel(column)[0])
