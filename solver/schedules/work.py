"""The pieces of work that a schedule puts in order."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from spec.arrays import FloatArray, IntArray


class Kind(StrEnum):
    """Forward, backward (the input gradient alone where W is apart), weight gradient; where W is apart of some
    backwards only, the whole of another; a forward beside a whole backward."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"
    WHOLE_BACKWARD = "BW"
    PAIR = "F&B"


class Work(NamedTuple):
    """One piece of work of a stage: which chunk of its layers, for which micro-batch; of a pair those of the forward,
    the backward is ``beside``."""

    kind: Kind
    chunk: int
    micro: int
    beside: "Work | None" = None

    @property
    def passes(self) -> tuple["Work", ...]:
        """The plain forward and backward in it, whose results other work waits for."""
        if self.kind is Kind.PAIR and self.beside is not None:
            return Work(Kind.FORWARD, self.chunk, self.micro), *self.beside.passes
        if self.kind is Kind.WHOLE_BACKWARD:
            return (Work(Kind.BACKWARD, self.chunk, self.micro),)
        return (self,)


Orders = Callable[[tuple[int, int, int]], list[list[Work]]]
"""The work of every stage in order, for a pipeline of shape (pp, vpp, num_micro)."""

InFlight = Callable[[IntArray, IntArray, IntArray, IntArray], FloatArray]
"""Micro-batches whose activations a stage holds at its peak, a chunk counting 1/vpp; by arrays of one length of
the stage's position, pp, vpp and num_micro."""
