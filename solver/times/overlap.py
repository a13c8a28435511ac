"""What of a pass's communication the rank waits for: one function per lane.

Nothing hides more than the shorter of communication and computation, and less where both want one resource
(solver.times.contention).
"""

from collections.abc import Sequence

import numpy as np

from ops.op import Comm, Lane, Phase, Pieces
from ops.roles import OpKey
from solver.times.contention import ALONE, COLLECTIVE_BLOCKS, Contention, averaged, lost_by_collective
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
            contention.loss(partner.seconds, partner.products_s, measured=timed.losses),
            lost_by_collective(partner.seconds, partner.products_s, timed.losses),
        )
    taken = contention.sm_share * pieces.thread_blocks / COLLECTIVE_BLOCKS
    if timed.op.lane is Lane.BESIDE:
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
    """The waiting time of every operation of one pass of one layer.

    Weights of the next layer and gradients of the last one run beside all a layer does in this pass
    (arXiv 2401.09149 sec. 3.3).
    """
    rows = len(pass_ops[0].seconds) if pass_ops else 1
    partners: dict[tuple[OpKey | None, Phase], TimedOp] = {
        (timed.op.key, timed.op.phase): timed for timed in pass_ops if timed.part in ("gemm", "attention")
    }
    waits: dict[int, FloatArray] = {}
    main_s = np.zeros(rows)
    products_s = np.zeros(rows)
    ahead_s = np.zeros(rows)
    copied_s = np.zeros(rows)
    for index, timed in enumerate(pass_ops):
        lane = timed.op.lane
        if lane is Lane.PREFETCH:
            ahead_s = ahead_s + timed.seconds
            continue
        if lane is Lane.ACROSS:
            waits[index] = timed.seconds  # solver.times.expert_overlap says what is left
            continue
        if lane is Lane.COPY:
            copied_s = copied_s + timed.seconds
            continue
        wait = timed.seconds
        named = (timed.op.beside, timed.op.beside_phase)
        # What is kept is not made again, and then pieces have no product to take turns with.
        if lane is Lane.BESIDE or (lane is Lane.PIECES and named in partners):
            wait = _beside_one(timed, partners[named], contention)
        waits[index] = wait
        main_s = main_s + wait
        products_s = products_s + timed.products_s
    lost = averaged([(one.seconds, one.losses) for one in pass_ops if one.op.lane is Lane.PREFETCH])
    over = beside(
        ahead_s,
        main_s,
        contention.loss(main_s, products_s, _ahead_blocks(pass_ops), lost),
        lost_by_collective(main_s, products_s, lost),
    )
    late = beside(copied_s, main_s + over, 0.0)
    left = {
        Lane.PREFETCH: np.divide(over, ahead_s, out=np.zeros(rows), where=ahead_s > 0),
        Lane.COPY: np.divide(late, copied_s, out=np.zeros(rows), where=copied_s > 0),
    }
    return [
        Share(
            part=timed.part,
            family=timed.family,
            seconds=waits[index] if index in waits else timed.seconds * left[timed.op.lane],
            relative_std=timed.relative_std,
            origin=timed.origin,
            carried_std=timed.carried_std,
        )
        for index, timed in enumerate(pass_ops)
    ]


def _ahead_blocks(pass_ops: Sequence[TimedOp]) -> FloatArray:
    """Thread blocks of what runs ahead, by its seconds; of each as many as it says it runs in."""
    busy_s, taken_s = np.zeros(1), np.zeros(1)
    for timed in pass_ops:
        if timed.op.lane is not Lane.PREFETCH:
            continue
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
