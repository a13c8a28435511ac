"""The order in which each pipeline stage runs its work: what a schedule is.

1F1B and its interleaved form: Narayanan et al. 2021 (arXiv 2104.04473 sec. 2.2), order as Megatron-LM
writes it (core/pipeline_parallel/schedules.py, get_schedule_table). Zero bubble: Qi et al. 2023
(arXiv 2401.10241 sec. 2): the backward is split into B (input gradient) and W (weight gradient); H1 keeps
1F1B's memory, H2 holds up to 2p - 1 micro-batches and fills the bubble.
"""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Forward, backward (the input gradient alone where W is apart), weight gradient."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"


class Work(NamedTuple):
    """One piece of work of a stage: which chunk of its layers, for which micro-batch."""

    kind: Kind
    chunk: int
    micro: int


class Schedule(StrEnum):
    """Names of schedules; zb-1p and zb-2p are the memory limits of the paper's automatic scheduler."""

    ONE_F_ONE_B = "1f1b"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_1P = "zb-1p"
    ZB_2P = "zb-2p"

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are scheduled apart."""
        return self is not Schedule.ONE_F_ONE_B

    @property
    def fills_bubble(self) -> bool:
        """Whether twice the micro-batches may be in flight."""
        return self in (Schedule.ZB_H2, Schedule.ZB_2P)


def stage_orders(schedule: Schedule, shape: tuple[int, int, int]) -> list[list[Work]]:
    """Work of every stage in order; ``shape`` is (pp, vpp, num_micro)."""
    pp, _, num_micro = shape
    if schedule is Schedule.ONE_F_ONE_B:
        return [_interleaved(shape, stage) for stage in range(pp)]
    if schedule.fills_bubble:
        return _filled(pp, num_micro)
    return [_handcrafted(pp, num_micro, stage) for stage in range(pp)]


def _interleaved(shape: tuple[int, int, int], stage: int) -> list[Work]:
    """Warm-up forwards, one forward and one backward in turn, remaining backwards.

    Chunks take turns every pp micro-batches; with one chunk this is plain 1F1B.
    """
    pp, vpp, num_micro = shape
    table = [
        (chunk, micro)
        for first in range(0, num_micro, pp)
        for chunk in range(vpp)
        for micro in range(first, min(first + pp, num_micro))
    ]
    total = len(table)
    ahead = (pp - stage - 1) * 2 + (vpp - 1) * pp if vpp > 1 else pp - stage - 1
    ahead = min(ahead, total)
    forwards = [Work(Kind.FORWARD, chunk, micro) for chunk, micro in table]
    backwards = [Work(Kind.BACKWARD, vpp - 1 - chunk, micro) for chunk, micro in table]
    order = forwards[:ahead]
    for index in range(total):
        if ahead + index < total:
            order.append(forwards[ahead + index])
        order.append(backwards[index])
    return order


def _handcrafted(pp: int, num_micro: int, stage: int) -> list[Work]:
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


def _filled(pp: int, num_micro: int) -> list[list[Work]]:
    """ZB-H2 (sec. 2.2): with 2p - 1 micro-batches in flight no stage ever waits when F, B and W take
    equally long. Built by letting every stage in every time slot do B if it can, else F, else W."""
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
