"""What of a pass's communication the rank waits for: one function per lane.

A collective occupies streaming multiprocessors while it runs, so what computes beside it goes slower
by their share: ``sm_share`` below. NCCL runs one thread block a channel (NCCL documentation,
NCCL_MAX_CTAS), each on a multiprocessor of its own.
"""

from collections.abc import Sequence

import numpy as np

from ops.op import Comm, Lane, Phase, Pieces
from ops.roles import OpKey
from solver.times.op_times import COLLECTIVE_BLOCKS, TimedOp
from solver.times.step_parts import Share
from spec.arrays import FloatArray


def beside(comm_s: FloatArray, compute_s: FloatArray, sm_share: FloatArray | float) -> FloatArray:
    """A collective beside one GEMM or attention call (arXiv 2205.05198 sec. 4.2.2): what outlasts it, and
    what the compute loses meanwhile."""
    together = np.minimum(comm_s, compute_s / (1.0 - sm_share))
    return np.asarray(np.maximum(comm_s - together, 0.0) + sm_share * together, dtype=np.float64)


def in_pieces(comm_s: FloatArray, compute_s: FloatArray, pieces: Pieces, sm_share: float) -> FloatArray:
    """A collective cut into pieces with the product that makes or uses its array (ops.strategies.pipelined): of
    ``n`` pieces ``1 - 1 / n`` of the product run beside what of the collective can."""
    alone = 1.0 / pieces.count
    waited = comm_s * alone if pieces.last_waits else np.zeros_like(comm_s)
    return waited + beside(comm_s - waited, compute_s * (1.0 - alone), sm_share)


def exposed(pass_ops: Sequence[TimedOp], sm_share: float = 0.0) -> list[Share]:
    """The waiting time of every operation of one pass of one layer.

    Weights of the next layer and gradients of the last one run beside all a layer does in this pass
    (arXiv 2401.09149 sec. 3.3); ``sm_share`` is the share of multiprocessors that collectives occupy.
    """
    rows = len(pass_ops[0].seconds) if pass_ops else 1
    partners: dict[tuple[OpKey | None, Phase], FloatArray] = {
        (timed.op.key, timed.op.phase): timed.seconds
        for timed in pass_ops
        if timed.part in ("gemm", "attention")
    }
    waits: dict[int, FloatArray] = {}
    main_s = np.zeros(rows)
    ahead_s = np.zeros(rows)
    copied_s = np.zeros(rows)
    for index, timed in enumerate(pass_ops):
        lane = timed.op.lane
        if lane is Lane.PREFETCH:
            ahead_s = ahead_s + timed.seconds
            continue
        if lane is Lane.COPY:
            copied_s = copied_s + timed.seconds
            continue
        wait = timed.seconds
        if lane is Lane.BESIDE:
            wait = beside(wait, partners[(timed.op.beside, timed.op.beside_phase)], sm_share)
        pieces = timed.op.pieces
        if lane is Lane.PIECES and pieces is not None:
            # What is kept is not made again, and then there is no product to overtake.
            partner = partners.get((timed.op.beside, timed.op.beside_phase), np.zeros(rows))
            taken = sm_share * pieces.thread_blocks / COLLECTIVE_BLOCKS
            wait = np.where(timed.crosses, wait, in_pieces(wait, partner, pieces, taken))
        waits[index] = wait
        main_s = main_s + wait
    over = beside(ahead_s, main_s, _ahead_share(pass_ops, sm_share))
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
        )
        for index, timed in enumerate(pass_ops)
    ]


def _ahead_share(pass_ops: Sequence[TimedOp], sm_share: float) -> FloatArray:
    """Share of multiprocessors that what runs ahead takes, by its seconds; of each as many as it says it runs in."""
    ahead = [timed for timed in pass_ops if timed.op.lane is Lane.PREFETCH]
    busy_s, taken_s = np.zeros(1), np.zeros(1)
    for timed in ahead:
        own = timed.op.thread_blocks if isinstance(timed.op, Comm) else 0
        busy_s = busy_s + timed.seconds
        taken_s = taken_s + timed.seconds * (sm_share * own / COLLECTIVE_BLOCKS if own else sm_share)
    return np.divide(taken_s, busy_s, out=np.full_like(taken_s, sm_share), where=busy_s > 0.0)


def bucketed(comm_s: FloatArray, compute_s: FloatArray, buckets: FloatArray, sm_share: float) -> FloatArray:
    """A reduction in buckets beside a pass: the last bucket (or first, for a gather) is always
    waited for, the others run beside the pass (arXiv 2006.15704 sec. 3.2.3)."""
    last = comm_s / buckets
    return last + beside(comm_s - last, compute_s * (1.0 - 1.0 / buckets), sm_share)
