"""Times and bytes of one layer, embedding or head: per distinct layer layout, not per plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from ops.block import BareOps, ModelOps, bare_ops
from ops.data_parallel.step import RankParameters
from ops.layout import Layout, unique_rows
from ops.op import BatchedGemm, Comm, HostTransfer, Lane, MemoryBound, Op, Ops, Owner, Phase, Piece
from ops.recompute.layers import Recompute
from ops.roles import Module, Role
from profdb.lookup.overlap_losses import Losses
from solver.plans.plan_table import PlanTable
from solver.times.across_passes import TimedPass, across_passes
from solver.times.contention import averaged
from solver.times.host_floor import host_shares
from solver.times.op_times import COMPUTE_BOUND, Pricer, TimedOp
from solver.times.overlap import exposed
from solver.times.step_parts import Share, SumByPart, added, sum_by_part
from spec.arrays import FloatArray, IntArray
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.program.remembered import Remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What one layer keeps until its backward, the most it holds for a moment, copies of weights it keeps from
    step to step (``copied`` elements of weights have one), what of it waits on the host (``host_bytes``), the elements of
    logits that it makes, and those that it trains and holds frozen."""

    saved_bytes: FloatArray
    transient_bytes: FloatArray
    cached_bytes: FloatArray
    copied: FloatArray
    host_bytes: FloatArray
    logits: FloatArray
    parameters: RankParameters
    frozen: RankParameters

    @staticmethod
    def stacked(parts: Sequence["LayerBytes"]) -> "LayerBytes":
        """The rows of all parts, one part after another."""

        def held(chosen: list[RankParameters]) -> RankParameters:
            of = {owner: np.concatenate([one.of(owner) for one in chosen]) for owner in Owner}
            return RankParameters(dense=of[Owner.DENSE], weight=of[Owner.WEIGHT], expert=of[Owner.EXPERT])

        return LayerBytes(
            parameters=held([one.parameters for one in parts]),
            frozen=held([one.frozen for one in parts]),
            **{name: np.concatenate([getattr(one, name) for one in parts]) for name in BYTES},
        )


BYTES = tuple(one.name for one in fields(LayerBytes) if one.type is FloatArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One micro-batch through one layer: waiting times forward and backward, the part of the
    backward that only makes weight gradients, which zero-bubble schedules put off (0 where none does), what of
    both passes waits for the experts' exchange, in all its parts, and what that and products beside it lose to each other
    (None where nobody measured it). ``products_s``: matrix products of both passes, as TimedOp's."""

    forward: SumByPart
    backward: SumByPart
    weight_s: FloatArray
    products_s: FloatArray
    forward_exchange: SumByPart
    backward_exchange: SumByPart
    exchange_losses: Losses | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinctLayers:
    """The layers of a plan table, written down once per distinct layer layout.

    ``row[i]`` is the layer row of plan i; ``layout`` has one row per distinct layout; ``bare`` are the operations
    before any of them runs again, ``again`` the recompute mode and the modules that do.
    """

    layout: Layout
    row: IntArray
    bare: BareOps
    again: tuple[Recompute, tuple[str, ...]]
    ops: ModelOps

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every block kind, then the embedding, then the head."""
        return (*self.ops.blocks, self.ops.embedding, self.ops.head)

    @property
    def bytes(self) -> list[LayerBytes]:
        """Of every piece; runs of equal blocks share one."""
        return bytes_of_each([self])[0]

    def of_plans(self, rows: IntArray) -> "DistinctLayers":
        """Of these plans alone, though layouts may be left that none of them has."""
        return replace(self, row=self.row[rows])

    def running_again(self, recompute: Recompute, modules: tuple[str, ...] = ()) -> "DistinctLayers":
        """Under another recompute mode, or with other ``modules`` run again."""
        again = (recompute, modules)
        return (
            self if again == self.again else replace(self, again=again, ops=self.bare.running_again(*again))
        )


def distinct_layers(
    model: ModelSpec, job: JobSpec, plans: PlanTable, like: DistinctLayers | None = None
) -> DistinctLayers:
    """The layers of the plans; those of ``like`` where these have all the plans' layouts under the same strategy.

    Only tp, cp, ep, etp, wp, the micro-batch, what is sharded from stage 2 on and which layers are offloaded
    change what a layer runs and where; a tied head owns weights only where pp > 1."""
    layout, again = plans.layout, (plans.recompute, plans.recompute_modules)
    keys = _layer_keys(layout)
    if (
        like is not None
        and like.bare.sharding is plans.sharding
        and like.layout.world_size == layout.world_size
    ):
        held = len(like.layout)
        both = zip(_layer_keys(like.layout), keys, strict=True)
        first, inverse = unique_rows(tuple(np.concatenate(one) for one in both))
        row = first[inverse[held:]]
        if (row < held).all():
            return replace(like, row=row).running_again(*again)
    first, inverse = unique_rows(keys)
    distinct = layout.take(first)
    bare = bare_ops(model, job, distinct, plans.strategy)
    return DistinctLayers(
        layout=distinct, row=inverse, bare=bare, again=again, ops=bare.running_again(*again)
    )


def _layer_keys(layout: Layout) -> tuple[IntArray, ...]:
    """What layers of equal layouts have in common."""
    several = (layout.pp > 1).astype(np.int64)
    deep = np.where(layout.zero_stage >= 2, layout.zero_stage, 0)
    groups = np.where(deep > 0, layout.zero_size * (layout.world_size + 1) + layout.dp, 0)
    sizes = (layout.tp, layout.cp, layout.ep, layout.etp, layout.wp, layout.micro_batch)
    return (*sizes, several, deep, groups, layout.offloaded_layers)


def bytes_of_each(layers: Sequence[DistinctLayers]) -> list[list[LayerBytes]]:
    """The bytes of the layers of each of several, which have the same layouts; pieces that they share are counted once."""
    known = Remembered()
    return [
        [known.once((piece,), partial(layer_bytes, piece, len(one.layout))) for piece in one.pieces]
        for one in layers
    ]


def layer_bytes(piece: Piece, rows: int) -> LayerBytes:
    """Sums over the operations of a piece; transients are held together while the piece runs."""
    forward = piece.forward

    def total(values: list[FloatArray | IntArray]) -> FloatArray:
        result = np.zeros(rows)
        for value in values:
            result = result + value
        return result

    def held(count: Callable[[Op], IntArray]) -> RankParameters:
        of = {
            owner: total([count(op) for op in forward if op.owner is owner]).astype(np.int64)
            for owner in Owner
        }
        return RankParameters(dense=of[Owner.DENSE], weight=of[Owner.WEIGHT], expert=of[Owner.EXPERT])

    return LayerBytes(
        saved_bytes=total([op.saved_bytes for op in forward]),
        transient_bytes=total([op.transient_bytes for op in forward]),
        cached_bytes=total([op.cached_bytes for op in forward]),
        copied=total([(op.parameters + op.frozen) * (op.cached_bytes > 0) for op in forward]),
        host_bytes=total([op.size_bytes for op in forward if isinstance(op, HostTransfer)]),
        logits=total(
            [op.m * op.n for op in forward if isinstance(op, BatchedGemm) and op.role is Role.LOGITS]
        ),
        parameters=held(lambda op: op.parameters),
        frozen=held(lambda op: op.frozen),
    )


def layer_times(
    pricer: Pricer, job: JobSpec, piece: Piece, layout: Layout, *, split: bool = False
) -> LayerTimes:
    """Price a piece, let overlap decide what the rank waits for, and the host where it is slower."""
    passes = timed_passes(pricer, job, piece, layout, split=split)
    host = host_shares(pricer, job, layout, passes)
    tallies = [
        sum_by_part([*shares, late], len(layout)) for (_, shares), late in zip(passes, host, strict=True)
    ]
    return LayerTimes(
        forward=tallies[0],
        backward=added(tallies[1:], len(layout)),
        weight_s=tallies[2].seconds if split else np.zeros(len(layout)),
        products_s=np.sum([one.products_s for timed, _ in passes for one in timed], axis=0)
        + np.zeros(len(layout)),
        forward_exchange=_exchange(passes[:1], len(layout)),
        backward_exchange=_exchange(passes[1:], len(layout)),
        exchange_losses=averaged(
            [(one.seconds, one.losses) for timed, _ in passes for one in timed if _exchanges(one)]
        ),
    )


def timed_passes(
    pricer: Pricer, job: JobSpec, piece: Piece, layout: Layout, *, split: bool = False
) -> list[TimedPass]:
    """Forward and backward of a piece, each operation with what the rank waits for it.

    ``split``: the schedule puts weight gradients off, so nothing hides beside them (zero bubble,
    arXiv 2401.10241: the backward stores their inputs and waits for its collective); they are a third pass.
    """
    backward = _without_partner(piece.backward, bulk=split) if split or job.delay_wgrad else piece.backward
    both = (piece.forward, backward)
    timed = as_a_layer(pricer, [[pricer.time(op, layout) for op in ops] for ops in both])
    ahead, back = ((ops, exposed(ops, pricer.contention)) for ops in timed)
    passes = list(across_passes(ahead, back, pricer.contention, delayed=job.delay_wgrad))
    if split:
        passes[1:] = _halves(*passes[1])
    return passes


def as_a_layer(pricer: Pricer, passes: list[list[TimedOp]]) -> list[list[TimedOp]]:
    """The passes of a piece with their kernels as long as together in a layer, where that was measured
    (profdb.lookup.layer_sum); embedding and head are none."""
    kernels = [one for timed in passes for one in timed if _of_a_layer(one)]
    if pricer.layers is None or not kernels:
        return passes
    factor = pricer.layers.factor(np.sum([one.seconds for one in kernels], axis=0))
    return [
        [replace(one, seconds=one.seconds * factor) if _of_a_layer(one) else one for one in timed]
        for timed in passes
    ]


def _of_a_layer(timed: TimedOp) -> bool:
    return isinstance(timed.op, KERNELS) and timed.op.module not in ENDS


KERNELS = (*COMPUTE_BOUND, MemoryBound)
ENDS = (Module.EMBEDDING, Module.HEAD, Module.LOSS)


def _exchange(passes: list[TimedPass], rows: int) -> SumByPart:
    """What passes wait for tokens on their way to experts and back."""
    waits = [
        share for timed, shares in passes for one, share in zip(timed, shares, strict=True) if _exchanges(one)
    ]
    return sum_by_part(waits, rows)


def _exchanges(one: TimedOp) -> bool:
    return one.op.role in (Role.DISPATCH, Role.COMBINE) and isinstance(one.op, Comm)


def _halves(timed: list[TimedOp], shares: list[Share]) -> tuple[TimedPass, TimedPass]:
    """A backward cut into what the stage before waits for and what only makes weight gradients: each is issued
    by itself, so a slow host holds up each by itself."""
    later = [one.op.phase is Phase.WEIGHT_GRAD and one.op.lane is Lane.MAIN for one in timed]

    def half(wanted: bool) -> TimedPass:
        chosen = [index for index, late in enumerate(later) if late is wanted]
        return [timed[index] for index in chosen], [shares[index] for index in chosen]

    return half(False), half(True)


def _without_partner(ops: Ops, *, bulk: bool) -> Ops:
    """What ran beside a weight gradient is waited for; what user buffers run there in bulk only where said."""

    def alone(op: Op) -> bool:
        hidden = op.lane is Lane.BESIDE and op.beside_phase is Phase.WEIGHT_GRAD
        return hidden and (bulk or op.pieces is None)

    return tuple(replace(op, lane=Lane.MAIN) if alone(op) else op for op in ops)
