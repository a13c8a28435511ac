"""Composer (llm-foundry) with FSDP1. Gradients are reduced in fp32 under mp_mode DEFAULT, in 16 bits under PURE (composer
distributed/mosaic_parallelism.py, get_mixed_precision): say ``data_parallel.fp32_gradients``.
"""

from spec.presets.variants.variant import Variant

COMPOSER = Variant(
    name="composer",
    of="fsdp",
    source="Composer with torch 1.13.1 and 2.0.1 (llm-foundry scripts/train/benchmarking: --image), before early_stop; "
    "FSDP1 keeps parameters as views of what is gathered, and joins gradients; llmfoundry/models/mpt/modeling_mpt.py, flops_per_batch (the whole matrix)",
    choices={
        "data_parallel.copies_parameters": False,
        "data_parallel.joins_gradients": True,
        "recomputation.stops_early": False,
    },
)
