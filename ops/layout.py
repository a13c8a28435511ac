"""The degrees of N plans as columns: everything the operations of one rank depend on."""

from dataclasses import dataclass, fields

import numpy as np

from spec.arrays import FloatArray, IntArray, ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel degrees of N plans, each column a 1-D int64 array of length N.

    world = tp * cp * dp * pp = etp * ep * edp * pp. For isp, ``tp`` ranks share a sequence and
    ``wp`` ranks share the weights; both are laid over the same ranks (world = pp * wp * wdp), so wp
    is no further factor of the world size. Elsewhere wp is 1. ``zero_size`` ranks share one copy of what
    ``zero_stage`` shards (1 optimizer state, 2 gradients too, 3 parameters too) and divides dp * cp.
    """

    world_size: int
    tp: IntArray
    cp: IntArray
    dp: IntArray
    pp: IntArray
    ep: IntArray
    etp: IntArray
    wp: IntArray
    zero_stage: IntArray
    zero_size: IntArray
    micro_batch: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: IntArray) -> "Layout":
        """The rows asked for, in that order."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "world_size"}
        return Layout(world_size=self.world_size, **columns)

    @property
    def edp(self) -> IntArray:
        """Ranks that hold the same experts (arXiv 2504.14960 sec. 3)."""
        return self.world_size // (self.pp * self.ep * self.etp)

    @property
    def wdp(self) -> IntArray:
        """Weight groups per pipeline stage."""
        return self.world_size // (self.pp * self.wp)

    def constant(self, value: int) -> IntArray:
        """A column that holds one value."""
        return np.full(len(self), value, dtype=np.int64)

    @staticmethod
    def of(
        world_size: int,
        *,
        micro_batch: object = 1,
        **degrees: object,
    ) -> "Layout":
        """A layout from plain numbers or sequences; degrees left out are 1 (stage 0), dp fills the world."""
        names = ("tp", "cp", "pp", "ep", "etp", "wp", "zero_size", "zero_stage")
        defaults = {"zero_stage": 0}
        columns = [ints(degrees.get(name, defaults.get(name, 1))) for name in names] + [ints(micro_batch)]
        tp, cp, pp, ep, etp, wp, zero_size, zero_stage, micro = (
            np.ascontiguousarray(column) for column in np.broadcast_arrays(*columns)
        )
        return Layout(
            world_size=world_size,
            tp=tp,
            cp=cp,
            dp=world_size // (tp * cp * pp),
            pp=pp,
            ep=ep,
            etp=etp,
            wp=wp,
            zero_stage=zero_stage,
            zero_size=zero_size,
            micro_batch=micro,
        )


def unique_rows(columns: tuple[IntArray, ...]) -> tuple[IntArray, IntArray]:
    """Indices of the first of each distinct row, and for each row the index of its distinct one."""
    packed = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        packed = packed * len(values) + codes
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64)


def as_column(value: FloatArray | IntArray | float, length: int) -> FloatArray:
    """``value`` as a float64 column of that length."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype=np.float64), (length,)))
