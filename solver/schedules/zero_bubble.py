"""Zero-bubble schedules: the backward is split into B (input gradient) and W (weight gradient).

Source: Qi et al. 2023 (arXiv 2401.10241 sec. 2): H1 keeps 1F1B's memory, H2 holds up to 2p - 1 micro-batches and
fills the bubble; 1p and 2p are the memory limits of the paper's automatic scheduler (sec. 3).
"""

import numpy as np

from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray, IntArray


def handcrafted(shape: tuple[int, int, int]) -> list[list[Work]]:
    """ZB-H1 on every stage."""
    pp, _, num_micro = shape
    return [_stage_order(pp, num_micro, stage) for stage in range(pp)]


def _stage_order(pp: int, num_micro: int, stage: int) -> list[Work]:
    """ZB-H1 (sec. 2.1): 1F1B's warm-up, then B, W and F in turn; stage s puts off s of its W, which fill
    its tail: the bubble falls to (p - 1)(t_F + t_B - t_W)."""
    ahead = min(pp - stage, num_micro)
    order = [Work(Kind.FORWARD, 0, micro) for micro in range(ahead)]
    for micro in range(num_micro):
        order.append(Work(Kind.BACKWARD, 0, micro))
        if micro >= stage:
            order.append(Work(Kind.WEIGHT, 0, micro - stage))
        if ahead + micro < num_micro:
            order.append(Work(Kind.FORWARD, 0, ahead + micro))
    order += [Work(Kind.WEIGHT, 0, micro) for micro in range(max(num_micro - stage, 0), num_micro)]
    return order


def filled(shape: tuple[int, int, int]) -> list[list[Work]]:
    """ZB-H2 (sec. 2.2): with 2p - 1 micro-batches in flight no stage ever waits when F, B and W take
    equally long. Built by letting every stage in every time slot do B if it can, else F, else W."""
    pp, _, num_micro = shape
    limit = 2 * pp - 1
    orders: list[list[Work]] = [[] for _ in range(pp)]
    done = [dict.fromkeys(Kind, 0) for _ in range(pp)]
    while min(counts[Kind.WEIGHT] for counts in done) < num_micro:
        slot: list[tuple[int, Kind]] = []
        for stage, counts in enumerate(done):
            behind = done[stage - 1][Kind.FORWARD] if stage > 0 else num_micro
            after = done[stage + 1][Kind.BACKWARD] if stage < pp - 1 else counts[Kind.FORWARD]
            if counts[Kind.BACKWARD] < min(after, counts[Kind.FORWARD]):
                slot.append((stage, Kind.BACKWARD))
            elif counts[Kind.FORWARD] < behind and counts[Kind.FORWARD] - counts[Kind.WEIGHT] < limit:
                slot.append((stage, Kind.FORWARD))
            elif counts[Kind.WEIGHT] < counts[Kind.BACKWARD]:
                slot.append((stage, Kind.WEIGHT))
        for stage, kind in slot:
            orders[stage].append(Work(kind, 0, done[stage][kind]))
            done[stage][kind] += 1
    return orders


def in_flight_filled(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """A stage of a schedule that fills the bubble may hold 2 pp - 1 micro-batches (arXiv 2401.10241 sec. 2.2)."""
    return np.asarray(np.minimum(2 * pp - 1, num_micro) / vpp, dtype=np.float64)
