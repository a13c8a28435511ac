"""DualPipe and DualPipe-V: forwards of one chunk of a stage run beside backwards of its other chunk.

Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1 and table 2) and deepseek-ai/DualPipe, commit 3da1bbe,
dualpipe/dualpipe.py and dualpipev.py, ``step``, whose eight steps these are. The bubble is
(P/2 - 1)(F&B + B - 3W) for P virtual stages, of which a stage holds two.
"""

from dataclasses import dataclass, field

import numpy as np

from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray, IntArray


def both_ways(shape: tuple[int, int, int]) -> list[list[Work]]:
    """DualPipe: half of the micro-batches enter at the first stage and half at the last; for an even number of stages
    and an even number of micro-batches, at least 2 pp."""
    pp, _, num_micro = shape
    half = pp // 2
    orders = []
    for stage in range(pp):
        steps = _Steps(near=int(stage >= half))
        steps.run(half, min(stage, pp - 1 - stage), num_micro // 2)
        orders.append(steps.order)
    return orders


def there_and_back(shape: tuple[int, int, int]) -> list[list[Work]]:
    """DualPipe-V: every micro-batch passes all stages and returns; for at least 2 pp micro-batches."""
    pp, _, num_micro = shape
    orders = []
    for stage in range(pp):
        steps = _Steps(near=0)
        steps.run(pp, stage, num_micro)
        orders.append(steps.order)
    return orders


@dataclass(slots=True)
class _Steps:
    """One stage's order in the making. ``near`` is its chunk that comes earlier on a micro-batch's way, phase 0 of
    the source; ``put_off`` are weight gradients to come, first in, first out."""

    near: int
    order: list[Work] = field(default_factory=list)
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    put_off: list[Work] = field(default_factory=list)

    def run(self, half: int, place: int, num_micro: int) -> None:
        """All eight steps of a stage with ``place`` stages before its near chunk; ``half`` of the virtual stages,
        ``num_micro`` micro-batches through each chunk."""
        after = half - place - 1
        for _ in range(2 * after):
            self.forward(0)
        for _ in range(place + 1):
            self.forward(0)
            self.forward(1)
        for _ in range(after):
            self.backward(1, split=True)
            self.weight()
            self.forward(1)
        for turn in range(num_micro - 2 * half + place + 1):
            if turn == 0 and after == 0:
                # "We don't overlap these two chunks to further reduce bubble size."
                self.forward(0)
                self.backward(1)
            else:
                self.pair(0)
            self.pair(1)
        for _ in range(after):
            self.backward(1)
            self.pair(1)
        self._drain(place)
        for _ in range(after):
            self.weight()
            self.backward(0, split=True)
        for _ in range(place + 1):
            self.weight()

    def _drain(self, place: int) -> None:
        """Step 6: the second half of its backwards put their weight gradients off."""
        split = False
        for turn in range(place + 1):
            middle = turn == (place + 1) // 2
            split = split or (middle and place % 2 == 1)
            self.backward(1, split=split)
            split = split or (middle and place % 2 == 0)
            self.backward(0, split=split)

    def _next(self, counts: list[int], kind: Kind, phase: int) -> Work:
        work = Work(kind, phase ^ self.near, counts[phase])
        counts[phase] += 1
        return work

    def forward(self, phase: int) -> None:
        """A forward alone."""
        self.order.append(self._next(self.forwards, Kind.FORWARD, phase))

    def backward(self, phase: int, *, split: bool = False) -> None:
        """A backward alone; ``split`` puts its weight gradient off."""
        work = self._next(self.backwards, Kind.BACKWARD if split else Kind.WHOLE_BACKWARD, phase)
        self.order.append(work)
        if split:
            self.put_off.append(work._replace(kind=Kind.WEIGHT))

    def weight(self) -> None:
        """The oldest weight gradient that was put off."""
        self.order.append(self.put_off.pop(0))

    def pair(self, phase: int) -> None:
        """A forward beside a whole backward of the other chunk."""
        beside = self._next(self.backwards, Kind.WHOLE_BACKWARD, 1 - phase)
        self.order.append(self._next(self.forwards, Kind.PAIR, phase)._replace(beside=beside))


def pairs(place: IntArray, stages: IntArray, num_micro: IntArray) -> IntArray:
    """How many of the ``num_micro`` forwards of a chunk with ``place`` of ``stages`` virtual stages before it run
    beside a backward (steps 4 and 5)."""
    half = stages // 2
    near = num_micro - stages + place + 1 - (place == half - 1)
    return np.where(place < half, near, num_micro - half).astype(np.int64)


def in_flight_dual(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """P + 1 of the halves of a stage, P virtual stages (2412.19437 table 2): pp of DualPipe, 2 pp of DualPipe-V."""
    return np.asarray((pp * vpp + 1) / 2 + 0.0 * position, dtype=np.float64)
