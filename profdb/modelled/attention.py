"""Scaled dot-product attention from a hardware spec.

A flash kernel (FlashAttention-2, arXiv 2307.08691, section 3) gives each block of queries of a head to
one SM, which loops over the keys that the mask lets it see. Per pair of query and key the tensor cores do
2 (d_qk + d_v) FLOP and the other units one exponential and a few plain operations (the running maximum and sum);
the two overlap only partly (FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2).

Without a flash kernel ("core") attention is two batched products forward and four backward over the
whole score matrix; softmax and dropout are kernels of their own. Products of heads whose width is no multiple of
16 bytes cannot use the tensor cores.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.op import AttentionCall
from profdb.fits.families import BACKWARD_PRODUCTS
from profdb.modelled.gemm import FILL_CYCLES, LAUNCH_S, MMA_EFFICIENCY, gemm_seconds
from profdb.modelled.memory_bound import streaming_seconds
from profdb.modelled.rates import flops_rates
from spec.arrays import BoolArray, FloatArray, IntArray, bools
from spec.cluster.cluster import ArchitectureSpec, GpuSpec
from spec.dtypes import dtype_bytes

RELATIVE_STD = 0.25  # Fitted: residuals of the timings at BLOCK_CYCLES

# Blocks of queries and keys (FlashAttention-2, section 3.3: 64 or 128 by head size).
QUERY_BLOCK = 128
KEY_BLOCK = 128
HEAD_STEP = 32

WIDEST_QUERIES = 256
"""Channels of a head's queries in a flash kernel; latent attention over absorbed keys (576) has kernels of its own."""

# Per clock and SM: exponentials (special function units) and fp32 operations; CUDA C++ Programming
# Guide, "Arithmetic Instructions", compute capability 8.0 to 10.0 (fp32: 64 on 8.0, 128 later).
EXPONENTIALS_PER_CLOCK = 16.0
PLAIN_PER_CLOCK = 128.0
# Scale, subtract, maximum, sum, convert, and the mask: per pair (FlashAttention-2, algorithm 1).
PLAIN_PER_PAIR = 6.0

# Part of the shorter of tensor and other work that is not hidden. All of it where the same warps do
# both; where the tensor cores run asynchronously part of the softmax hides behind them.
# Fitted: to the forward rates published for causal heads of 128 at 16k tokens, 189 TFLOP/s on A100
# (FlashAttention-2, figure 5) and about 640 on H100 (FlashAttention-3, figure 5).
OVERLAP_LOSS_SYNCHRONOUS = 1.0
OVERLAP_LOSS_ASYNCHRONOUS = 0.6

# Fitted: cycles to start and end a block of queries; to aiconfigurator's context-attention timings of
# A100, H100, H200 and B200 together (causal, above 1 GFLOP, their rotary and cache pass counted apart).
BLOCK_CYCLES = 8000.0

# Tensor cores are fed in pieces of 16 bytes: NVIDIA, "Matrix Multiplication Background User's Guide",
# "Requirements to use Tensor Cores" (multiples of 8 elements of 16 bits; a condition before cuBLAS 11).
# Assumption: products of heads that begin elsewhere run on the fp32 units, as cuBLAS's kernels with 16-bit
# operands and fp32 multiply-adds (*_fp16_sgemm_*) do; their bytes hide behind the arithmetic.
ALIGNMENT_BYTES = 16
PLAIN_UNITS = "fp32"
HIGH_PRECISION = "bf16"  # fp8 attention is a multiple of the time in this format

# Seconds backward over forward: 5 products instead of 2 (FlashAttention-2, section 3.1.2) at 63 / 73
# of the forward's share of the peak (its section 4.1: 73 % forward, 63 % backward on A100).
BACKWARD_FACTOR = BACKWARD_PRODUCTS * 73.0 / 63.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShapes(AttentionCall[IntArray]):
    """Attention calls with their work and traffic; 1-D int64 arrays of one length, labels shared by all rows."""

    def pairs(self, block: int = 1) -> FloatArray:
        """Returns the pairs of query and key that a head computes, with queries and keys in blocks.

        Queries are the last of the keys, so query i sees kv_len - q_len + i + 1 of them (causal, varlen, window), at
        most ``window`` when that is not 0. A block of queries loops over the blocks of keys from the one in which its
        first query's window begins (flash-attn ``csrc/flash_attn/src/flash_fwd_kernel.h``, n_block_min).
        """
        queries = np.ceil(self.q_len / block) * block
        keys = np.ceil(self.kv_len / block) * block
        if self.mask == "full":
            return np.asarray(queries * keys, dtype=np.float64)
        rows = np.minimum(queries, keys)
        # A rectangle of the keys before the first query, and a triangle whose diagonal blocks count whole.
        pairs = rows * (keys - rows) + rows * (rows + block) / 2.0
        if self.mask == "window":
            # Band of the window: ``late`` queries see ``width`` keys each; the ``early`` ones, whose window reaches
            # past the first key, see all that precede them.
            before = np.ceil((np.maximum(self.window, 1) - 1) / block) * block
            width = np.minimum(before + block, keys)
            late = np.maximum(np.minimum(queries, keys - width), 0.0)
            early = np.maximum(rows - late, 0.0)
            banded = late * width + early * (keys - rows) + early * (early + block) / 2.0
            pairs = np.minimum(pairs, banded)
        return np.asarray(pairs, dtype=np.float64)

    @property
    def moved_bytes(self) -> FloatArray:
        """Returns the bytes of queries, output, keys and values, once each."""
        q_elements = self.batch * self.q_len * self.heads * (self.qk_dim + self.v_dim)
        kv_elements = self.batch * self.kv_len * self.kv_heads * (self.qk_dim + self.v_dim)
        return np.asarray((q_elements + kv_elements) * dtype_bytes(self.dtype), dtype=np.float64)


def flash_seconds(gpu: GpuSpec, heads: AttentionShapes) -> FloatArray:
    """Returns the time of a flash kernel, forward or backward alone; 0 where there is nothing to do. In fp8 it is the
    published multiple of the time in 16 bits, where the architecture has one."""
    ratio = fp8_ratio(heads.dtype, heads.direction, gpu.architecture)
    if ratio is not None:
        return flash_seconds(gpu, replace(heads, dtype=HIGH_PRECISION)) * ratio
    rates = flops_rates(gpu, heads.dtype)
    clock = gpu.boost_clock_hz
    # Kernels are compiled for head sizes in steps of HEAD_STEP: smaller heads are padded.
    width = sum(np.ceil(size / HEAD_STEP) * HEAD_STEP for size in (heads.qk_dim, heads.v_dim))
    # Seconds of one SM per pair of query and key: its products on the tensor cores, and its softmax on the other
    # units.
    tensor_s = 2.0 * width / (rates.peak / gpu.num_sms * MMA_EFFICIENCY)
    other_s = (1.0 / EXPONENTIALS_PER_CLOCK + PLAIN_PER_PAIR / PLAIN_PER_CLOCK) / clock
    loss = gpu.architecture.softmax_unhidden
    if loss is None:
        asynchronous = gpu.architecture.asynchronous_products
        loss = OVERLAP_LOSS_ASYNCHRONOUS if asynchronous else OVERLAP_LOSS_SYNCHRONOUS
    pair_s = np.maximum(tensor_s, other_s) + loss * np.minimum(tensor_s, other_s)
    blocks = heads.batch * heads.heads * np.ceil(heads.q_len / QUERY_BLOCK)
    pairs = heads.pairs(KEY_BLOCK)
    block_s = BLOCK_CYCLES / clock
    # All SMs share the blocks evenly (the scheduler hands out one at a time).
    shared = (heads.batch * heads.heads * pairs * pair_s + blocks * block_s) / gpu.num_sms
    # One block runs on one SM: the longest one, a causal mask's last, bounds a call of few blocks.
    per_block = pairs / np.maximum(np.ceil(heads.q_len / QUERY_BLOCK), 1.0)
    longest = np.minimum(np.ceil(heads.kv_len / KEY_BLOCK) * KEY_BLOCK * QUERY_BLOCK, 2.0 * per_block)
    compute = np.maximum(shared, longest * pair_s + block_s)
    # The power limit: no kernel computes at more than the sustained rate on all SMs.
    compute = np.maximum(compute, 2.0 * heads.batch * heads.heads * pairs * width / rates.sustained)
    slower = gpu.architecture.wide_queries
    if slower is not None:
        wide = (heads.qk_dim > heads.v_dim) & (heads.qk_dim <= WIDEST_QUERIES)
        compute = np.where(wide, compute * slower[heads.direction], compute)
    memory = streaming_seconds(gpu, heads.moved_bytes)
    seconds = np.maximum(compute, memory)
    if heads.direction == "backward":
        # Twice the traffic (gradients beside values) and a pass that adds up output times gradient.
        seconds = np.maximum(compute * BACKWARD_FACTOR, 2.0 * memory) + memory
    seconds = seconds + LAUNCH_S + FILL_CYCLES / clock
    return np.where(heads.moved_bytes == 0.0, 0.0, seconds)


def fp8_ratio(dtype: str, direction: str, architecture: ArchitectureSpec) -> float | None:
    """Returns the time of fp8 attention over that in 16 bits; None for other formats and where nobody measured it."""
    if dtype != "fp8" or architecture.fp8_attention is None:
        return None
    return architecture.fp8_attention[direction]


def core_seconds(gpu: GpuSpec, heads: AttentionShapes) -> FloatArray:
    """Returns the time of the batched products of unfused attention, forward (2) or backward (4)."""
    batch = heads.batch * heads.heads
    q_len, kv_len, qk_dim, v_dim = heads.q_len, heads.kv_len, heads.qk_dim, heads.v_dim
    # Products as (m, k, n). Forward: scores S = Q K^T, output O = P V.
    shapes = [(q_len, qk_dim, kv_len), (q_len, kv_len, v_dim)]
    if heads.direction == "backward":
        shapes = [
            # dV = P^T dO, dP = dO V^T, dQ = dS K, dK = dS^T Q.
            (kv_len, q_len, v_dim),
            (q_len, v_dim, kv_len),
            (q_len, kv_len, qk_dim),
            (kv_len, q_len, qk_dim),
        ]
    aligned = is_aligned(heads)

    def products(format_of_units: str) -> FloatArray:
        parts = [gemm_seconds(gpu, batch, m, k, n, format_of_units) for m, k, n in shapes]
        return np.asarray(np.sum(parts, axis=0), dtype=np.float64)

    fed = products(heads.dtype)
    return fed if aligned.all() else np.where(aligned, fed, products(PLAIN_UNITS))


def is_aligned(heads: AttentionShapes) -> BoolArray:
    """Returns whether every head's queries, keys and values begin at a multiple of ALIGNMENT_BYTES.

    Heads lie side by side in one array of queries, keys and values (Megatron-LM, ParallelAttention:
    [s, b, heads, 3 x width]), so that a head begins at multiples of its width.
    """
    over = [(size * dtype_bytes(heads.dtype)) % ALIGNMENT_BYTES for size in (heads.qk_dim, heads.v_dim)]
    return bools((over[0] == 0) & (over[1] == 0))
