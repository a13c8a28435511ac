"""The layers of a plan table: their operations and bytes, made once for all plans whose layers are the same.

Plans of one table differ in dp, pp, ZeRO shards and micro-batches, but what a layer runs depends on few of these
(``layer_keys``). A LayerTable has one row for each distinct layer; tables that differ in recomputation alone share the
operations of layers without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from ops.block import LayerOps, ModelOps, layer_ops
from ops.context import has_separate_ends
from ops.cpu_overhead import gathers_before_forwards
from ops.data_parallel.step import RankParameters
from ops.layout import Layout, unique_rows
from ops.op import BatchedGemm, GroupedGemm, HostTransfer, Lane, Op, Ops, Owner, Pass, multiplies_low_precision
from ops.recompute import Recompute
from ops.roles import Role
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one layer, embedding or head, per layer row.

    ``saved_bytes`` stay until its backward, ``transient_bytes`` are live while it runs, ``cached_bytes`` are copies of
    weights in the format of products (of ``cast_elements`` elements), ``host_bytes`` wait on the host. ``logits``: the
    elements of logits that it makes; ``shapes``: the elements of one trainable weight of each shape; ``parameters`` are
    the elements that it trains, ``frozen`` the others.
    """

    saved_bytes: FloatArray
    transient_bytes: FloatArray
    cached_bytes: FloatArray
    cast_elements: FloatArray
    host_bytes: FloatArray
    logits: FloatArray
    shapes: FloatArray
    parameters: RankParameters
    frozen: RankParameters

    @staticmethod
    def stacked(parts: Sequence["LayerBytes"]) -> "LayerBytes":
        """Returns the rows of all ``parts``, one after another."""

        def concatenate(of_parts: list[RankParameters]) -> RankParameters:
            return RankParameters.by_owner(
                lambda owner: np.concatenate([part.of(owner) for part in of_parts]),
                lambda owner: np.concatenate([part.low_precision_of(owner) for part in of_parts]),
            )

        return LayerBytes(
            parameters=concatenate([part.parameters for part in parts]),
            frozen=concatenate([part.frozen for part in parts]),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in BYTES},
        )


BYTES = tuple(column.name for column in fields(LayerBytes) if column.type is FloatArray)
"""Fields of LayerBytes that are one array."""


class RecomputePolicy(NamedTuple):
    """What the backward does not find on the device: the recompute ``mode``, the ``modules`` that are recomputed
    besides, and those whose saved activations are offloaded to the host (``offload``)."""

    mode: Recompute
    modules: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Memo:
    """Operations by recompute policy, and bytes by the id of a piece; the operations keep the pieces alive. ``times``
    are those that a timer, by its id, has returned for operations (solver.estimate.timer_of)."""

    ops: dict[RecomputePolicy, ModelOps] = field(default_factory=dict)
    bytes: dict[int, LayerBytes] = field(default_factory=dict)
    times: dict[int, tuple[object, dict[tuple[object, ...], Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """The layers of a plan table, one row for each distinct layer layout.

    ``row[i]`` is the layer row of plan i; ``bare`` are the operations of every row without recomputation, ``policy``
    says what is recomputed. Tables that differ in plans and policy alone share a ``memo``."""

    bare: LayerOps
    row: IntArray
    policy: RecomputePolicy
    memo: _Memo = field(default_factory=_Memo, compare=False, repr=False)

    @property
    def layout(self) -> Layout:
        """Returns the distinct layouts, one a row."""
        return self.bare.context.layout

    @property
    def ops(self) -> ModelOps:
        """Returns all operations under the policy; where only some layers are recomputed every block kind is
        there twice, recomputed and not."""
        policy = self.policy
        if policy not in self.memo.ops:
            if policy.mode is Recompute.BLOCK:
                # Both halves are the pieces of the other modes, so that their times are shared too.
                whole = self.with_policy(policy._replace(mode=Recompute.FULL)).ops
                plain = self.with_policy(policy._replace(mode=Recompute.NONE)).ops
                self.memo.ops[policy] = replace(plain, blocks=(*whole.blocks, *plain.blocks))
            else:
                self.memo.ops[policy] = self.bare.apply_recompute(*policy)
        return self.memo.ops[policy]

    @property
    def pieces(self) -> tuple[Pass, ...]:
        """Returns every block kind, then the embedding, then the head."""
        return (*self.ops.blocks, self.ops.embedding, self.ops.head)

    @property
    def bytes(self) -> list[LayerBytes]:
        """Returns the bytes of every piece; runs of equal blocks share one."""
        result: list[LayerBytes] = []
        job = self.bare.context.job
        # Only what memory terms of this job read is counted.
        reads = {
            "with_shapes": job.preset.data_parallel.keeps_dummy_wgrad,
            "low_precision": job.precision.low_precision_linear,
        }
        for piece in self.pieces:
            if id(piece) not in self.memo.bytes:
                self.memo.bytes[id(piece)] = layer_bytes(piece, len(self.layout), **reads)
            result.append(self.memo.bytes[id(piece)])
        return result

    @property
    def stage_pieces(self) -> tuple[Pass, ...]:
        """Returns every block kind, then each as the first layer of a chunk, then embedding and head: the pieces that
        solver.times.stage_times.piece_weights counts. Runs of equal blocks share a piece."""
        job, ops = self.bare.context.job, self.ops
        firsts: dict[int, Pass] = {}
        for piece in ops.blocks:
            firsts[id(piece)] = firsts.get(id(piece)) or as_first_layer(piece)
        embedding, head = ops.embedding, ops.head
        # Sharded embedding and head wait for their weights like a first layer.
        if job.preset.data_parallel.gathers_every_forward:
            embedding = as_first_layer(embedding)
            head = head if has_separate_ends(job, self.bare.context.model) else as_first_layer(head)
        return (*ops.blocks, *(firsts[id(piece)] for piece in ops.blocks), embedding, head)

    def take(self, rows: IntArray) -> "LayerTable":
        """Returns the layers of these plans; rows that none of them has stay."""
        return replace(self, row=self.row[rows])

    def with_policy(self, policy: RecomputePolicy) -> "LayerTable":
        """Returns the same layers under another recompute policy."""
        return replace(self, policy=policy)


def layer_table(model: ModelSpec, job: JobSpec, plans: PlanTable, like: LayerTable | None = None) -> LayerTable:
    """Returns the layers of the plans: those of ``like``, of the same model and job, where it has all of them under the
    same strategy, else new ones."""
    policy = RecomputePolicy(plans.recompute, plans.recompute_modules, plans.offload_modules)
    if like is not None and like.bare.context.sharding is plans.sharding:
        row = _rows_among(job, like.layout, plans.layout)
        if (row >= 0).all():
            return replace(like, row=row, policy=policy)
    first, row = unique_rows(layer_keys(job, plans.layout))
    bare = layer_ops(model, job, plans.layout.take(first), plans.strategy)
    return LayerTable(bare=bare, row=row, policy=policy)


def _rows_among(job: JobSpec, table: Layout, layout: Layout) -> IntArray:
    """Returns which row of ``table``, all distinct, has the layers of each row of ``layout``; -1 where none has."""
    if table.world_size != layout.world_size:
        return layout.constant(-1)
    both = zip(layer_keys(job, table), layer_keys(job, layout), strict=True)
    # The first of equal rows is the table's where it has one, as the table comes first.
    first, inverse = unique_rows(tuple(np.concatenate(column) for column in both))
    row = first[inverse[len(table) :]]
    return np.where(row < len(table), row, -1).astype(np.int64)


def layer_keys(job: JobSpec, layout: Layout) -> tuple[IntArray, ...]:
    """Returns everything of a plan that an operation of a layer reads, as columns: layouts with equal keys have the
    same layers."""
    # A tied head owns its weights only on a stage of its own.
    has_stages = (layout.pp > 1).astype(np.int64)
    # ZeRO 1 changes a layer only where the host calls hooks that wait for gathered parameters.
    zero_stage = np.where((layout.zero_stage >= 2) | gathers_before_forwards(job), layout.zero_stage, 0)
    # Collectives of sharded gradients and parameters: zero_size and dp in one number.
    groups = np.where(layout.zero_stage >= 2, layout.zero_size * (layout.world_size + 1) + layout.dp, 0)
    sizes = (layout.tp, layout.cp, layout.ep, layout.etp, layout.wp, layout.micro_batch)
    # Weights cast once a step are shared out over the micro-batches, whose number depends on dp (ops.low_precision).
    casts_once = job.precision.low_precision_linear and not job.precision.casts_every_forward
    casts = layout.dp if casts_once else layout.constant(0)
    return (*sizes, has_stages, zero_stage, groups, layout.offloaded_layers, casts)


def layer_bytes(piece: Pass, rows: int, *, with_shapes: bool, low_precision: bool) -> LayerBytes:
    """Returns the bytes of a piece: the sums over the operations of its forward. Transient bytes of all of them count
    as live together. ``with_shapes`` counts ``shapes`` too, ``low_precision`` the weights of products of 8 bits or
    fewer apart."""
    sums: dict[str, FloatArray] = dict.fromkeys(BYTES, np.zeros(rows))
    none = np.zeros(rows, dtype=np.int64)
    # Elements by owner, and those among them that products of 8 bits or fewer read.
    trained, frozen = dict.fromkeys(Owner, none), dict.fromkeys(Owner, none)
    low_trained, low_frozen = dict(trained), dict(frozen)
    for op in piece.forward:
        for name in ("saved_bytes", "transient_bytes", "cached_bytes"):
            sums[name] = sums[name] + getattr(op, name)
        trained[op.owner] = trained[op.owner] + op.parameters
        frozen[op.owner] = frozen[op.owner] + op.frozen
        if low_precision and multiplies_low_precision(op):
            low_trained[op.owner] = low_trained[op.owner] + op.parameters
            low_frozen[op.owner] = low_frozen[op.owner] + op.frozen
        if op.cached_bytes.any():
            sums["cast_elements"] = sums["cast_elements"] + (op.parameters + op.frozen) * (op.cached_bytes > 0)
        if isinstance(op, HostTransfer):
            sums["host_bytes"] = sums["host_bytes"] + op.size_bytes
        if isinstance(op, BatchedGemm) and op.role is Role.LOGITS:
            sums["logits"] = sums["logits"] + op.m * op.n
    if with_shapes:
        sums["shapes"] = distinct_shape_elements(piece.forward, rows)
    return LayerBytes(
        parameters=RankParameters.by_owner(trained.__getitem__, low_trained.__getitem__ if low_precision else None),
        frozen=RankParameters.by_owner(frozen.__getitem__, low_frozen.__getitem__ if low_precision else None),
        **sums,
    )


def distinct_shape_elements(forward: Sequence[Op], rows: int) -> FloatArray:
    """Returns the elements, inputs x outputs, of one trainable weight of each shape that products of a forward have."""
    trained = [op for op in forward if isinstance(op, BatchedGemm | GroupedGemm) and op.parameters.any()]
    elements: FloatArray = np.zeros(rows)
    for index, op in enumerate(trained):
        # Rows where no earlier product has a weight of this shape.
        first = op.parameters > 0
        for earlier in trained[:index]:
            first = first & ~((earlier.parameters > 0) & (earlier.k == op.k) & (earlier.n == op.n))
        elements = elements + op.k * op.n * first
    return elements


def as_first_layer(piece: Pass) -> Pass:
    """Returns ``piece`` as the first layer of a chunk; itself where nothing of it is prefetched.

    Weights are gathered while the layer before works, gradients reduced while the layer behind does
    (solver.times.overlap), but the first layer of a chunk has none before it: its forward waits for its weights, and
    the step for its gradients. FSDP's root unit, embedding and head, is gathered before anything else and reduced last
    (PyTorch torch/distributed/fsdp/_runtime_utils.py, _root_pre_forward and _post_backward_final_callback; fully_shard
    alike)."""
    prefetches = tuple(op for op in piece.forward if op.lane is Lane.PREFETCH)
    gathers = tuple(op for op in prefetches if op.role is Role.PARAMETER_GATHER)
    # isp gathers module by module: the layer waits for the first of them alone.
    gathers = gathers or tuple(op for op in prefetches if op.role is Role.WEIGHT_GATHER)[:1]
    behind = tuple(op for op in piece.backward if op.lane is Lane.PREFETCH)
    reductions = tuple(op for op in behind if op.role is Role.GRADIENT_REDUCTION)
    # Of reductions module by module the step waits for the last alone.
    if any(op.serves for op in reductions):
        reductions = reductions[-1:]
    if not gathers and not reductions:
        return piece
    return Pass(forward=_on_main_lane(piece.forward, gathers), backward=_on_main_lane(piece.backward, reductions))


def _on_main_lane(ops: Ops, exposed: Sequence[Op]) -> Ops:
    """Returns ``ops`` with those that are ``exposed`` on the main lane."""
    ids = {id(op) for op in exposed}
    return tuple(replace(op, lane=Lane.MAIN) if id(op) in ids else op for op in ops)
