"""The degrees of N plans as columns: everything the operations of one rank depend on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from spec.arrays import FloatArray, IntArray, floats, ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel degrees of N plans, each column a 1-D int64 array of length N.

    world = tp * cp * dp * pp = etp * ep * edp * pp. For isp, ``tp`` ranks share a sequence and
    ``wp`` ranks share the weights; both are laid over the same ranks (world = pp * wp * wdp), so wp
    is no further factor of the world size. Elsewhere wp is 1. ``zero_size`` ranks share one copy of what
    ``zero_stage`` shards (1 optimizer state, 2 gradients too, 3 parameters too) and divides dp * cp; under
    ulysses, whose weights all tp ranks hold, dp * cp * tp.
    ``optimizer_offload`` is the share of the optimizer that lives and runs on the host, a float64 column, and
    ``offloaded_layers`` keep there what they save for the backward (ops.data_parallel.offload).
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
    optimizer_offload: FloatArray
    offloaded_layers: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: IntArray) -> "Layout":
        """The rows asked for, in that order."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "world_size"}
        return Layout(world_size=self.world_size, **columns)

    @staticmethod
    def joined(parts: Sequence["Layout"]) -> "Layout":
        """The rows of all parts, of one world, one part after another."""
        columns = {
            f.name: np.concatenate([getattr(one, f.name) for one in parts])
            for f in fields(Layout)
            if f.name != "world_size"
        }
        return Layout(world_size=parts[0].world_size, **columns)

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
    def of(world_size: int, **columns: object) -> "Layout":
        """A layout from plain numbers or sequences; degrees left out are 1, sharding and offloading 0, and dp
        fills the world."""
        left_out = {"zero_stage": 0, "optimizer_offload": 0.0, "offloaded_layers": 0}
        names = [f.name for f in fields(Layout) if f.name not in ("world_size", "dp")]
        said = [columns.get(name, left_out.get(name, 1)) for name in names]
        read = [
            floats(value) if name == "optimizer_offload" else ints(value)
            for name, value in zip(names, said, strict=True)
        ]
        whole = dict(zip(names, map(np.ascontiguousarray, np.broadcast_arrays(*read)), strict=True))
        dp = world_size // (whole["tp"] * whole["cp"] * whole["pp"])
        return Layout(world_size=world_size, dp=dp, **whole)


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
