"""Times of one layer, embedding or head: one row a distinct layer layout, not a plan.

A piece's operations are timed one by one (solver.times.op_times), overlap decides what of them the rank waits for
(solver.times.overlap), and the host adds what it is late (solver.times.cpu_time).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.layout import Layout
from ops.op import Comm, Lane, MemoryBound, Op, Ops, Pass, Phase
from ops.roles import Module, Role
from profdb.layer_sum import LayerSum
from profdb.overlap_losses import Losses
from solver.times.contention import mean_losses
from solver.times.cpu_time import host_shares, issuing_s
from solver.times.expert_overlap import TimedPass, across_passes
from solver.times.op_times import COMPUTE_BOUND, OpTimer, TimedOp
from solver.times.overlap import exposed_shares
from solver.times.step_parts import Share, SumByPart, sum_by_part, total_by_part
from spec.arrays import FloatArray
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTimes:
    """Seconds that both passes of a layer wait for the experts' exchange, by part, what that and products beside it
    lose to each other (None where no profile measured it), and the seconds that the host needs to issue the passes."""

    forward: SumByPart
    backward: SumByPart
    forward_host_s: FloatArray
    backward_host_s: FloatArray
    losses: Losses | None = None

    @staticmethod
    def none(rows: int) -> "ExchangeTimes":
        """Returns the times of layers without experts: zero."""
        zero, nothing = np.zeros(rows), SumByPart(length=rows)
        return ExchangeTimes(forward=nothing, backward=nothing, forward_host_s=zero, backward_host_s=zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds of one micro-batch through one layer, ``forward`` and ``backward``.

    ``weight_s`` is the part of the backward that only makes weight gradients, which zero-bubble schedules defer (0
    under others); ``products_s`` the matrix products of both passes (TimedOp.products_s); ``exchange`` the experts'
    exchange where a schedule may hide it beside another chunk.
    """

    forward: SumByPart
    backward: SumByPart
    weight_s: FloatArray
    products_s: FloatArray
    exchange: ExchangeTimes | None = None

    @staticmethod
    def unknown(rows: int) -> "LayerTimes":
        """Returns the times of layers that no plan of interest has: not a number throughout."""
        nan = np.full(rows, np.nan)
        nothing = SumByPart(parts={"host": nan}, length=rows)
        return LayerTimes(forward=nothing, backward=nothing, weight_s=nan, products_s=nan)

    @staticmethod
    def stacked(parts: Sequence["LayerTimes"]) -> "LayerTimes":
        """The rows of all parts, one part after another."""
        exchanges = [one.exchange or ExchangeTimes.none(len(one.weight_s)) for one in parts]
        exchange = ExchangeTimes(
            forward=SumByPart.stacked([one.forward for one in exchanges]),
            backward=SumByPart.stacked([one.backward for one in exchanges]),
            forward_host_s=np.concatenate([one.forward_host_s for one in exchanges]),
            backward_host_s=np.concatenate([one.backward_host_s for one in exchanges]),
        )
        return LayerTimes(
            forward=SumByPart.stacked([one.forward for one in parts]),
            backward=SumByPart.stacked([one.backward for one in parts]),
            weight_s=np.concatenate([one.weight_s for one in parts]),
            products_s=np.concatenate([one.products_s for one in parts]),
            exchange=exchange if any(one.exchange for one in parts) else None,
        )


def layer_times(op_timer: OpTimer, job: JobSpec, piece: Pass, layout: Layout, *, split: bool = False) -> LayerTimes:
    """Returns the times of a piece for every row of ``layout``. ``split``: the schedule runs weight gradients apart."""
    rows = len(layout)
    passes = timed_passes(op_timer, job, piece, layout, split=split)
    host = host_shares(op_timer, job, layout, passes)
    sums = []
    products_s = np.zeros(rows)
    for (timed, shares), late in zip(passes, host, strict=True):
        sums.append(sum_by_part([*shares, late], rows))
        for one in timed:
            products_s = products_s + one.products_s
    exchanges = split and any(map(_exchanges, (*piece.forward, *piece.backward)))
    return LayerTimes(
        forward=sums[0],
        # Of a split backward the input gradients and the weight gradients.
        backward=sums[1] if len(sums) == 2 else total_by_part(sums[1:], rows),
        weight_s=sums[2].seconds if split else np.zeros(rows),
        products_s=products_s,
        exchange=_exchange_times(op_timer, job, layout, passes) if exchanges else None,
    )


def _exchange_times(op_timer: OpTimer, job: JobSpec, layout: Layout, passes: list[TimedPass]) -> ExchangeTimes:
    """Returns what passes wait for dispatch and combine of tokens."""
    rows, issuing = len(layout), issuing_s(op_timer, job, layout, passes)
    waits = [[share for one, share in zip(*one_pass, strict=True) if _exchanges(one.op)] for one_pass in passes]
    return ExchangeTimes(
        forward=sum_by_part(waits[0], rows),
        backward=sum_by_part([share for one_pass in waits[1:] for share in one_pass], rows),
        forward_host_s=issuing[0],
        backward_host_s=np.sum(issuing[1:], axis=0),
        losses=mean_losses([(one.seconds, one.losses) for timed, _ in passes for one in timed if _exchanges(one.op)]),
    )


def _exchanges(op: Op) -> bool:
    return op.role in (Role.DISPATCH, Role.COMBINE) and isinstance(op, Comm)


def timed_passes(
    op_timer: OpTimer, job: JobSpec, piece: Pass, layout: Layout, *, split: bool = False
) -> list[TimedPass]:
    """Returns forward and backward of a piece, each operation with the seconds that the rank waits for it.

    ``split``: the schedule defers weight gradients, so nothing hides beside them (zero bubble, arXiv 2401.10241: the
    backward stores their inputs and waits for its collective); they are a third pass.
    """
    # Deferred weight gradients are no partner of the collectives that ran beside them.
    backward = _on_main_lane(piece.backward, bulk=split) if split or job.delay_wgrad else piece.backward
    timed = tuple(op_timer.time(op, layout) for op in (*piece.forward, *backward))
    if op_timer.layers is not None:
        timed = as_a_layer(op_timer.layers, timed)
    ahead, back = list(timed[: len(piece.forward)]), list(timed[len(piece.forward) :])
    passes = [(ahead, exposed_shares(ahead, op_timer.contention)), (back, exposed_shares(back, op_timer.contention))]
    if any(op.lane is Lane.ACROSS for op in piece.forward):
        passes = list(across_passes(passes[0], passes[1], op_timer.contention, delayed=job.delay_wgrad))
    if split:
        passes[1:] = _halves(*passes[1])
    return passes


def as_a_layer(layers: LayerSum, timed: tuple[TimedOp, ...]) -> tuple[TimedOp, ...]:
    """Returns the passes of a piece with kernels scaled to what they take together in a layer, as a profile measured it
    (profdb.layer_sum); embedding and head are no layers."""
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
    """Returns a backward cut into input gradients, which the stage before waits for, and what only makes weight
    gradients. Each is issued by itself, so a slow host delays each by itself."""
    is_weight = [one.op.phase is Phase.WEIGHT_GRAD and one.op.lane is Lane.MAIN for one in timed]

    def half(weight: bool) -> TimedPass:
        places = [index for index, one in enumerate(is_weight) if one is weight]
        return [timed[index] for index in places], [shares[index] for index in places]

    return half(False), half(True)


def _on_main_lane(ops: Ops, *, bulk: bool) -> Ops:
    """Returns the operations with those that overlapped a weight gradient on the main lane; with ``bulk`` those too
    that user buffers run in pieces."""

    def alone(op: Op) -> bool:
        hidden = op.lane is Lane.OVERLAP and op.overlap_phase is Phase.WEIGHT_GRAD
        return hidden and (bulk or op.pieces is None)

    return tuple(replace(op, lane=Lane.MAIN) if alone(op) else op for op in ops)
