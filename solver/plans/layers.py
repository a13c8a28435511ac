"""The layers of a plan table: what they run and hold, written down once for all plans whose layers are the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

from ops.block import LayerOps, ModelOps, layer_ops
from ops.context import has_separate_ends
from ops.cpu_overhead import gathers_before_forwards
from ops.data_parallel.step import RankParameters
from ops.layout import Layout, unique_rows
from ops.op import (
    BatchedGemm,
    GroupedGemm,
    HostTransfer,
    Lane,
    Op,
    Ops,
    Owner,
    Pass,
    multiplies_low_precision,
)
from ops.recompute import Recompute
from ops.roles import Role
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one layer, embedding or head, per layer row: what it keeps until its backward (``saved_bytes``), the
    most it holds for a moment, copies of weights it keeps from step to step (``copied`` elements of weights have one),
    what of it waits on the host (``host_bytes``), the elements of logits that it makes, of one trained weight of each
    shape (``shapes``), and those it trains and holds frozen."""

    saved_bytes: FloatArray
    transient_bytes: FloatArray
    cached_bytes: FloatArray
    copied: FloatArray
    host_bytes: FloatArray
    logits: FloatArray
    shapes: FloatArray
    parameters: RankParameters
    frozen: RankParameters

    @staticmethod
    def stacked(parts: Sequence["LayerBytes"]) -> "LayerBytes":
        """The rows of all parts, one part after another."""

        def joined(of_parts: list[RankParameters]) -> RankParameters:
            return RankParameters.by_owner(
                lambda owner: np.concatenate([part.of(owner) for part in of_parts]),
                lambda owner: np.concatenate([part.low_precision_of(owner) for part in of_parts]),
            )

        return LayerBytes(
            parameters=joined([part.parameters for part in parts]),
            frozen=joined([part.frozen for part in parts]),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in BYTES},
        )


BYTES = tuple(column.name for column in fields(LayerBytes) if column.type is FloatArray)


class RecomputePolicy(NamedTuple):
    """What the backward does not find on the device: the recompute ``mode``, the ``modules`` of layers that run
    again beside it, and those ``offloaded``, of which what they save waits on the host."""

    mode: Recompute
    modules: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Memo:
    """Operations by recompute policy, and bytes by piece, which those operations hold."""

    ops: dict[RecomputePolicy, ModelOps] = field(default_factory=dict)
    bytes: dict[int, LayerBytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """The layers of a plan table, one row for each distinct layer layout.

    ``row[i]`` is the layer row of plan i; ``bare`` are the operations of every row before any of them runs again,
    ``policy`` says which do. Tables that differ in their plans and policy alone share what was made of the layers.
    """

    bare: LayerOps
    row: IntArray
    policy: RecomputePolicy
    memo: _Memo = field(default_factory=_Memo, compare=False, repr=False)

    @property
    def layout(self) -> Layout:
        """One row per distinct layout."""
        return self.bare.context.layout

    @property
    def ops(self) -> ModelOps:
        """All operations; of layers of which some run again, the pieces of those that do and of the others."""
        policy = self.policy
        if policy not in self.memo.ops:
            if policy.mode is Recompute.BLOCK:
                whole = self.under(policy._replace(mode=Recompute.FULL)).ops
                plain = self.under(policy._replace(mode=Recompute.NONE)).ops
                self.memo.ops[policy] = replace(plain, blocks=(*whole.blocks, *plain.blocks))
            else:
                self.memo.ops[policy] = self.bare.apply_recompute(*policy)
        return self.memo.ops[policy]

    @property
    def pieces(self) -> tuple[Pass, ...]:
        """Every block kind, then the embedding, then the head."""
        return (*self.ops.blocks, self.ops.embedding, self.ops.head)

    @property
    def bytes(self) -> list[LayerBytes]:
        """Bytes of every piece; runs of equal blocks share one."""
        result: list[LayerBytes] = []
        job = self.bare.context.job
        reads = {
            "with_shapes": job.preset.data_parallel.keeps_dummy_wgrad,
            "low_precision": job.precision.narrows,
        }
        for piece in self.pieces:
            if id(piece) not in self.memo.bytes:
                self.memo.bytes[id(piece)] = layer_bytes(piece, len(self.layout), **reads)
            result.append(self.memo.bytes[id(piece)])
        return result

    @property
    def stage_pieces(self) -> tuple[Pass, ...]:
        """Every block kind, then each as a stage's first layer, then embedding and head: what
        solver.times.stage_times.piece_weights counts. Runs of equal blocks share a piece."""
        job, ops = self.bare.context.job, self.ops
        firsts: dict[int, Pass] = {}
        for piece in ops.blocks:
            firsts[id(piece)] = firsts.get(id(piece)) or as_first(piece)
        embedding, head = ops.embedding, ops.head
        if job.preset.data_parallel.gathers_every_forward:
            embedding = as_first(embedding)
            head = head if has_separate_ends(job, self.bare.context.model) else as_first(head)
        return (*ops.blocks, *(firsts[id(piece)] for piece in ops.blocks), embedding, head)

    def of_plans(self, rows: IntArray) -> "LayerTable":
        """Returns these plans alone, though layouts may be left that none of them has."""
        return replace(self, row=self.row[rows])

    def under(self, policy: RecomputePolicy) -> "LayerTable":
        """Under another recompute policy."""
        return replace(self, policy=policy)


def layer_table(model: ModelSpec, job: JobSpec, plans: PlanTable, like: LayerTable | None = None) -> LayerTable:
    """The layers of the plans; those of ``like``, of the same model and job, where these have all of the plans' layouts
    under the same strategy."""
    policy = RecomputePolicy(plans.recompute, plans.recompute_modules, plans.offload_modules)
    if like is not None and like.bare.context.sharding is plans.sharding:
        row = _rows_among(job, like.layout, plans.layout)
        if (row >= 0).all():
            return replace(like, row=row, policy=policy)
    first, row = unique_rows(layer_keys(job, plans.layout))
    bare = layer_ops(model, job, plans.layout.take(first), plans.strategy)
    return LayerTable(bare=bare, row=row, policy=policy)


def _rows_among(job: JobSpec, there: Layout, wanted: Layout) -> IntArray:
    """Returns which row of ``there``, all distinct, has the layers of each ``wanted`` row; -1 where none has."""
    if there.world_size != wanted.world_size:
        return wanted.constant(-1)
    both = zip(layer_keys(job, there), layer_keys(job, wanted), strict=True)
    first, inverse = unique_rows(tuple(np.concatenate(column) for column in both))
    row = first[inverse[len(there) :]]
    return np.where(row < len(there), row, -1).astype(np.int64)


def layer_keys(job: JobSpec, layout: Layout) -> tuple[IntArray, ...]:
    """Returns what layers of equal layouts have in common: everything of a plan that an operation of a layer reads.

    Only tp, cp, ep, etp, wp, the micro-batch, what is sharded from stage 2 on and which layers are offloaded
    change what a layer runs and where; a tied head owns weights only where pp > 1, and the host calls hooks of
    gathers where the optimizer is sharded. Of weights that are cast once a step a micro-batch has a share that
    depends on dp (ops.low_precision)."""
    several = (layout.pp > 1).astype(np.int64)
    stage = np.where((layout.zero_stage >= 2) | gathers_before_forwards(job), layout.zero_stage, 0)
    groups = np.where(layout.zero_stage >= 2, layout.zero_size * (layout.world_size + 1) + layout.dp, 0)
    sizes = (layout.tp, layout.cp, layout.ep, layout.etp, layout.wp, layout.micro_batch)
    casts_once = job.precision.narrows and not job.precision.casts_every_forward
    copies = layout.dp if casts_once else layout.constant(0)
    return (*sizes, several, stage, groups, layout.offloaded_layers, copies)


def layer_bytes(piece: Pass, rows: int, *, with_shapes: bool, low_precision: bool) -> LayerBytes:
    """Sums over the operations of a piece; what they hold for a moment counts as held together while the piece runs.
    Shapes are counted where somebody reads them (``with_shapes``), weights of products of 8 bits or fewer apart where
    there are any (``low_precision``)."""
    sums: dict[str, FloatArray] = dict.fromkeys(BYTES, np.zeros(rows))
    none = np.zeros(rows, dtype=np.int64)
    trained, frozen = dict.fromkeys(Owner, none), dict.fromkeys(Owner, none)
    narrow_trained, narrow_frozen = dict(trained), dict(frozen)
    for op in piece.forward:
        for name in ("saved_bytes", "transient_bytes", "cached_bytes"):
            sums[name] = sums[name] + getattr(op, name)
        trained[op.owner] = trained[op.owner] + op.parameters
        frozen[op.owner] = frozen[op.owner] + op.frozen
        if low_precision and multiplies_low_precision(op):
            narrow_trained[op.owner] = narrow_trained[op.owner] + op.parameters
            narrow_frozen[op.owner] = narrow_frozen[op.owner] + op.frozen
        if op.cached_bytes.any():
            sums["copied"] = sums["copied"] + (op.parameters + op.frozen) * (op.cached_bytes > 0)
        if isinstance(op, HostTransfer):
            sums["host_bytes"] = sums["host_bytes"] + op.size_bytes
        if isinstance(op, BatchedGemm) and op.role is Role.LOGITS:
            sums["logits"] = sums["logits"] + op.m * op.n
    if with_shapes:
        sums["shapes"] = one_of_each_shape(piece.forward, rows)
    return LayerBytes(
        parameters=RankParameters.by_owner(trained.__getitem__, narrow_trained.__getitem__ if low_precision else None),
        frozen=RankParameters.by_owner(frozen.__getitem__, narrow_frozen.__getitem__ if low_precision else None),
        **sums,
    )


def one_of_each_shape(forward: Sequence[Op], rows: int) -> FloatArray:
    """Elements of one trained weight of each shape that products of a forward have: inputs x outputs."""
    trained = [op for op in forward if isinstance(op, BatchedGemm | GroupedGemm) and op.parameters.any()]
    elements: FloatArray = np.zeros(rows)
    for index, op in enumerate(trained):
        first = op.parameters > 0
        for earlier in trained[:index]:
            first = first & ~((earlier.parameters > 0) & (earlier.k == op.k) & (earlier.n == op.n))
        elements = elements + op.k * op.n * first
    return elements


def as_first(piece: Pass) -> Pass:
    """Returns ``piece`` where it is the first of a stage's chunk; itself where nothing of it comes ahead.

    Weights are gathered ahead of the layer that needs them and gradients reduced behind the one that made them
    (solver.times.overlap), but the first layer of a chunk has none before it: its forward waits for its weights,
    and the step for its gradients. Weights that travel one by one (isp) make it wait for the first of them alone.
    FSDP's outermost unit, embedding and head, is gathered before anything else and reduced last (PyTorch
    torch/distributed/fsdp/_runtime_utils.py, _root_pre_forward and _post_backward_final_callback; fully_shard alike).
    """
    ahead = tuple(op for op in piece.forward if op.lane is Lane.PREFETCH)
    gathers = tuple(op for op in ahead if op.role is Role.PARAMETER_GATHER)
    gathers = gathers or tuple(op for op in ahead if op.role is Role.WEIGHT_GATHER)[:1]
    behind = tuple(op for op in piece.backward if op.lane is Lane.PREFETCH)
    reductions = tuple(op for op in behind if op.role is Role.GRADIENT_REDUCTION)
    if any(op.serves for op in reductions):
        reductions = reductions[-1:]
    if not gathers and not reductions:
        return piece
    return Pass(forward=_waited_for(piece.forward, gathers), backward=_waited_for(piece.backward, reductions))


def _waited_for(ops: Ops, chosen: Sequence[Op]) -> Ops:
    waited = {id(op) for op in chosen}
    return tuple(replace(op, lane=Lane.MAIN) if id(op) in waited else op for op in ops)
