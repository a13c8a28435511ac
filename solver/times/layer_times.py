"""Times and bytes of one layer, embedding or head: per distinct layer layout, not per plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.layout import Layout
from ops.op import Comm, Lane, MemoryBound, Op, Ops, Phase, Piece
from ops.roles import Module, Role
from profdb.lookup.overlap_losses import Losses
from solver.times.contention import averaged
from solver.times.cpu_time import host_shares, issuing_s
from solver.times.expert_overlap import TimedPass, across_passes
from solver.times.op_times import COMPUTE_BOUND, Pricer, TimedOp
from solver.times.overlap import exposed
from solver.times.step_parts import Share, SumByPart, added, sum_by_part
from spec.arrays import FloatArray
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One micro-batch through one layer: waiting times forward and backward, the part of the backward that
    only makes weight gradients, which zero-bubble schedules put off (0 where none does), what of both passes
    waits for the experts' exchange, in all its parts, and what that and products beside it lose to each other
    (None where nobody measured it). ``products_s``: matrix products of both passes, as TimedOp's. ``forward_host_s`` and
    ``backward_host_s``: what the host needs to issue them, counted where an exchange may hide beside another chunk."""

    forward: SumByPart
    backward: SumByPart
    weight_s: FloatArray
    products_s: FloatArray
    forward_exchange: SumByPart
    backward_exchange: SumByPart
    forward_host_s: FloatArray
    backward_host_s: FloatArray
    exchange_losses: Losses | None = None

    @staticmethod
    def unknown(rows: int) -> "LayerTimes":
        """Of layers that nobody asked about: not a number throughout."""
        nan = np.full(rows, np.nan)
        nothing = SumByPart(parts={"host": nan}, length=rows)
        return LayerTimes(
            forward=nothing,
            backward=nothing,
            weight_s=nan,
            products_s=nan,
            forward_exchange=nothing,
            backward_exchange=nothing,
            forward_host_s=nan,
            backward_host_s=nan,
        )

    @staticmethod
    def stacked(parts: Sequence["LayerTimes"]) -> "LayerTimes":
        """The rows of all parts, one part after another."""

        def tallies(name: str) -> SumByPart:
            return SumByPart.stacked([getattr(one, name) for one in parts])

        return LayerTimes(
            forward=tallies("forward"),
            backward=tallies("backward"),
            weight_s=np.concatenate([one.weight_s for one in parts]),
            products_s=np.concatenate([one.products_s for one in parts]),
            forward_exchange=tallies("forward_exchange"),
            backward_exchange=tallies("backward_exchange"),
            forward_host_s=np.concatenate([one.forward_host_s for one in parts]),
            backward_host_s=np.concatenate([one.backward_host_s for one in parts]),
            exchange_losses=None,
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
    issuing: list[FloatArray] = [np.zeros(len(layout))] * len(passes)
    if split and any(_exchanges(one) for timed, _ in passes for one in timed):
        issuing = issuing_s(pricer, job, layout, passes)
    return LayerTimes(
        forward=tallies[0],
        backward=added(tallies[1:], len(layout)),
        weight_s=tallies[2].seconds if split else np.zeros(len(layout)),
        products_s=np.sum([one.products_s for timed, _ in passes for one in timed], axis=0)
        + np.zeros(len(layout)),
        forward_exchange=_exchange(passes[:1], len(layout)),
        backward_exchange=_exchange(passes[1:], len(layout)),
        forward_host_s=issuing[0],
        backward_host_s=np.sum(issuing[1:], axis=0),
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
