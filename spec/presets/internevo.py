"""InternEvo.

Source, read 2026-11: InternEvo 0.4 ``configs/`` and ``internlm/solver/optimizer/hybrid_zero_optim.py``.
"""

from spec.presets.preset import FrameworkPreset

INTERNEVO = FrameworkPreset(
    name="internevo",
    host_code="torch",
    flattened_buckets=True,
    strategies=("mtp", "msp", "fsp", "isp"),
    zero_stages=(0, 1),
    gradient_dtype="bf16",
    bucket_elements=512 * 1024**2,
    parameter_sync="broadcast",
    vocab_pad_multiple=1,
    fills_pipeline=True,
    overlap_param_gather=False,
    fused_activation=False,
    gradient_sync="all_reduce",
    accumulation="accumulate",
    selective="",
    source="InternEvo 0.4 configs/7B_internlm2.py: overlap_sync_grad True, overlap_sync_param False, "
    "reduce_bucket_size 512 Mi elements, zero1 broadcast of updated parameters",
)
