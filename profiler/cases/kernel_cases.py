"""Memory-bound kernels, optimizer steps and host costs to measure."""

from collections.abc import Iterable

from ops.memory_bound import KERNELS, Width, bytes_moved_per_element
from profdb.cases import HostCase, MemoryBoundCase, OptimizerCase, WarmKernelCase
from profiler.cases.model_widths import TINY_MODEL
from profiler.cases.tiers import PlannedCase, in_tier

DIRECTIONS = ("forward", "backward")
WHOLE_SHARD = tuple(name for name, kernel in KERNELS.items() if kernel.width is Width.ELEMENT)
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
"""Widths of Llama models whole and cut over 8 ranks (profiler.cases.model_widths); keys of one sequence."""

MORE_WIDTHS: dict[Width, tuple[int, ...]] = {
    Width.HIDDEN: (512, 1536, 16384),
    Width.FEED_FORWARD: (256, 53248),
    Width.VOCABULARY: (4000, 152064),
    Width.KEYS: (),
    Width.ELEMENT: (),
}
"""The narrowest that tensor parallelism or low ranks leave (a rotated head pair, DeepSeek-V3's 512 and 1536,
an eighth of Llama-2's words) and the widest of published models (Llama-3.1-405B, Qwen2-72B)."""

LONGEST_ROWS = (65536, 131072)
"""Tokens of a micro-batch of 32 sequences of 4096."""

SHARD_ELEMENTS = (1 << 22, 1 << 26, 1 << 30)
MORE_SHARD_ELEMENTS = (1 << 18, 1 << 24, 1 << 28, 1 << 32, 1 << 33)
"""A rank's parameters: up to Llama-3.1-8B whole, in fp32 two arrays of 34 GB."""

GRADIENT_ROWS = (512, 4096, 32768, 262144)
GRADIENT_WIDTHS = (256, 2048, 16384, 131072)
"""Weight gradients: from a low rank's to the experts' of DeepSeek-V3 on one of eight ranks, or a vocabulary's."""

ROUTER_WIDTHS = (8, 64, 256)
"""Experts that a router weighs in fp32: those of Mixtral, DeepSeek-V2-Lite and DeepSeek-V3."""

MOST_ELEMENTS = 3 << 30


def kernel_calls(kernel: str, rows: Iterable[int], widths: Iterable[int], dtype: str) -> list[MemoryBoundCase]:
    """Both directions; scores have a row for every head of every query, so many more rows."""
    scale = 32 if KERNELS[kernel].width is Width.KEYS else 1
    return [
        MemoryBoundCase(kernel=kernel, direction=direction, rows=count * scale, width=width, dtype=dtype)
        for count in rows
        for width in widths
        for direction in DIRECTIONS
        if count * scale * width <= MOST_ELEMENTS
        and bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype) > 0
    ]


PASSED_OVER_WHOLE = (*WHOLE_SHARD, "copy", "cast")
"""Kernels that an optimizer step runs over all parameters of a rank at once."""


def shard_calls(kernel: str, elements: Iterable[int], dtype: str) -> list[MemoryBoundCase]:
    """A pass over each number of elements, as one column."""
    return [MemoryBoundCase(kernel=kernel, direction="forward", rows=count, width=1, dtype=dtype) for count in elements]


def gpu_kernel_cases() -> list[PlannedCase]:
    """Every kernel of ops.memory_bound on rows of a micro-batch."""
    plans: list[PlannedCase] = []
    for kernel in WHOLE_SHARD:
        for dtype in ("fp32", "bf16"):
            plans += in_tier(0, kernel_calls(kernel, SHARD_ELEMENTS, (1,), dtype))
    for kernel in PASSED_OVER_WHOLE:
        for dtype in ("fp32", "bf16"):
            plans += in_tier(2, shard_calls(kernel, (*SHARD_ELEMENTS, *MORE_SHARD_ELEMENTS), dtype))
    for kernel in ROW_KERNELS:
        widths = WIDTHS[KERNELS[kernel].width]
        plans += in_tier(0, kernel_calls(kernel, (4096, 16384), widths[:1], "bf16"))
        plans += in_tier(1, kernel_calls(kernel, GPU_ROWS, widths, "bf16"))
        plans += in_tier(2, kernel_calls(kernel, GPU_MORE_ROWS, widths, "bf16"))
        plans += in_tier(2, kernel_calls(kernel, (128,), widths[:1], "bf16"))
        if kernel.startswith("accumulate"):
            plans += in_tier(2, kernel_calls(kernel, GRADIENT_ROWS, GRADIENT_WIDTHS, "bf16"))
        elif KERNELS[kernel].fused:
            more = MORE_WIDTHS[KERNELS[kernel].width]
            plans += in_tier(3, kernel_calls(kernel, (*GPU_ROWS, GPU_MORE_ROWS[0], GPU_MORE_ROWS[-1]), more, "bf16"))
            plans += in_tier(3, kernel_calls(kernel, LONGEST_ROWS, (*widths, *more), "bf16"))
    plans += in_tier(1, router_calls(GPU_ROWS))
    return plans


WARM_KERNELS = ("rmsnorm", "layernorm", "swiglu", "gelu", "add")
"""What reads what a product or an attention call has just written."""


def warm_cases() -> list[PlannedCase]:
    """Kernels that a cache of 50 MB (H100) holds the operands of, on as many rows as leave it full or not."""
    cold = [
        case
        for kernel in WARM_KERNELS
        for case in kernel_calls(kernel, (512, 1024, 2048), WIDTHS[KERNELS[kernel].width][:1], "bf16")
    ]
    return in_tier(
        2,
        (
            WarmKernelCase(
                kernel=case.kernel,
                direction=case.direction,
                rows=case.rows,
                width=case.width,
                dtype=case.dtype,
            )
            for case in cold
        ),
    )


def router_calls(tokens: Iterable[int]) -> list[MemoryBoundCase]:
    """The softmax over the experts of every token, in fp32 (ops.experts.moe_block)."""
    return [
        MemoryBoundCase(kernel="masked_softmax", direction=direction, rows=rows, width=width, dtype="fp32")
        for rows in tokens
        for width in ROUTER_WIDTHS
        for direction in DIRECTIONS
    ]


def cpu_kernel_cases(dtype: str) -> list[PlannedCase]:
    """Every kernel at the widths of a tiny model."""
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
    """AdamW over fp32 parameters, in one piece or many."""
    return [OptimizerCase(elements=size, tensors=pieces) for size in elements for pieces in tensors]


def gpu_optimizer_cases() -> list[PlannedCase]:
    """One million to one billion parameters."""
    millions = tuple(1 << bits for bits in (20, 22, 24, 26, 28, 30))
    plans = in_tier(0, optimizer_cases(millions[2::2], (1,)))
    plans += in_tier(2, optimizer_cases((1 << 31, 1 << 32), (1,)))
    return plans + in_tier(1, optimizer_cases(millions, (1, 64)))


def cpu_optimizer_cases() -> list[PlannedCase]:
    """Up to four million parameters."""
    return in_tier(0, optimizer_cases((1 << 16, 1 << 18, 1 << 20, 1 << 22), (1,)))


def host_cases() -> list[PlannedCase]:
    """The four host costs."""
    return in_tier(0, (HostCase(kind=kind) for kind in ("launch", "call", "layer", "micro_batch")))
