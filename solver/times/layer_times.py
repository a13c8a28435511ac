"""Times and bytes of one layer, embedding or head: per distinct layer layout, not per plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.layout import Layout
from ops.op import Comm, Lane, MemoryBound, Op, Ops, Pass, Phase
from ops.roles import Module, Role
from profdb.layer_sum import LayerSum
from profdb.overlap_losses import Losses
from solver.times.contention import averaged
from solver.times.cpu_time import host_shares, issuing_s
from solver.times.expert_overlap import TimedPass, across_passes
from solver.times.op_times import COMPUTE_BOUND, OpTimer, TimedOp
from solver.times.overlap import exposed
from solver.times.step_parts import Share, SumByPart, sum_by_part, total_by_part
from spec.arrays import FloatArray
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTimes:
    """What both passes of a layer wait for the experts' exchange, in all its parts, what that and products beside it
    lose to each other (None where nobody measured it), and what the host needs to issue the passes."""

    forward: SumByPart
    backward: SumByPart
    forward_host_s: FloatArray
    backward_host_s: FloatArray
    losses: Losses | None = None

    @staticmethod
    def none(rows: int) -> "ExchangeTimes":
        """Returns those of layers without experts."""
        zero, nothing = np.zeros(rows), SumByPart(length=rows)
        return ExchangeTimes(forward=nothing, backward=nothing, forward_host_s=zero, backward_host_s=zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """One micro-batch through one layer: waiting times forward and backward, the part of the backward that only makes
    weight gradients, which zero-bubble schedules put off (0 where none does), and the matrix products of both passes
    (TimedOp.products_s). ``exchange`` is kept where a schedule may hide it beside another chunk."""

    forward: SumByPart
    backward: SumByPart
    weight_s: FloatArray
    products_s: FloatArray
    exchange: ExchangeTimes | None = None

    @staticmethod
    def unknown(rows: int) -> "LayerTimes":
        """Returns the times of layers that nobody asked about: not a number throughout."""
        nan = np.full(rows, np.nan)
        nothing = SumByPart(parts={"host": nan}, length=rows)
        return LayerTimes(forward=nothing, backward=nothing, weight_s=nan, products_s=nan)

    @staticmethod
    def stacked(parts: Sequence["LayerTimes"]) -> "LayerTimes":
        """The rows of all parts, one part after another."""
        kept = [one.exchange or ExchangeTimes.none(len(one.weight_s)) for one in parts]
        exchange = ExchangeTimes(
            forward=SumByPart.stacked([one.forward for one in kept]),
            backward=SumByPart.stacked([one.backward for one in kept]),
            forward_host_s=np.concatenate([one.forward_host_s for one in kept]),
            backward_host_s=np.concatenate([one.backward_host_s for one in kept]),
        )
        return LayerTimes(
            forward=SumByPart.stacked([one.forward for one in parts]),
            backward=SumByPart.stacked([one.backward for one in parts]),
            weight_s=np.concatenate([one.weight_s for one in parts]),
            products_s=np.concatenate([one.products_s for one in parts]),
            exchange=exchange if any(one.exchange for one in parts) else None,
        )


def layer_times(op_timer: OpTimer, job: JobSpec, piece: Pass, layout: Layout, *, split: bool = False) -> LayerTimes:
    """Price a piece, let overlap decide what the rank waits for, and the host where it is slower."""
    rows = len(layout)
    passes = timed_passes(op_timer, job, piece, layout, split=split)
    host = host_shares(op_timer, job, layout, passes)
    tallies = []
    products_s = np.zeros(rows)
    for (timed, shares), late in zip(passes, host, strict=True):
        tallies.append(sum_by_part([*shares, late], rows))
        for one in timed:
            products_s = products_s + one.products_s
    exchanges = split and any(map(_exchanges, (*piece.forward, *piece.backward)))
    return LayerTimes(
        forward=tallies[0],
        backward=tallies[1] if len(tallies) == 2 else total_by_part(tallies[1:], rows),
        weight_s=tallies[2].seconds if split else np.zeros(rows),
        products_s=products_s,
        exchange=_exchange_times(op_timer, job, layout, passes) if exchanges else None,
    )


def _exchange_times(op_timer: OpTimer, job: JobSpec, layout: Layout, passes: list[TimedPass]) -> ExchangeTimes:
    """Returns what passes wait for tokens on their way to experts and back."""
    rows, issuing = len(layout), issuing_s(op_timer, job, layout, passes)
    waits = [[share for one, share in zip(*one_pass, strict=True) if _exchanges(one.op)] for one_pass in passes]
    return ExchangeTimes(
        forward=sum_by_part(waits[0], rows),
        backward=sum_by_part([share for one_pass in waits[1:] for share in one_pass], rows),
        forward_host_s=issuing[0],
        backward_host_s=np.sum(issuing[1:], axis=0),
        losses=averaged([(one.seconds, one.losses) for timed, _ in passes for one in timed if _exchanges(one.op)]),
    )


def _exchanges(op: Op) -> bool:
    return op.role in (Role.DISPATCH, Role.COMBINE) and isinstance(op, Comm)


def timed_passes(
    op_timer: OpTimer, job: JobSpec, piece: Pass, layout: Layout, *, split: bool = False
) -> list[TimedPass]:
    """Forward and backward of a piece, each operation with what the rank waits for it.

    ``split``: the schedule puts weight gradients off, so nothing hides beside them (zero bubble,
    arXiv 2401.10241: the backward stores their inputs and waits for its collective); they are a third pass.
    """
    backward = _without_partner(piece.backward, bulk=split) if split or job.delay_wgrad else piece.backward
    timed = tuple(op_timer.time(op, layout) for op in (*piece.forward, *backward))
    if op_timer.layers is not None:
        timed = as_a_layer(op_timer.layers, timed)
    ahead, back = list(timed[: len(piece.forward)]), list(timed[len(piece.forward) :])
    passes = [(ahead, exposed(ahead, op_timer.contention)), (back, exposed(back, op_timer.contention))]
    if any(op.lane is Lane.ACROSS for op in piece.forward):
        passes = list(across_passes(passes[0], passes[1], op_timer.contention, delayed=job.delay_wgrad))
    if split:
        passes[1:] = _halves(*passes[1])
    return passes


def as_a_layer(layers: LayerSum, timed: tuple[TimedOp, ...]) -> tuple[TimedOp, ...]:
    """The passes of a piece with their kernels as long as together in a layer, where that was measured
    (profdb.layer_sum); embedding and head are none."""
    kernels = [one for one in timed if _of_a_layer(one)]
    if not kernels:
        return timed
    factor = layers.factor(np.sum([one.seconds for one in kernels], axis=0))
    return tuple(replace(one, seconds=one.seconds * factor) if _of_a_layer(one) else one for one in timed)


def _of_a_layer(timed: TimedOp) -> bool:
    return isinstance(timed.op, KERNELS) and timed.op.module not in ENDS


KERNELS = (*COMPUTE_BOUND, MemoryBound)
ENDS = (Module.EMBEDDING, Module.HEAD, Module.LOSS)


def _halves(timed: list[TimedOp], shares: list[Share]) -> tuple[TimedPass, TimedPass]:
    """A backward cut into what the stage before waits for and what only makes weight gradients: each is issued
    by itself, so a slow host holds up each by itself."""
    later = [one.op.phase is Phase.WEIGHT_GRAD and one.op.lane is Lane.MAIN for one in timed]

    def half(wanted: bool) -> TimedPass:
        chosen = [index for index, late in enumerate(later) if late is wanted]
        return [timed[index] for index in chosen], [shares[index] for index in chosen]

    return half(False), half(True)


def _without_partner(ops: Ops, *, bulk: bool) -> Ops:
    """Returns what ran beside a weight gradient is waited for; what user buffers run there in bulk only where said."""

    def alone(op: Op) -> bool:
        hidden = op.lane is Lane.OVERLAP and op.overlap_phase is Phase.WEIGHT_GRAD
        return hidden and (bulk or op.pieces is None)

    return tuple(replace(op, lane=Lane.MAIN) if alone(op) else op for op in ops)
