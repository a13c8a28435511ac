"""The pieces of work that a schedule puts in order."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from spec.arrays import FloatArray, IntArray


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


Orders = Callable[[tuple[int, int, int]], list[list[Work]]]
"""The work of every stage in order, for a pipeline of shape (pp, vpp, num_micro)."""

InFlight = Callable[[IntArray, IntArray, IntArray, IntArray], FloatArray]
"""Micro-batches whose activations a stage holds at its peak, a chunk counting 1/vpp; by arrays of one length of
the stage's position, pp, vpp and num_micro."""
