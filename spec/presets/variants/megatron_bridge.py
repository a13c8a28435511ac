"""Megatron-Bridge in its performance recipes."""

from spec.presets.variants.variant import Variant

MEGATRON_BRIDGE = Variant(
    name="megatron-bridge",
    of="megatron",
    source="Megatron-Bridge, scripts/performance: mixed_precision.grad_reduce_in_fp32 = False (gradients kept and reduced in 16 bits, "
    "added up inside the GEMM), a fused loss, tp_comm_overlap; training/mixed_precision.py: fp8_param_gather True with delayed and current scaling "
    "and, through the gradients' 16-bit buffer, MXFP8, False with subchannels",
    choices={
        "data_parallel.fp32_gradients": False,
        "data_parallel.accumulation": "accumulate_16bit",
        "data_parallel.held_narrow": frozenset({"tensor", "mx"}),
        "loss.fused": True,
        "tensor_parallel.overlap": True,
        "host.checks_numbers": False,
    },
)
