"""Attention calls to measure: head shapes of real models under tensor parallelism, 512 to 128k tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

from profdb.cases import AttentionCase
from profdb.fits.families import BACKWARD_PRODUCTS
from profiler.cases.tiers import PlannedCase, in_tier

LENGTHS = tuple(512 << step for step in range(9))
"""512 .. 131072 tokens."""
DIRECTIONS = ("forward", "backward")
MOST_FLOPS = 6e14
MOST_FLOPS_OF_MORE = 1e14
"""Limits for CORE_HEADS and MORE_HEADS, counted over the whole matrix: about a second and a sixth of one
on an H100. Longer calls lie where the curve is flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Head counts and widths of one rank."""

    heads: int
    kv_heads: int
    qk_dim: int = 128
    v_dim: int = 128


CORE_HEADS = (
    Heads(heads=32, kv_heads=32),
    Heads(heads=32, kv_heads=8),
    Heads(heads=8, kv_heads=1),
    Heads(heads=4, kv_heads=4),
)
"""Llama-2-7B whole; Llama-3.1-8B whole; Llama-2-70B on 8 ranks; Llama-2-7B on 8 ranks."""

# Llama-2-70B and Qwen2-72B; InternLM2-20B; Llama-2-13B; parts of these on 2 to 8 ranks; GPT-175B; heads of 64;
# GPT-22B; heads of 192; DeepSeek-V3's MLA on 8 ranks and whole.
MORE_HEADS = (
    Heads(heads=64, kv_heads=8),
    Heads(heads=48, kv_heads=8),
    Heads(heads=40, kv_heads=40),
    Heads(heads=16, kv_heads=16),
    Heads(heads=16, kv_heads=4),
    Heads(heads=16, kv_heads=2),
    Heads(heads=8, kv_heads=8),
    Heads(heads=8, kv_heads=2),
    Heads(heads=96, kv_heads=96),
    Heads(heads=32, kv_heads=32, qk_dim=64, v_dim=64),
    Heads(heads=8, kv_heads=8, qk_dim=64, v_dim=64),
    Heads(heads=64, kv_heads=64, qk_dim=96, v_dim=96),
    Heads(heads=32, kv_heads=32, qk_dim=192, v_dim=192),
    Heads(heads=16, kv_heads=16, qk_dim=192, v_dim=128),
    Heads(heads=128, kv_heads=128, qk_dim=192, v_dim=128),
)


def calls(heads: Heads, length: int, batch: int, labels: Iterable[tuple[str, str]], dtype: str) -> list[AttentionCase]:
    """Returns forward and backward for each (mask, kernel) of ``labels``."""
    return [
        AttentionCase(
            batch=batch,
            q_len=length,
            kv_len=length,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            qk_dim=heads.qk_dim,
            v_dim=heads.v_dim,
            mask=mask,
            direction=direction,
            kernel=kernel,
            dtype=dtype,
        )
        for mask, kernel in labels
        for direction in DIRECTIONS
    ]


def short_enough(cases: Iterable[AttentionCase], most_flops: float) -> list[AttentionCase]:
    """Returns the calls below a limit: 2 products forward, 5 backward (FlashAttention-2, 2307.08691 sec. 4.1)."""
    short = []
    for case in cases:
        products = 1.0 if case.direction == "forward" else BACKWARD_PRODUCTS
        pairs = case.batch * case.heads * case.q_len * case.kv_len
        if 2.0 * products * pairs * (case.qk_dim + case.v_dim) <= most_flops:
            short.append(case)
    return short


def gpu_attention_cases() -> list[PlannedCase]:
    """Returns causal calls of the best and of cuDNN's fused kernel for every head shape; full, packed and unfused
    ones, and FlashAttention-2 for plans that request it, on core shapes."""
    causal = (("causal", "flash"), ("causal", "cudnn"))
    plans: list[PlannedCase] = []
    for heads in CORE_HEADS:
        for length in LENGTHS:
            # The skeleton has a short, a usual and a long sequence; further lengths fill the curve between.
            plans += in_tier(0 if length in (1024, 4096, 32768) else 1, calls(heads, length, 1, causal, "bf16"))
            if length in (2048, 8192):
                plans += in_tier(2, calls(heads, length, 1, (("causal", "flash2"),), "bf16"))
            if length <= 8192:
                full = (("full", "flash"), ("full", "cudnn"))
                # Sequences of one length, packed without padding, as training on documents has them.
                packed = calls(heads, length, 8, (("varlen", "flash"),), "bf16")
                plans += in_tier(1 if length == 4096 else 2, calls(heads, length, 1, full, "bf16") + packed)
                for batch in (2, 4, 8):
                    plans += in_tier(1 if batch == 4 else 2, calls(heads, length, batch, causal, "bf16"))
                for batch in (16, 32) if length <= 4096 else ():
                    plans += in_tier(3, calls(heads, length, batch, causal[:1], "bf16"))
    for length in (1024, 2048, 4096):
        # Unfused attention on few shapes: its score matrix limits the length, and few frameworks use it.
        core = (("causal", "core"),)
        plans += in_tier(1, calls(CORE_HEADS[0], length, 1, core, "bf16"))
        plans += in_tier(2, calls(CORE_HEADS[3], length, 1, core, "bf16"))
        plans += in_tier(2, calls(CORE_HEADS[3], length, 4, core, "bf16"))
    for heads in MORE_HEADS:
        for length in LENGTHS:
            # More head shapes only up to a sixth of a second: longer calls tell little more.
            tier = 1 if length in (2048, 8192) else 2
            plans += in_tier(tier, short_enough(calls(heads, length, 1, causal, "bf16"), MOST_FLOPS_OF_MORE))
            if length <= 4096:
                plans += in_tier(3, calls(heads, length, 4, causal, "bf16"))
    plans += in_tier(3, calls(CORE_HEADS[0], 4096, 1, causal, "fp16"))
    return plans


def cpu_attention_cases(dtype: str) -> list[PlannedCase]:
    """Returns small causal and full calls, with equal and grouped heads."""
    plans: list[PlannedCase] = []
    for heads in (
        Heads(heads=8, kv_heads=4, qk_dim=32, v_dim=32),
        Heads(heads=4, kv_heads=2, qk_dim=32, v_dim=32),
        Heads(heads=8, kv_heads=8, qk_dim=32, v_dim=32),
    ):
        for length in (64, 128, 256, 512):
            labels = (("causal", "flash"), ("full", "flash"))
            plans += in_tier(0 if length == 128 else 1, calls(heads, length, 1, labels, dtype))
            plans += in_tier(1, calls(heads, length, 4, labels[:1], dtype))
            plans += in_tier(1, calls(heads, length, 1, (("causal", "core"),), dtype))
    return plans
