"""What of a pass's communication the rank waits for: one function per lane.

Nothing hides more than the shorter of communication and computation, and less where both want one resource
(solver.times.contention).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ops.op import Comm, Lane, Phase, Pieces
from ops.roles import OpKey
from solver.times.contention import ALONE, COLLECTIVE_BLOCKS, Contention, averaged
from solver.times.op_times import TimedOp
from solver.times.step_parts import Share
from spec.arrays import FloatArray


def beside(
    comm_s: FloatArray,
    compute_s: FloatArray,
    loss: FloatArray | float,
    comm_loss: FloatArray | float = 0.0,
) -> FloatArray:
    """A collective beside one GEMM or attention call (arXiv 2205.05198 sec. 4.2.2): what outlasts it, and the
    ``loss`` of the compute meanwhile, a share of the time that both run, in which the collective loses
    ``comm_loss``."""
    together = np.minimum(comm_s / (1.0 - comm_loss), compute_s / (1.0 - loss))
    left = np.maximum(comm_s - together * (1.0 - comm_loss), 0.0)
    return np.asarray(left + loss * together, dtype=np.float64)


def _beside_one(timed: TimedOp, partner: TimedOp, contention: Contention) -> FloatArray:
    """A collective beside the product or attention call that it names, whole or in pieces. Who cuts them into
    pieces keeps the product off the multiprocessors that the collective takes (Transformer Engine,
    set_sm_margin)."""
    pieces = timed.op.pieces
    if pieces is None:
        return beside(
            timed.seconds,
            partner.seconds,
            *contention.lost(partner.seconds, partner.products_s, measured=timed.losses),
        )
    taken = contention.sm_share * pieces.thread_blocks / COLLECTIVE_BLOCKS
    if timed.op.lane is Lane.OVERLAP:
        return beside(timed.seconds, partner.seconds, taken)
    cut = in_pieces(timed.seconds, partner.seconds, pieces, taken)
    return np.where(timed.crosses, timed.seconds, cut)


def in_pieces(comm_s: FloatArray, compute_s: FloatArray, pieces: Pieces, loss: float) -> FloatArray:
    """A collective cut into pieces with the product that makes or uses its array (ops.tp_overlap): of
    ``n`` pieces ``1 - 1 / n`` of the product run beside what of the collective can."""
    alone = 1.0 / pieces.count
    waited = comm_s * alone if pieces.last_waits else np.zeros_like(comm_s)
    return waited + beside(comm_s - waited, compute_s * (1.0 - alone), loss)


def exposed(pass_ops: Sequence[TimedOp], contention: Contention = ALONE) -> list[Share]:
    """Returns what a rank waits for every operation of one pass of one layer.

    Weights of the next layer and gradients of the last one run beside all a layer does in this pass
    (arXiv 2401.09149 sec. 3.3). Of Lane.ACROSS solver.times.expert_overlap says what is left.
    """
    shares: list[Share] = list(pass_ops)
    rows = len(pass_ops[0].seconds) if pass_ops else 1
    partners: dict[tuple[OpKey | None, Phase], TimedOp] = {}
    for timed in pass_ops:
        if timed.part in ("gemm", "attention"):
            partners[timed.op.key, timed.op.phase] = timed
    main_s, products_s = np.zeros(rows), np.zeros(rows)
    for index, timed in enumerate(pass_ops):
        lane, named = timed.op.lane, (timed.op.overlaps, timed.op.overlap_phase)
        if lane in (Lane.PREFETCH, Lane.COPY, Lane.ACROSS):
            continue
        # What is kept is not made again, and then pieces have no product to take turns with.
        if lane is Lane.OVERLAP or (lane is Lane.PIECES and named in partners):
            shares[index] = replace(timed, seconds=_beside_one(timed, partners[named], contention))
        main_s = main_s + shares[index].seconds
        products_s = products_s + timed.products_s
    if any(timed.op.lane is Lane.PREFETCH for timed in pass_ops):
        prefetched = [timed for timed in pass_ops if timed.op.lane is Lane.PREFETCH]
        lost = averaged([(one.seconds, one.losses) for one in prefetched])
        shares_lost = contention.lost(main_s, products_s, _thread_blocks(prefetched), lost)
        main_s = main_s + _hidden(Lane.PREFETCH, pass_ops, shares, main_s, shares_lost)
    if any(timed.op.lane is Lane.COPY for timed in pass_ops):
        _hidden(Lane.COPY, pass_ops, shares, main_s, (0.0, 0.0))
    return shares


def _hidden(
    lane: Lane,
    pass_ops: Sequence[TimedOp],
    shares: list[Share],
    main_s: FloatArray,
    lost: tuple[FloatArray | float, FloatArray | float],
) -> FloatArray:
    """Seconds that a rank waits for all of a lane, which runs beside ``main_s``; writes each its part into
    ``shares``."""
    total_s = np.zeros_like(main_s)
    for timed in pass_ops:
        if timed.op.lane is lane:
            total_s = total_s + timed.seconds
    wait_s = beside(total_s, main_s, *lost)
    left = np.divide(wait_s, total_s, out=np.zeros_like(total_s), where=total_s > 0)
    for index, timed in enumerate(pass_ops):
        if timed.op.lane is lane:
            shares[index] = replace(timed, seconds=timed.seconds * left)
    return wait_s


def _thread_blocks(prefetched: Sequence[TimedOp]) -> FloatArray:
    """Thread blocks of what runs ahead, by its seconds; of each as many as it says it runs in."""
    busy_s, taken_s = np.zeros(1), np.zeros(1)
    for timed in prefetched:
        own = timed.op.thread_blocks if isinstance(timed.op, Comm) else 0
        busy_s = busy_s + timed.seconds
        taken_s = taken_s + timed.seconds * (own or COLLECTIVE_BLOCKS)
    return np.divide(taken_s, busy_s, out=np.full_like(taken_s, COLLECTIVE_BLOCKS), where=busy_s > 0.0)


def bucketed(
    comm_s: FloatArray,
    compute_s: FloatArray,
    buckets: FloatArray,
    loss: FloatArray | float,
    comm_loss: FloatArray | float = 0.0,
) -> FloatArray:
    """A reduction in buckets beside a pass: the last bucket (or first, for a gather) is always
    waited for, the others run beside the pass (arXiv 2006.15704 sec. 3.2.3)."""
    last = comm_s / buckets
    return last + beside(comm_s - last, compute_s * (1.0 - 1.0 / buckets), loss, comm_loss)
