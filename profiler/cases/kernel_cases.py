"""Memory-bound kernels, optimizer steps and host costs to measure."""

from collections.abc import Iterable

from ops.memory_bound import KERNELS, WHOLE_SHARD, Width, bytes_moved_per_element
from profdb.cases import HostCase, MemoryBoundCase, OptimizerCase, WarmKernelCase
from profiler.benchmarks.memory_bound import compiled_kernels
from profiler.cases.model_widths import TINY_MODEL
from profiler.cases.tiers import PlannedCase, in_tier

DIRECTIONS = ("forward", "backward")
ROW_KERNELS = tuple(name for name in KERNELS if name not in WHOLE_SHARD)

GPU_ROWS = (1024, 4096, 16384)
GPU_MORE_ROWS = (512, 2048, 8192, 32768)
WIDTHS: dict[Width, tuple[int, ...]] = {
    Width.HIDDEN: (4096, 8192),
    Width.FEED_FORWARD: (1792, 11008, 28672),
    Width.VOCABULARY: (16032, 32000, 128256),
    Width.KEYS: (2048, 4096),
    Width.ELEMENT: (1,),
}
"""Widths of Llama models whole and sharded over 8 ranks (profiler.cases.model_widths); keys of one sequence."""

MORE_WIDTHS: dict[Width, tuple[int, ...]] = {
    Width.HIDDEN: (512, 1536, 16384),
    Width.FEED_FORWARD: (256, 53248),
    Width.VOCABULARY: (4000, 152064),
    Width.KEYS: (),
    Width.ELEMENT: (),
}
"""The smallest widths under tensor parallelism or with low ranks (a rotated head pair, DeepSeek-V3's 512 and 1536,
an eighth of Llama-2's vocabulary) and the largest of published models (Llama-3.1-405B, Qwen2-72B)."""

LONGEST_ROWS = (65536, 131072)
"""Tokens of a micro-batch of 32 sequences of 4096."""

SHARD_ELEMENTS = (1 << 22, 1 << 26, 1 << 30)
MORE_SHARD_ELEMENTS = (1 << 18, 1 << 24, 1 << 28, 1 << 32, 1 << 33)
"""Parameters of a rank: up to all of Llama-3.1-8B, in fp32 two arrays of 34 GB."""

GRADIENT_ROWS = (512, 4096, 32768, 262144)
GRADIENT_WIDTHS = (256, 2048, 16384, 131072)
"""Weight gradients: from a low rank's to the experts' of DeepSeek-V3 on one of eight ranks, or a vocabulary's."""

ROUTER_WIDTHS = (8, 64, 256)
"""Experts of a router in fp32: those of Mixtral, DeepSeek-V2-Lite and DeepSeek-V3."""

MOST_ELEMENTS = 3 << 30


def kernel_calls(kernel: str, rows: Iterable[int], widths: Iterable[int], dtype: str) -> list[MemoryBoundCase]:
    """Returns both directions; kernels over scores have a row for every head of every query, so 32 times as many
    rows."""
    # 32 heads of each query.
    scale = 32 if KERNELS[kernel].width is Width.KEYS else 1
    return [
        MemoryBoundCase(kernel=kernel, direction=direction, rows=count * scale, width=width, dtype=dtype)
        for count in rows
        for width in widths
        for direction in DIRECTIONS
        # Arrays of more than 2^31 elements need 64-bit indices; much larger ones do not fit. Directions in which the
        # kernel moves nothing are left out.
        if count * scale * width <= MOST_ELEMENTS
        and bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype) > 0
    ]


PASSED_OVER_WHOLE = (*WHOLE_SHARD, "copy", "cast")
"""Kernels that an optimizer step runs over all parameters of a rank at once."""


def shard_calls(kernel: str, elements: Iterable[int], dtype: str) -> list[MemoryBoundCase]:
    """Returns a pass over each number of elements, as one column."""
    return [MemoryBoundCase(kernel=kernel, direction="forward", rows=count, width=1, dtype=dtype) for count in elements]


def gpu_kernel_cases() -> list[PlannedCase]:
    """Returns every kernel of ops.memory_bound on rows of a micro-batch."""
    plans: list[PlannedCase] = []
    compiled = compiled_kernels()
    for kernel in WHOLE_SHARD:
        for dtype in ("fp32", "bf16"):
            plans += in_tier(0, kernel_calls(kernel, SHARD_ELEMENTS, (1,), dtype))
    # Parameters, gradients and moments are passed over as one column of all of a rank's elements.
    for kernel in PASSED_OVER_WHOLE:
        for dtype in ("fp32", "bf16"):
            plans += in_tier(2, shard_calls(kernel, (*SHARD_ELEMENTS, *MORE_SHARD_ELEMENTS), dtype))
    for kernel in ROW_KERNELS:
        widths, more = WIDTHS[KERNELS[kernel].width], MORE_WIDTHS[KERNELS[kernel].width]
        if kernel in compiled:
            # Each width is a graph to compile: one that is usual, the narrowest and the widest.
            widths = tuple(dict.fromkeys((widths[0], min(*widths, *more), max(*widths, *more))))
        # Per kernel: two row counts first, then more rows and widths, then few rows and the extremes.
        plans += in_tier(0, kernel_calls(kernel, (4096, 16384), widths[:1], "bf16"))
        plans += in_tier(1, kernel_calls(kernel, GPU_ROWS, widths, "bf16"))
        plans += in_tier(2, kernel_calls(kernel, GPU_MORE_ROWS, widths, "bf16"))
        plans += in_tier(2, kernel_calls(kernel, (128,), widths[:1], "bf16"))
        # A gradient's shape is that of its weight, not of activations.
        if kernel.startswith("accumulate"):
            plans += in_tier(2, kernel_calls(kernel, GRADIENT_ROWS, GRADIENT_WIDTHS, "bf16"))
        elif kernel in compiled:
            plans += in_tier(3, kernel_calls(kernel, LONGEST_ROWS, widths, "bf16"))
        elif KERNELS[kernel].fused:
            plans += in_tier(3, kernel_calls(kernel, (*GPU_ROWS, GPU_MORE_ROWS[0], GPU_MORE_ROWS[-1]), more, "bf16"))
            plans += in_tier(3, kernel_calls(kernel, LONGEST_ROWS, (*widths, *more), "bf16"))
    plans += in_tier(1, router_calls(GPU_ROWS))
    return plans


WARM_KERNELS = ("rmsnorm", "layernorm", "swiglu", "gelu", "add")
"""Kernels that read the output of the product or attention call before them."""


def warm_cases() -> list[PlannedCase]:
    """Returns kernels whose operands fit a cache of 50 MB (H100), on numbers of rows that fill it or do not."""
    cold = [
        case
        for kernel in WARM_KERNELS
        for case in kernel_calls(kernel, (512, 1024, 2048), WIDTHS[KERNELS[kernel].width][:1], "bf16")
    ]
    return in_tier(
        2,
        (
            WarmKernelCase(
                kernel=case.kernel, direction=case.direction, rows=case.rows, width=case.width, dtype=case.dtype
            )
            for case in cold
        ),
    )


def router_calls(tokens: Iterable[int]) -> list[MemoryBoundCase]:
    """Returns the softmax over the experts of every token, in fp32 (ops.experts.moe_block)."""
    return [
        MemoryBoundCase(kernel="masked_softmax", direction=direction, rows=rows, width=width, dtype="fp32")
        for rows in tokens
        for width in ROUTER_WIDTHS
        for direction in DIRECTIONS
    ]


def cpu_kernel_cases(dtype: str) -> list[PlannedCase]:
    """Returns every kernel at the widths of a tiny model."""
    plans: list[PlannedCase] = []
    for kernel in WHOLE_SHARD:
        for kind in (dtype, "fp32"):
            plans += in_tier(0, kernel_calls(kernel, (1 << 14, 1 << 17, 1 << 20), (1,), kind))
    for kernel in ROW_KERNELS:
        over_words = KERNELS[kernel].width is Width.VOCABULARY
        width = TINY_MODEL.vocab if over_words else TINY_MODEL.hidden
        plans += in_tier(0, kernel_calls(kernel, (128,), (width,), dtype))
        plans += in_tier(1, kernel_calls(kernel, (32, 512), (width,), dtype))
    return plans


def optimizer_cases(elements: Iterable[int], tensors: Iterable[int]) -> list[OptimizerCase]:
    """Returns AdamW over fp32 parameters, in one piece or many."""
    return [OptimizerCase(elements=size, tensors=pieces) for size in elements for pieces in tensors]


def gpu_optimizer_cases() -> list[PlannedCase]:
    """Returns AdamW steps over one million to four billion parameters."""
    millions = tuple(1 << bits for bits in (20, 22, 24, 26, 28, 30))
    plans = in_tier(0, optimizer_cases(millions[2::2], (1,)))
    plans += in_tier(2, optimizer_cases((1 << 31, 1 << 32), (1,)))
    return plans + in_tier(1, optimizer_cases(millions, (1, 64)))


def cpu_optimizer_cases() -> list[PlannedCase]:
    """Returns AdamW steps over up to four million parameters."""
    return in_tier(0, optimizer_cases((1 << 16, 1 << 18, 1 << 20, 1 << 22), (1,)))


def host_cases() -> list[PlannedCase]:
    """Returns the four host costs."""
    return in_tier(0, (HostCase(kind=kind) for kind in ("launch", "call", "layer", "micro_batch")))
