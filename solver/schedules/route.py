"""Which chunk of which stage a micro-batch passes after which."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spec.arrays import IntArray, ints

Place = Callable[[IntArray, IntArray, IntArray, IntArray], IntArray]
"""By arrays of one length of a stage's position, its chunk, pp and vpp: how many (virtual) stages come before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How virtual stages lie on stages. ``ways``: copies of the model, each with a share of the micro-batches;
    with two, chunk c of a stage belongs to copy c. ``turns``: whether a route other than round and round."""

    place: Place
    ways: int = 1
    turns: bool = False

    def chunks(self, vpp: int) -> int:
        """Chunks of a stage: vpp of every copy."""
        return self.ways * vpp

    def chains(self, pp: int, vpp: int) -> list[list[tuple[int, int]]]:
        """For each copy its (stage, chunk) in the order a micro-batch passes them."""
        chunk, stage = (one.reshape(-1) for one in np.indices((self.chunks(vpp), pp)))
        place = self.place(stage, chunk, ints(pp), ints(vpp)) + (chunk * pp if self.ways > 1 else 0)
        order = np.argsort(place).reshape(self.ways, -1)
        return [list(zip(stage[one].tolist(), chunk[one].tolist(), strict=True)) for one in order]


def _looped(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return stage + chunk * pp


def _both_ways(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return np.where(chunk == 0, stage, pp - 1 - stage)


def _there_and_back(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return np.where(chunk == 0, stage, 2 * pp - 1 - stage)


# Stage s holds virtual stages s, s + pp, s + 2 pp, ... (arXiv 2104.04473 sec. 2.2.2).
LOOPED = Route(place=_looped)
# Stage s holds stage s of one copy and stage pp - 1 - s of another (arXiv 2412.19437 sec. 3.2.1).
BOTH_WAYS = Route(place=_both_ways, ways=2, turns=True)
# Stage s holds virtual stages s and 2 pp - 1 - s (DualPipe-V, "cut in half": deepseek-ai/DualPipe, README).
THERE_AND_BACK = Route(place=_there_and_back, turns=True)
