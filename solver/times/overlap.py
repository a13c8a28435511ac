"""What of a pass's communication a rank waits for: the exposed part, by the operation's lane.

    MAIN       waited for
    OVERLAP    runs beside one product or attention call that the operation names (``exposed_s``)
    PIECES     cut into pieces with the product that makes or uses its array (``in_pieces``)
    PREFETCH   runs beside the whole pass: weights of the next layer, gradients of the last one
    COPY       the same for copy engines, which take no multiprocessors
    ACROSS     the experts' exchange beside the other pass (solver.times.expert_overlap)

Nothing hides more than the shorter of communication and computation, and less where both use the same resource
(solver.times.contention).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ops.op import Comm, Lane, Phase, Pieces
from ops.roles import OpKey
from solver.times.contention import ALONE, COLLECTIVE_BLOCKS, Contention, mean_losses
from solver.times.op_times import TimedOp
from solver.times.step_parts import Share
from spec.arrays import FloatArray


def exposed_s(
    comm_s: FloatArray, compute_s: FloatArray, loss: FloatArray | float, comm_loss: FloatArray | float = 0.0
) -> FloatArray:
    """Returns the seconds that a collective adds to what it runs beside (arXiv 2205.05198 sec. 4.2.2): what outlasts
    the compute, and what the compute loses meanwhile. While both run the compute loses a share ``loss`` of its rate and
    the collective ``comm_loss``."""
    # Both run until the first of them is done, each at its lower rate.
    together = np.minimum(comm_s / (1.0 - comm_loss), compute_s / (1.0 - loss))
    left = np.maximum(comm_s - together * (1.0 - comm_loss), 0.0)
    return np.asarray(left + loss * together, dtype=np.float64)


def _overlap_with(timed: TimedOp, partner: TimedOp, contention: Contention) -> FloatArray:
    """Returns the exposed seconds of a collective beside the product or attention call that it names, whole or in
    pieces. Frameworks that cut both into pieces keep the product off the collective's multiprocessors (Transformer
    Engine, set_sm_margin)."""
    pieces = timed.op.pieces
    if pieces is None:
        return exposed_s(
            timed.seconds,
            partner.seconds,
            *contention.shares_lost(partner.seconds, partner.products_s, measured=timed.losses),
        )
    loss = contention.sm_share * pieces.thread_blocks / COLLECTIVE_BLOCKS
    if timed.op.lane is Lane.OVERLAP:
        return exposed_s(timed.seconds, partner.seconds, loss)
    cut = in_pieces(timed.seconds, partner.seconds, pieces, loss)
    return np.where(timed.crosses, timed.seconds, cut)


def in_pieces(comm_s: FloatArray, compute_s: FloatArray, pieces: Pieces, loss: float) -> FloatArray:
    """Returns the exposed seconds of a collective cut into pieces with the product that makes or uses its array
    (ops.tp_overlap): of ``n`` pieces ``1 - 1 / n`` of the product run beside the collective."""
    one_piece = 1.0 / pieces.count
    # The last piece of a reduction follows the last piece of the product.
    last_s = comm_s * one_piece if pieces.last_waits else np.zeros_like(comm_s)
    return last_s + exposed_s(comm_s - last_s, compute_s * (1.0 - one_piece), loss)


def exposed_shares(pass_ops: Sequence[TimedOp], contention: Contention = ALONE) -> list[Share]:
    """Returns the seconds that a rank waits for each operation of one pass of one layer.

    Weights of the next layer and gradients of the last one run beside all that a layer does in this pass (arXiv
    2401.09149 sec. 3.3). What Lane.ACROSS leaves exposed solver.times.expert_overlap says.
    """
    shares: list[Share] = list(pass_ops)
    rows = len(pass_ops[0].seconds) if pass_ops else 1
    partners: dict[tuple[OpKey | None, Phase], TimedOp] = {}
    for timed in pass_ops:
        if timed.part in ("gemm", "attention"):
            partners[timed.op.key, timed.op.phase] = timed
    # Seconds that the rank works and waits on the main stream, which prefetches run beside.
    main_s, products_s = np.zeros(rows), np.zeros(rows)
    for index, timed in enumerate(pass_ops):
        lane, named = timed.op.lane, (timed.op.overlaps, timed.op.overlap_phase)
        if lane in (Lane.PREFETCH, Lane.COPY, Lane.ACROSS):
            continue
        # In a recomputed forward the product of a saved array does not run, and its collective has no pieces.
        if lane is Lane.OVERLAP or (lane is Lane.PIECES and named in partners):
            shares[index] = replace(timed, seconds=_overlap_with(timed, partners[named], contention))
        main_s = main_s + shares[index].seconds
        products_s = products_s + timed.products_s
    if any(timed.op.lane is Lane.PREFETCH for timed in pass_ops):
        prefetches = [timed for timed in pass_ops if timed.op.lane is Lane.PREFETCH]
        measured = mean_losses([(one.seconds, one.losses) for one in prefetches])
        shares_lost = contention.shares_lost(main_s, products_s, _thread_blocks(prefetches), measured)
        main_s = main_s + _overlap_lane(Lane.PREFETCH, pass_ops, shares, main_s, shares_lost)
    if any(timed.op.lane is Lane.COPY for timed in pass_ops):
        _overlap_lane(Lane.COPY, pass_ops, shares, main_s, (0.0, 0.0))
    return shares


def _overlap_lane(
    lane: Lane,
    pass_ops: Sequence[TimedOp],
    shares: list[Share],
    main_s: FloatArray,
    shares_lost: tuple[FloatArray | float, FloatArray | float],
) -> FloatArray:
    """Returns the exposed seconds of all of a lane, which runs beside ``main_s``, and writes the part of each operation
    into ``shares``, in proportion to its seconds."""
    total_s = np.zeros_like(main_s)
    for timed in pass_ops:
        if timed.op.lane is lane:
            total_s = total_s + timed.seconds
    wait_s = exposed_s(total_s, main_s, *shares_lost)
    left = np.divide(wait_s, total_s, out=np.zeros_like(total_s), where=total_s > 0)
    for index, timed in enumerate(pass_ops):
        if timed.op.lane is lane:
            shares[index] = replace(timed, seconds=timed.seconds * left)
    return wait_s


def _thread_blocks(prefetches: Sequence[TimedOp]) -> FloatArray:
    """Returns the mean thread blocks of what is prefetched, by its seconds; NCCL's where an operation names none."""
    busy_s, block_s = np.zeros(1), np.zeros(1)
    for timed in prefetches:
        own = timed.op.thread_blocks if isinstance(timed.op, Comm) else 0
        busy_s = busy_s + timed.seconds
        block_s = block_s + timed.seconds * (own or COLLECTIVE_BLOCKS)
    return np.divide(block_s, busy_s, out=np.full_like(block_s, COLLECTIVE_BLOCKS), where=busy_s > 0.0)


def buckets_exposed_s(
    comm_s: FloatArray,
    compute_s: FloatArray,
    buckets: FloatArray,
    loss: FloatArray | float,
    comm_loss: FloatArray | float = 0.0,
) -> FloatArray:
    """Returns the exposed seconds of a reduction in buckets beside a pass: the last bucket (or first, for a gather) is
    always waited for, the others run beside the pass (arXiv 2006.15704 sec. 3.2.3)."""
    last = comm_s / buckets
    return last + exposed_s(comm_s - last, compute_s * (1.0 - 1.0 / buckets), loss, comm_loss)
