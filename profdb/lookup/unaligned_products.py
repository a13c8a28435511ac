"""Products whose rows do not begin at multiples of 16 bytes: libraries have no fast kernel for them.

Tensor cores are fed in pieces of 16 bytes, and so are TMA, cp.async and wgmma (NVIDIA, "Matrix Multiplication
Background User's Guide", "Requirements to use Tensor Cores"; CUTLASS, which names its kernels ``align8``,
``align2``, ``align1`` after the elements of a load). Where an operand's or the result's contiguous extent is
another number of bytes, cuBLAS falls back to kernels of Turing and Ampere that load through registers, a few
bytes at a time: their rate is so many FLOPs a clock and multiprocessor, whatever the tensor cores could do
(``tensor_cores.unaligned`` of the architecture; measured on two). A vocabulary of 50,257 makes all three
products of a head such ones.
"""

from dataclasses import dataclass

import numpy as np

from ops.op import BatchedGemm
from ops.roles import Role
from profdb.cases import Family
from profdb.lookup.priced import TimeEstimate
from profdb.sample import ProfileDatabase
from profdb.store.columns import STATUSES
from spec.arrays import BoolArray, FloatArray, IntArray, bools
from spec.cluster.cluster import GpuSpec
from spec.dtypes import dtype_bytes
from spec.origin import Origin

ALIGNMENT_BYTES = 16

RELATIVE_STD = 0.25
"""Assumption: what one measured kernel of one GPU tells of other shapes and GPUs. Carried: all such products
err by it together.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExtents:
    """Contiguous extents of measured products that are no multiples of 16 bytes, by layout: their times hold
    what that costs.
    """

    pairs: dict[str, IntArray]

    def holds(self, layout: str, extents: tuple[IntArray, IntArray]) -> BoolArray:
        """Which products have extents that were measured."""
        known = self.pairs.get(layout)
        asked = np.stack(np.broadcast_arrays(*extents), axis=1)
        if known is None:
            return np.zeros(len(asked), dtype=np.bool_)
        return bools((asked[:, None, :] == known[None, :, :]).all(axis=2).any(axis=1))


NOTHING_MEASURED = MeasuredExtents(pairs={})


def measured_extents(profile: ProfileDatabase) -> MeasuredExtents:
    """Those of a profile's measured products of 16 bits."""
    table = profile.tables.get(Family.GEMM)
    pairs: dict[str, IntArray] = {}
    if table is None:
        return NOTHING_MEASURED
    usable = (table.status == STATUSES.index("ok")) & (table.origin == int(Origin.MEASURED))
    usable &= table.labels["dtype_in"].equals("bf16") | table.labels["dtype_in"].equals("fp16")
    sizes = {name: table.numbers[name] for name in ("m", "k", "n")}
    for layout in table.labels["layout"].values:
        extents = contiguous(layout, sizes["m"], sizes["k"], sizes["n"])
        rows = usable & table.labels["layout"].equals(layout) & ~is_aligned(extents, 2.0)
        if rows.any():
            pairs[layout] = np.unique(np.stack([extent[rows] for extent in extents], axis=1), axis=0)
    return MeasuredExtents(pairs=pairs)


def contiguous(layout: str, m: IntArray, k: IntArray, n: IntArray) -> tuple[IntArray, IntArray]:
    """The extents that lie side by side in memory in A, B and C of ``layout`` (ops.op.ProductCall)."""
    return (m, n) if layout == "TN" else (k, n)


def is_aligned(extents: tuple[IntArray, IntArray], width: float) -> BoolArray:
    """Whether every row of every array begins at a multiple of ALIGNMENT_BYTES, elements being ``width`` bytes wide."""
    over = [(extent * width) % ALIGNMENT_BYTES for extent in extents]
    return bools((over[0] == 0) & (over[1] == 0))


def unaligned_s(
    gpu: GpuSpec, op: BatchedGemm, aligned: TimeEstimate, measured: MeasuredExtents
) -> TimeEstimate:
    """Seconds of a product: ``aligned`` (what the cost model tells of its sizes), and where its rows are not
    aligned and nobody measured such ones at least what the kernels for them take. A mixer's core has kernels
    of its own, products of other formats than 16 bits others; both are left alone."""
    rates = gpu.architecture.unaligned
    if rates is None or op.role is Role.CORE or dtype_bytes(op.dtype) != 2.0:
        return aligned
    extents = contiguous(op.layout, op.m, op.k, op.n)
    slow = ~is_aligned(extents, 2.0)
    if not slow.any():
        return aligned
    slow = bools(slow & ~measured.holds(op.layout, extents))
    by_two = bools((extents[0] % 2 == 0) & (extents[1] % 2 == 0))
    per_clock = np.where(by_two, rates.by_two, rates.by_one)
    flops: FloatArray = 2.0 * op.batch * op.m * op.k * op.n
    least_s = flops / (per_clock * gpu.num_sms * gpu.boost_clock_hz)
    slow = bools(slow & (least_s > aligned.seconds))
    return TimeEstimate(
        seconds=np.where(slow, least_s, aligned.seconds),
        relative_std=np.where(slow, 0.0, aligned.relative_std),
        origin=np.where(slow, int(Origin.MODELLED), aligned.origin),
        carried_std=np.where(slow, RELATIVE_STD, 0.0),
    )
