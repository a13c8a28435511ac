"""Flash attention of a named generation, from the rates that its authors published.

FlashAttention-2 on H100 SXM5: arXiv 2407.08608, figure 5 (forward; causal and not; heads of 64, 128, 256) and
figure 6 (backward, not causal; heads of 64, 128), TFLOP/s at 512 to 16k tokens, 16k tokens a call. An
architecture states the rates of the same kernel on its GPUs with heads of 128 at 16k tokens (spec.cluster.cluster:
Flash2Rates). ``Assumption:`` other lengths and widths have the same shares of that rate as on H100.
The time of an older kernel is a published multiple of FlashAttention-2's, the middle of its range: FlashAttention
1.7-3.0 on A100, FlashAttention written in Triton 1.3-1.5 forward and about 2 backward (2307.08691 sec. 4.1). The gain of
the best kernel over FlashAttention-2 is a fact of the architecture.
``Assumption:`` a causal backward loses as much as a causal forward of the same length and width; heads of another
width run at the rate of the next published one, padded to a multiple of 32.

The published calls fill the GPU: 16k tokens and 2048 channels. A call of fewer heads ends with multiprocessors that
wait for the longest block (each block of queries, or of keys in the backward, runs on one SM: 2307.08691 sec. 3.2).
Half such a block, on average, is added to a call, and to the published calls too.
"""

import contextlib
from dataclasses import replace

import numpy as np

from ops.op import Attention, AttentionCall, fields_of
from profdb.cost_model import CostModel
from profdb.fits.families import BACKWARD_PRODUCTS
from profdb.modelled.attention import HIGH_PRECISION, AttentionShapes, fp8_ratio
from profdb.modelled.memory_bound import streaming_seconds
from profdb.modelled.rates import flops_rates
from profdb.queries import AttentionQuery, TimeEstimate
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ArchitectureSpec, Flash2Rates, GpuSpec
from spec.errors import MissingCurveError
from spec.origin import Origin

RELATIVE_STD = 0.15  # Assumption: spread of the published rates over versions of the kernel

# Time over FlashAttention-2's, by direction.
OVER_FLASH2: dict[str, dict[str, float]] = {
    "flash2": {"forward": 1.0, "backward": 1.0},
    "flash1": {"forward": 2.35, "backward": 2.35},
    "flash_triton": {"forward": 1.4, "backward": 2.0},
}
BEST = "flash"  # whichever kernel is best on the GPU

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WIDTHS = (64, 128, 256)
FORWARD_FULL = {
    64: (282, 306, 318, 321, 322, 324),
    128: (309, 350, 362, 368, 370, 370),
    256: (275, 313, 321, 323, 324, 326),
}
FORWARD_CAUSAL = {
    64: (180, 229, 262, 284, 295, 299),
    128: (191, 260, 298, 319, 333, 335),
    256: (208, 251, 278, 293, 297, 298),
}
BACKWARD_FULL = {64: (198, 238, 264, 279, 287, 291), 128: (214, 260, 291, 310, 318, 322)}
# The published calls: tokens of all sequences, channels of all heads (2307.08691 sec. 4.1).
PUBLISHED_TOKENS, PUBLISHED_CHANNELS = 16384, 2048
BLOCK = 128  # queries, or keys in the backward, of a block (2307.08691 sec. 3.3)
# The entry of the tables that an architecture states its own figures for.
STATED_WIDTH = 128

HEAD_STEP = 32  # flash-attn compiles its kernels for multiples of 32


def slowdown(kernel: str, direction: str, architecture: ArchitectureSpec | None) -> float:
    """Returns the time of ``kernel`` over the best one's on GPUs of ``architecture`` (None: one on which no kernel is
    faster than FlashAttention-2); 1 for kernels that are no flash generation."""
    if kernel not in OVER_FLASH2:
        return 1.0
    best = architecture.best_over_flash2[direction] if architecture else 1.0
    return best * OVER_FLASH2[kernel][direction]


def published_rates(kernel: str, architecture: ArchitectureSpec) -> Flash2Rates | None:
    """Returns the rates from which those of ``kernel`` on that architecture follow; None where none are published."""
    return architecture.flash2 if kernel in OVER_FLASH2 else None


def generation_seconds(gpu: GpuSpec, heads: AttentionShapes) -> FloatArray:
    """Returns the time of a call of its kernel on ``gpu``, forward or backward; 0 where there is nothing to do.

    Pairs of query and key outside the mask are not counted, as in the papers. Raises ValueError for a kernel or
    architecture without published rates.
    """
    stated = published_rates(heads.kernel, gpu.architecture)
    if stated is None:
        raise ValueError(f"no published rates of {heads.kernel} on {gpu.architecture.name}")
    backward = heads.direction == "backward"
    widths = np.maximum(heads.qk_dim, heads.v_dim)
    rate = published_flops(heads.kv_len, widths, heads.direction, heads.mask, stated)
    rates = flops_rates(gpu, heads.dtype)
    # From the GPU of the published figures to this one: by the tensor peak if the kernel keeps its rate where power
    # limits long products, else by the rate that those sustain.
    rate = rate * (rates.peak if stated.holds_under_load else rates.sustained) / stated.gpu_flops
    width = np.ceil(widths / HEAD_STEP) * HEAD_STEP
    # Two products of 2 ``width`` FLOP per pair forward, five backward.
    per_pair = 4.0 * width * (BACKWARD_PRODUCTS if backward else 1.0)
    pairs = heads.pairs()
    # What the published call of this length would reach if no multiprocessor waited at its end.
    per_sequence = np.maximum(pairs * PUBLISHED_CHANNELS / np.maximum(widths, 1), 1.0)
    sequences = np.maximum(PUBLISHED_TOKENS / np.maximum(heads.kv_len, 1), 1.0)
    tail_pairs = BLOCK / 2.0 * np.minimum(heads.kv_len, pairs)
    full_rate = rate * (1.0 + tail_pairs * stated.num_sms / (per_sequence * sequences))
    calls = heads.batch * heads.heads * pairs + tail_pairs * gpu.num_sms
    seconds = per_pair * calls / full_rate * OVER_FLASH2[heads.kernel][heads.direction]
    memory = streaming_seconds(gpu, heads.moved_bytes * (2.0 if backward else 1.0))
    return np.where(heads.moved_bytes == 0.0, 0.0, np.maximum(seconds, memory))


def published_flops(lengths: IntArray, widths: IntArray, direction: str, mask: str, stated: Flash2Rates) -> FloatArray:
    """Returns FLOP/s of FlashAttention-2 by number of keys and head width (1-D arrays): interpolated over the
    logarithm of the length, constant beyond the published lengths."""
    index = np.minimum(np.searchsorted(WIDTHS, widths), len(WIDTHS) - 1)
    padded = np.broadcast_to(np.asarray(WIDTHS)[index], lengths.shape)
    rates = np.zeros(lengths.shape)
    for width in WIDTHS:
        per_length = _rates(width, direction, causal=mask != "full")
        here = np.interp(np.log2(np.maximum(lengths, 1)), np.log2(LENGTHS), per_length)
        rates = np.where(padded == width, here, rates)
    return rates * 1e12 * _share(stated, direction, causal=mask != "full")


def _rates(width: int, direction: str, *, causal: bool) -> FloatArray:
    full, masked = np.asarray(FORWARD_FULL[width], float), np.asarray(FORWARD_CAUSAL[width], float)
    if direction == "forward":
        return masked if causal else full
    # Assumption: heads of 256 lose in the backward what they lose in the forward.
    loss = full / np.asarray(FORWARD_FULL[128], float) if width not in BACKWARD_FULL else 1.0
    backward = np.asarray(BACKWARD_FULL.get(width, BACKWARD_FULL[128]), float) * loss
    return np.asarray(backward * (masked / full if causal else 1.0), dtype=np.float64)


def _share(stated: Flash2Rates, direction: str, *, causal: bool) -> float:
    """Returns FLOP/s on the architecture over those of the tables, at the entry that both state."""
    full = stated.forward / (FORWARD_FULL[STATED_WIDTH][-1] * 1e12)
    masked = stated.causal_forward / (FORWARD_CAUSAL[STATED_WIDTH][-1] * 1e12)
    if direction == "forward":
        return masked if causal else full
    backward = stated.backward / (BACKWARD_FULL[STATED_WIDTH][-1] * 1e12)
    return backward * (masked / full if causal else 1.0)


def attention_price(cost_model: CostModel, gpu: GpuSpec | None, op: Attention) -> TimeEstimate:
    """Returns the cost model's times of attention. A named generation and fp8 use their own curves for the shapes for
    which these were measured, else a restated time. Raises MissingCurveError as the cost model does."""
    query = AttentionQuery(**fields_of(AttentionCall, op))
    over = None
    if gpu and query.dtype == "fp8":
        over = fp8_ratio(query.dtype, query.direction, gpu.architecture)
    if query.kernel not in OVER_FLASH2 and over is None:
        return cost_model.attention_s(query)
    with contextlib.suppress(MissingCurveError):
        own = cost_model.attention_s(query)
        # Origins are ordered from best to least known: what follows TRANSFERRED is modelled or assumed.
        measured = own.origin <= int(Origin.TRANSFERRED)
        return own if measured.all() else own.where(measured, _restate(cost_model, gpu, query, over))
    return _restate(cost_model, gpu, query, over)


def _restate(cost_model: CostModel, gpu: GpuSpec | None, query: AttentionQuery, over: float | None) -> TimeEstimate:
    """Returns the time of a named generation at its published rates; on a GPU without such rates, and in fp8, the
    time of the best kernel in 16 bits times the published ratios."""
    if gpu and published_rates(query.kernel, gpu.architecture):
        return generation_price(gpu, query)
    ratio = slowdown(query.kernel, query.direction, gpu.architecture if gpu else None) * (over or 1.0)
    kernel = BEST if query.kernel in OVER_FLASH2 else query.kernel
    best = cost_model.attention_s(replace(query, kernel=kernel, dtype=HIGH_PRECISION if over else query.dtype))
    origin = np.where(best.origin == int(Origin.MEASURED), int(Origin.TRANSFERRED), best.origin)
    return TimeEstimate(seconds=best.seconds * ratio, relative_std=best.relative_std, origin=origin)


def generation_price(gpu: GpuSpec, query: AttentionQuery) -> TimeEstimate:
    """Returns ``generation_seconds`` for every shape of ``query``, as a cost model's answer."""
    seconds = generation_seconds(gpu, AttentionShapes(**fields_of(AttentionCall, query)))
    return TimeEstimate(
        seconds=seconds,
        relative_std=np.full(seconds.shape, RELATIVE_STD),
        origin=np.full(seconds.shape, int(Origin.MODELLED), dtype=np.int64),
    )
