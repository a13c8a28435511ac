"""PyTorch FSDP.

Source, read 2026-11: PyTorch FSDP documentation.
"""

from spec.presets.preset import FrameworkPreset

FSDP = FrameworkPreset(
    name="fsdp",
    host_code="torch",
    strategies=("mtp", "fsp"),
    zero_stages=(0, 2, 3),
    gradient_dtype="bf16",
    bucket_elements=0,
    gathers_every_forward=True,
    vocab_pad_multiple=1,
    overlap_tp_backward=False,
    accumulation="",
    plain_loss=True,
    context_parallel=True,
    selective="every_second_product",
    copies_parameters=True,
    stops_recomputing=True,
    source="PyTorch FSDP: NO_SHARD, FULL_SHARD, SHARD_GRAD_OP and HYBRID_SHARD with backward prefetch; one unit per layer",
)
