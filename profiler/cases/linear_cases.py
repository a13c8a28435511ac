"""Matrix products to measure: those of real models under tensor parallelism, for tokens of a micro-batch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from profdb.cases import GemmCase, GroupedGemmCase, SustainedCase
from profiler.cases.model_widths import EXPERT_MODELS, MODELS, TINY_MODEL, ModelWidths, linear_widths
from profiler.cases.tiers import PlannedCase, in_tier

TENSOR_RANKS = (1, 2, 4, 8)
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
CORE_TOKENS = (1024, 4096, 16384)
CORE_MODELS = MODELS[:4]
SQUARE_WIDTHS = (1024, 2048, 4096, 8192, 12288)
LONGEST_TOKENS = (65536, 131072)
"""Micro-batches of 16 and 32 sequences of 4096."""

LOW_RANKS: tuple[tuple[int, int], ...] = (
    # DeepSeek-V3 (arXiv 2412.19437 sec. 4.2): queries through 1536, keys and values through 512 + 64, 128 heads of
    # 192 and 256 made of them; its shared expert and its dense layers are 2048 and 18432 wide
    (7168, 1536),
    (7168, 576),
    *((1536, 24576 // tp) for tp in (1, 2, 4, 8)),
    *((512, 32768 // tp) for tp in (1, 2, 4, 8)),
    *((16384 // tp, 7168) for tp in (1, 2, 4, 8)),
    *((7168, 2 * 18432 // tp) for tp in (1, 2, 4, 8)),
)

ROUTERS: tuple[tuple[int, int], ...] = ((4096, 8), (7168, 256))
"""(hidden, experts) of Mixtral 8x7B and DeepSeek-V3."""

MOST_FLOPS = 6e13
"""Larger products take longer than 0.1 s on an H100 and lie where every curve is flat."""

SUSTAINED_SIDE, SUSTAINED_S = 8192, 30
"""1.1 PFLOP a product, a few ms, for as many seconds as power and temperature take to settle."""

CPU_TOKENS = (16, 64, 128, 256, 512, 1024)


def linear_gemms(tokens: int, inputs: int, outputs: int, dtype: str) -> tuple[GemmCase, ...]:
    """Returns forward NT, input gradient NN and weight gradient TN of one Linear (profdb.cases.GemmCase)."""
    shapes = ((tokens, inputs, outputs, "NT"), (tokens, outputs, inputs, "NN"), (outputs, tokens, inputs, "TN"))
    return tuple(GemmCase(m=m, k=k, n=n, layout=layout, dtype_in=dtype, dtype_out=dtype) for m, k, n, layout in shapes)


def width_pairs(models: Sequence[ModelWidths], ranks: Iterable[int]) -> set[tuple[int, int]]:
    """Returns the distinct (in, out) features of the models' linears."""
    return {pair for model in models for tp in ranks for pair in linear_widths(model, tp).values()}


def gemms_of(pairs: Iterable[tuple[int, int]], tokens: Iterable[int], dtype: str) -> list[GemmCase]:
    """Returns all products of the pairs on each number of tokens, except the longest."""
    cases = [
        case
        for inputs, outputs in sorted(pairs)
        for count in tokens
        for case in linear_gemms(count, inputs, outputs, dtype)
    ]
    return [case for case in cases if 2.0 * case.m * case.k * case.n <= MOST_FLOPS]


def gpu_linear_cases() -> list[PlannedCase]:
    """Returns bf16 in all layouts, with and without bias; batched products; fp8 and fp16 on the core shapes."""
    core_whole = width_pairs(CORE_MODELS, (1,))
    core = width_pairs(CORE_MODELS, TENSOR_RANKS)
    squares = {(width, width) for width in SQUARE_WIDTHS}
    every = width_pairs((*MODELS, *EXPERT_MODELS), TENSOR_RANKS)
    # Tier 0: a few models and squares at usual token counts, bf16. Tier 1: core shapes in all formats. Tier 2: all
    # models at one length, core shapes at all. Tier 3: everything.
    plans = in_tier(0, gemms_of(core_whole, (4096,), "bf16"))
    plans += in_tier(0, gemms_of(squares, (512, 4096, 32768), "bf16"))
    plans += in_tier(1, gemms_of(core, CORE_TOKENS, "bf16"))
    plans += in_tier(1, as_fp8(gemms_of(core_whole | squares, CORE_TOKENS, "bf16")))
    plans += in_tier(1, attention_products("bf16"))
    plans += in_tier(1, with_bias(gemms_of(core_whole, CORE_TOKENS, "bf16")))
    plans += in_tier(2, with_bias(gemms_of(core, CORE_TOKENS, "bf16")))
    plans += in_tier(2, gemms_of(core, TOKENS, "bf16"))
    plans += in_tier(2, gemms_of(every, (4096,), "bf16"))
    plans += in_tier(2, gemms_of(core_whole, CORE_TOKENS, "fp16"))
    plans += in_tier(2, as_fp8(gemms_of(core, CORE_TOKENS, "bf16")))
    # The other scale recipes run the same products at nearly the same rate: fewer shapes are enough.
    for recipe in ("block", "mx", "row"):
        plans += in_tier(1, as_fp8(gemms_of(core_whole, (4096,), "bf16"), recipe))
        plans += in_tier(2, as_fp8(gemms_of(core_whole | squares, CORE_TOKENS, "bf16"), recipe))
    plans += in_tier(2, gemms_of({*LOW_RANKS, *ROUTERS}, CORE_TOKENS, "bf16"))
    plans += in_tier(3, gemms_of(every, TOKENS, "bf16"))
    plans += in_tier(3, gemms_of(core, LONGEST_TOKENS, "bf16"))
    return plans


def sustained_cases() -> list[PlannedCase]:
    """Returns a large square in bf16 and fp8, repeated for as long as clocks take to settle, and the same as ordinary
    products. The long ones are the longest cases of a sweep and come after its skeleton."""
    side, formats = SUSTAINED_SIDE, (("bf16", ""), ("fp8", "tensor"))
    alone = [GemmCase(m=side, k=side, n=side, dtype_in=dtype, scale_recipe=recipe) for dtype, recipe in formats]
    long = [
        SustainedCase(seconds=SUSTAINED_S, m=side, k=side, n=side, dtype_in=dtype, scale_recipe=recipe)
        for dtype, recipe in formats
    ]
    return in_tier(0, alone) + in_tier(1, long)


def as_fp8(cases: Iterable[GemmCase], recipe: str = "tensor") -> list[GemmCase]:
    """Returns the products with fp8 operands scaled by a recipe of profiler.benchmarks.fp8, and results in bf16.

    All three are in one layout: fp8 tensor cores need both operands contiguous along k, so frameworks keep transposed
    copies and run the gradients as NT too (Transformer Engine), with a gradient's sizes. Scales per tensor and by row
    use fast accumulation; a framework that accumulates gradients more exactly takes longer.
    """
    return [GemmCase(m=case.m, k=case.k, n=case.n, layout="NT", dtype_in="fp8", scale_recipe=recipe) for case in cases]


def with_bias(cases: Iterable[GemmCase]) -> list[GemmCase]:
    """Returns the forward products with a bias added in the same launch."""
    return [replace(case, bias=True) for case in cases if case.layout == "NT"]


def attention_products(dtype: str, lengths: Iterable[int] = (1024, 2048, 4096)) -> list[GemmCase]:
    """Returns scores (NT), context (NN) and a gradient (TN) of unfused attention, one product per head."""
    return [
        GemmCase(batch=heads, m=m, k=k, n=n, layout=layout, dtype_in=dtype, dtype_out=dtype)
        for heads in (8, 32, 64)
        for length in lengths
        for m, k, n, layout in ((length, 128, length, "NT"), (length, length, 128, "NN"), (length, length, 128, "TN"))
    ]


def cpu_linear_cases(dtype: str) -> list[PlannedCase]:
    """Returns small products: those of a tiny model and a few squares."""
    tiny = width_pairs((TINY_MODEL,), (1, 2))
    plans = in_tier(0, gemms_of(tiny, (128,), dtype))
    plans += in_tier(1, gemms_of({(256, 256), (512, 512)}, (64, 512), dtype))
    plans += in_tier(1, gemms_of(tiny, CPU_TOKENS, dtype))
    plans += in_tier(1, with_bias(gemms_of(tiny, (64, 512), dtype)))
    return plans


def grouped_gemms(groups: int, rows: int, inputs: int, outputs: int, dtype: str) -> tuple[GroupedGemmCase, ...]:
    """Returns forward, input gradient and weight gradient of the experts' Linear on ``rows`` in total."""
    shapes = (("NT", inputs, outputs), ("NN", outputs, inputs), ("TN", inputs, outputs))
    return tuple(
        GroupedGemmCase(groups=groups, m=rows, k=k, n=n, layout=layout, dtype_in=dtype, dtype_out=dtype)
        for layout, k, n in shapes
    )


def gpu_grouped_cases() -> list[PlannedCase]:
    """Returns the experts of one rank under expert parallelism, on rows of one micro-batch."""
    plans: list[PlannedCase] = []
    for model in EXPERT_MODELS:
        group_counts = {count for count in (1, 2, 4, 8, 16, 32) if count <= model.experts}
        # The fused gate and up projection, either of them alone, and the down projection.
        widths = ((model.hidden, 2 * model.ffn), (model.hidden, model.ffn), (model.ffn, model.hidden))
        for groups in sorted(group_counts):
            for rows in (2048, 4096, 8192, 16384, 32768):
                core = groups in (4, 8) and rows in (4096, 16384)
                for inputs, outputs in widths:
                    tier = 1 if core else 2
                    products = grouped_gemms(groups, rows, inputs, outputs, "bf16")
                    plans += in_tier(tier, products)
                    if core:
                        plans += in_tier(2, grouped_as_fp8(products))
                        plans += in_tier(2, unevenly(products))
            for rows in FEW_ROWS:
                for inputs, outputs in widths:
                    few = grouped_gemms(groups, rows * groups, inputs, outputs, "bf16")
                    plans += in_tier(3, [*few, *grouped_as_fp8(few), *grouped_as_fp8(few, "block")])
    return plans


FEW_ROWS = (128, 256)
"""Rows of an expert where a micro-batch has many experts: the fewest of block-scaled kernels, and twice as many."""


def unevenly(cases: Iterable[GroupedGemmCase]) -> list[GroupedGemmCase]:
    """Returns the same rows in total, from half to one and a half of the mean
    (profiler.benchmarks.grouped_gemm.group_rows)."""
    return [replace(case, spread="uneven") for case in cases]


def grouped_as_fp8(cases: Iterable[GroupedGemmCase], recipe: str = "row") -> list[GroupedGemmCase]:
    """Returns the experts' forward and input gradient with fp8 operands scaled by row, or by blocks, both as NT."""
    return [
        replace(case, layout="NT", dtype_in="fp8", dtype_out="bf16", scale_recipe=recipe)
        for case in cases
        # Weight gradients of experts stay in 16 bits: torch's grouped fp8 kernel has no such layout.
        if case.layout != "TN"
    ]


def cpu_grouped_cases(dtype: str) -> list[PlannedCase]:
    """Returns four small experts."""
    return in_tier(1, (case for rows in (64, 256) for case in grouped_gemms(4, rows, 256, 896, dtype)))
