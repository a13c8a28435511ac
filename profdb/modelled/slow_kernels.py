"""Kernels outside the fast path of their library: PyTorch's over strided operands, its norms, and products of unaligned
rows.

PyTorch's elementwise kernel over strided, broadcast or mixed operands: bound by instructions, not by HBM.

Source: pytorch, aten/src/ATen/native/cuda/CUDALoops.cuh, ``gpu_kernel_impl_nocast``: contiguous operands of one
shape have a vectorised kernel; all others have one that computes the offset of every element of every operand by
integer divisions. Halves of one array cut along its last dimension, and a row or column broadcast over a matrix, are
such operands. The time of that kernel is a number of instructions per element, whatever the width of the element.

Products whose rows do not begin at multiples of 16 bytes: libraries have no fast kernel for them.

Tensor cores are fed in pieces of 16 bytes, and so are TMA, cp.async and wgmma (NVIDIA, "Matrix Multiplication
Background User's Guide", "Requirements to use Tensor Cores"; CUTLASS, which names its kernels ``align8``,
``align2``, ``align1`` after the elements of a load). Where an operand's or the result's contiguous extent is
another number of bytes, cuBLAS falls back to kernels of Turing and Ampere that load through registers, a few
bytes at a time: their rate is a number of FLOPs per clock and multiprocessor, whatever the tensor cores could do
(``tensor_cores.unaligned`` of the architecture; measured on two). With a vocabulary of 50,257 all three
products of a language-model head are unaligned.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.memory_bound import bytes_moved_per_element
from ops.op import BatchedGemm
from ops.roles import Role
from profdb.cases import Family
from profdb.modelled.gemm import DRAM_EFFICIENCY
from profdb.queries import TimeEstimate
from profdb.sample import ProfileDatabase
from profdb.store.columns import STATUSES
from spec.arrays import BoolArray, FloatArray, IntArray, bools
from spec.cluster.cluster import GpuSpec
from spec.dtypes import dtype_bytes
from spec.origin import Origin

# Fitted: one measured figure, tile-ai/TileOPs pull request 500 (H200, PyTorch 2.9.1, fp16, 1024 x 10240): prelu,
# whose weight is broadcast over the rows, 1.18 TB/s = 35.6 us, less the launch of profdb.modelled.gemm,
# over 132 SMs at 1.98 GHz. leaky_relu, contiguous, of the same size there: 2.57 TB/s.
# Assumption: other GPUs need as many cycles per element (64 integer operations per clock and SM: CUDA C++
# Programming Guide, "Arithmetic Instructions", compute capability 8.0 to 10.0). Not fitted to: a
# row added to 1,048,576 elements of fp16 takes 6.8 us on the same H200 (pull request 537 there, 0.62 TB/s), predicted
# 4.7 us; contiguous operands take 4.5 and are predicted 3.5.
ELEMENTS_PER_CLOCK = 1.17


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedPasses:
    """Launches over rows x width with such operands, and the activation-sized tensors they move; ``dtype`` where it
    differs from the activation's."""

    passes: float
    tensors: float
    dtype: str = ""


# 16 bits to fp32: operands of two formats use the kernel that is not vectorised, too (CUDALoops.cuh,
# gpu_kernel_impl: needs_dynamic_casting), whose casts branch by format. Published are 362 us for 67,108,864
# elements of bf16 on an A100 (pytorch pull request 195542), 1.22 elements a clock, and before it was
# vectorised on compute capability 9.0 (PyTorch 2.6) the way back took 2.22 ms for 536,870,912 of fp16 on an
# H100 PCIe (pull request 137053), 1.21. Not counted: that way back.
WIDENED = StridedPasses(passes=1, tensors=1.5, dtype="fp32")

STRIDED: dict[tuple[str, str], tuple[StridedPasses, ...]] = {
    ("cast", "forward"): (WIDENED,),
    # both limits read halves of the first product; in the backward three comparisons of a half, and two
    # selections from halves of a gradient (masks are a byte an element)
    ("clamp_glu_unfused", "forward"): (StridedPasses(passes=2, tensors=4),),
    ("clamp_glu_unfused", "backward"): (StridedPasses(passes=5, tensors=9.5),),
    # a row (bias) times a column (probabilities); in the backward the gradient times either
    ("expert_bias_unfused", "forward"): (StridedPasses(passes=1, tensors=1),),
    ("expert_bias_unfused", "backward"): (StridedPasses(passes=2, tensors=4),),
    ("expert_bias_fp32_unfused", "forward"): (StridedPasses(passes=1, tensors=1, dtype="fp32"),),
    ("expert_bias_fp32_unfused", "backward"): (StridedPasses(passes=2, tensors=4, dtype="fp32"), WIDENED),
    # the weights' row times the normed input, that times the column of roots; in the backward the gradient times
    # either, and the mean's gradient spread over its row
    ("rmsnorm_unfused", "forward"): (
        StridedPasses(passes=1, tensors=2),
        StridedPasses(passes=1, tensors=2, dtype="fp32"),
        WIDENED,
    ),
    ("rmsnorm_unfused", "backward"): (
        StridedPasses(passes=1, tensors=2),
        StridedPasses(passes=2, tensors=3, dtype="fp32"),
        WIDENED,
    ),
    # cosines and sines are those of all heads, a half is negated; in the backward again, and each half of a
    # gradient is copied into zeros
    ("rotary_unfused", "forward"): (StridedPasses(passes=2.5, tensors=5),),
    ("rotary_unfused", "backward"): (StridedPasses(passes=3.5, tensors=7),),
    # silu of a half, that times the other half; in the backward the gradient times a half, and silu's
    ("swiglu_halves_unfused", "forward"): (StridedPasses(passes=2, tensors=5),),
    ("swiglu_halves_unfused", "backward"): (StridedPasses(passes=2, tensors=6),),
    # one mask for all heads
    ("masked_softmax_unfused", "forward"): (StridedPasses(passes=1, tensors=2), WIDENED),
    ("masked_softmax_unfused", "backward"): (StridedPasses(passes=1, tensors=2), WIDENED),
    # logits to fp32; Megatron-LM's less the column of maxima, divided by that of sums, backward times that of gradients
    ("cross_entropy_unfused", "forward"): (WIDENED,),
    ("cross_entropy", "forward"): (WIDENED, StridedPasses(passes=2, tensors=4, dtype="fp32")),
    ("cross_entropy", "backward"): (StridedPasses(passes=1, tensors=2, dtype="fp32"),),
    # a row added to a matrix; a row copied over one; heads and tokens in another order
    ("bias", "forward"): (StridedPasses(passes=1, tensors=2),),
    ("spread_unfused", "forward"): (StridedPasses(passes=1, tensors=1),),
    ("strided_copy", "forward"): (StridedPasses(passes=1, tensors=2),),
    ("strided_copy", "backward"): (StridedPasses(passes=1, tensors=2),),
}


# Torch's own norms (aten/src/ATen/native/cuda/layer_norm_kernel.cu), bytes that a clock and multiprocessor moves at most.
# Measured on an H100, torch 2.11, 16-bit samples of 8 million elements and more (prof_data/h100-sxm.pt, medians): LayerNorm
# 6.7 forward and 7.5 backward, RMSNorm 7.5 and 4.7. LayerNorm forward is 6.9 on A100 and H100 and 8.0 on B200, backward 8.1
# and 8.6 on H100 and B200, in Liger Kernel's published runs (linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv).
NORM_BYTES_PER_CLOCK: dict[tuple[str, str], float] = {
    ("layernorm_torch", "forward"): 6.7,
    ("layernorm_torch", "backward"): 7.5,
    ("rmsnorm_torch", "forward"): 7.5,
    ("rmsnorm_torch", "backward"): 4.7,
}
SLOW = frozenset((*STRIDED, *NORM_BYTES_PER_CLOCK))
"""Kernels and directions that streaming does not price."""


def excess_s(gpu: GpuSpec, kernel: str, direction: str, dtype: str) -> float:
    """Returns the seconds per element of a kernel of ops.memory_bound beyond streaming its bytes, for strided passes or
    as one of torch's norms: each pass waits for the longer of its instructions and its bytes. 0 for other kernels, and
    where PyTorch's kernels are others."""
    if (kernel, direction) not in SLOW or gpu.architecture.own_elementwise:
        return 0.0
    clocks_hz = gpu.num_sms * gpu.boost_clock_hz
    streaming = gpu.memory_bandwidth * DRAM_EFFICIENCY
    rate = NORM_BYTES_PER_CLOCK.get((kernel, direction))
    if rate is not None:
        moved = bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype)
        return max(moved / (rate * clocks_hz) - moved / streaming, 0.0)
    return sum(
        max(
            one.passes / (ELEMENTS_PER_CLOCK * clocks_hz) - one.tensors * dtype_bytes(one.dtype or dtype) / streaming,
            0.0,
        )
        for one in STRIDED[kernel, direction]
    )


def longer_under_load_s(gpu: GpuSpec, kernel: str, direction: str, dtype: str) -> float:
    """Returns the additional seconds per element at the clock that a GPU sustains in a training step
    (``training_clock_ratio``)."""
    if (kernel, direction) not in SLOW:
        return 0.0
    loaded = replace(gpu, boost_clock_hz=gpu.boost_clock_hz * gpu.training_clock_ratio)
    return excess_s(loaded, kernel, direction, dtype) - excess_s(gpu, kernel, direction, dtype)


ALIGNMENT_BYTES = 16

UNALIGNED_STD = 0.25
"""Assumption: error of one measured kernel of one GPU for other shapes and GPUs. Carried: all such products
err by it together.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExtents:
    """Contiguous extents of measured products that are no multiples of 16 bytes, by layout: their measured times
    include the cost of that."""

    pairs: dict[str, IntArray]

    def holds(self, layout: str, extents: tuple[IntArray, IntArray]) -> BoolArray:
        """Returns which products have extents that were measured."""
        measured = self.pairs.get(layout)
        pairs = np.stack(np.broadcast_arrays(*extents), axis=1)
        if measured is None:
            return np.zeros(len(pairs), dtype=np.bool_)
        return bools((pairs[:, None, :] == measured[None, :, :]).all(axis=2).any(axis=1))


NOTHING_MEASURED = MeasuredExtents(pairs={})


def measured_extents(profile: ProfileDatabase) -> MeasuredExtents:
    """Returns the unaligned extents of a profile's measured products of 16 bits."""
    table = profile.tables.get(Family.GEMM)
    pairs: dict[str, IntArray] = {}
    if table is None:
        return NOTHING_MEASURED
    usable = (table.status == STATUSES.index("ok")) & (table.origin == int(Origin.MEASURED))
    usable &= table.labels["dtype_in"].equals("bf16") | table.labels["dtype_in"].equals("fp16")
    sizes = {name: table.numbers[name] for name in ("m", "k", "n")}
    for layout in table.labels["layout"].values:
        extents, unaligned = contiguous(layout, sizes["m"], sizes["k"], sizes["n"])
        rows = usable & table.labels["layout"].equals(layout) & unaligned
        if rows.any():
            pairs[layout] = np.unique(np.stack([extent[rows] for extent in extents], axis=1), axis=0)
    return MeasuredExtents(pairs=pairs)


def contiguous(layout: str, m: IntArray, k: IntArray, n: IntArray) -> tuple[tuple[IntArray, IntArray], BoolArray]:
    """Returns the extents that are contiguous in memory in A, B and C of ``layout`` (ops.op.ProductCall), and where a
    row of 16-bit elements begins at an address that is no multiple of ALIGNMENT_BYTES."""
    first, second = extents = (m, n) if layout == "TN" else (k, n)
    return extents, bools((2 * first % ALIGNMENT_BYTES != 0) | (2 * second % ALIGNMENT_BYTES != 0))


def unaligned_s(gpu: GpuSpec, op: BatchedGemm, aligned: TimeEstimate, measured: MeasuredExtents) -> TimeEstimate:
    """Returns the time of a product: ``aligned`` (the cost model's time for its sizes), and where its rows are
    unaligned and no such product was measured, at least the time of the kernels for them. Products of a mixer's core,
    which has kernels of its own, and of other formats than 16 bits are unchanged."""
    rates = gpu.architecture.unaligned
    if rates is None or op.role is Role.CORE or dtype_bytes(op.dtype) != 2.0:
        return aligned
    extents, slow = contiguous(op.layout, op.m, op.k, op.n)
    if not slow.any():
        return aligned
    slow = bools(slow & ~measured.holds(op.layout, extents))
    # Kernels that load two elements at once need even extents; odd ones are loaded one by one.
    by_two = bools((extents[0] % 2 == 0) & (extents[1] % 2 == 0))
    per_clock = np.where(by_two, rates.by_two, rates.by_one)
    flops: FloatArray = 2.0 * op.batch * op.m * op.k * op.n
    least_s = flops / (per_clock * gpu.num_sms * gpu.boost_clock_hz)
    # A product bound by memory or latency may be no slower unaligned.
    slow = bools(slow & (least_s > aligned.seconds))
    return TimeEstimate(
        seconds=np.where(slow, least_s, aligned.seconds),
        relative_std=np.where(slow, 0.0, aligned.relative_std),
        origin=np.where(slow, int(Origin.MODELLED), aligned.origin),
        carried_std=np.where(slow, UNALIGNED_STD, 0.0),
    )
