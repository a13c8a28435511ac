"""FLOP/s of a number format: the tensor peak and what the power limit sustains."""

from dataclasses import dataclass

from spec.cluster.cluster import GpuSpec
from spec.errors import ConfigError

# Sustained over peak where a hardware spec states none: median of the bf16 rows for NVIDIA GPUs (A100 SXM and
# PCIe, H100, B200, B300, GB200) in stas00/ml-engineering, compute/accelerator/README.md, "Maximum
# Achievable Matmul FLOPS comparison table": 0.869, 0.811, 0.803, 0.776, 0.786, 0.729.
SUSTAINED_SHARE = 0.795

# Time of a product with a scale for every 32 numbers over that of one with a scale an operand: the twelve
# products of a layer of 4,096 channels on B300 take 7.161 ms in MXFP8 and 6.812 in fp8, quantized before
# (NVIDIA/TransformerEngine, docs/examples/gemm_profiling/gemm_profiling.rst).
MX_OVER_ONE_SCALE = 7.161 / 6.812


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsRates:
    """Dense FLOP/s: ``peak`` at the tensor clock, ``sustained`` by long products on all SMs."""

    peak: float
    sustained: float


def flops_rates(gpu: GpuSpec, dtype: str) -> FlopsRates:
    """Returns the rates of a number format. Without a sustained figure, sustained over peak is that of bf16 or fp16,
    else SUSTAINED_SHARE. Raises ConfigError for a format the GPU has no peak for."""
    if dtype not in gpu.peak_flops:
        raise ConfigError(
            where=gpu.name,
            key="peak_flops",
            value=dtype,
            allowed=f"a format the GPU computes in: {', '.join(gpu.peak_flops)}",
        )
    peak = gpu.peak_flops[dtype]
    if dtype in gpu.sustained_flops:
        return FlopsRates(peak=peak, sustained=gpu.sustained_flops[dtype])
    for reference in ("bf16", "fp16"):
        if reference in gpu.sustained_flops and reference in gpu.peak_flops:
            share = gpu.sustained_flops[reference] / gpu.peak_flops[reference]
            return FlopsRates(peak=peak, sustained=peak * share)
    return FlopsRates(peak=peak, sustained=peak * SUSTAINED_SHARE)


def over_one_scale(gpu: GpuSpec, dtype: str, scale_recipe: str) -> float:
    """Returns the time of a product with such scales over that with one scale per operand. Where tensor cores have no
    blocks of 128, blocks run as MXFP8 (Transformer Engine ``csrc/extensions/gemm.cpp``,
    convert_block_scaling_to_mxfp8_tensor)."""
    scales = gpu.architecture.fp8.scales if gpu.architecture.fp8 else ()
    emulated = scale_recipe == "block" and "block" not in scales and "mx" in scales
    return MX_OVER_ONE_SCALE if dtype == "fp8" and (scale_recipe == "mx" or emulated) else 1.0
