"""Composer (llm-foundry) with FSDP1. Gradients are reduced in fp32 under mp_mode DEFAULT, in 16 bits under PURE
(composer distributed/mosaic_parallelism.py, get_mixed_precision): say ``data_parallel.fp32_gradients``.
"""

from spec.presets.variants.variant import Variant

COMPOSER = Variant(
    name="composer",
    of="fsdp",
    source="Composer with torch 2.1 (llm-foundry b2a43a147, October 2023: scripts/train/benchmarking/sweep.sh, IMAGE "
    "2.1.0_cu121; yamls/pretrain/mpt-*.yaml, activation_checkpointing_reentrant false; composer "
    "trainer/dist_strategy.py, CheckpointImpl.NO_REENTRANT, which torch ends early since 2.1); FSDP1 keeps parameters "
    "as views of what is gathered, and joins gradients; llmfoundry/models/mpt/modeling_mpt.py, flops_per_batch (the "
    "whole matrix); llmfoundry/command_utils/train.py, parallelism_config: fsdp and tp, of which "
    "llmfoundry/tp/ffn_tp_strategy.py cuts no attention; MegaBlocks' moe_world_size",
    choices={
        "tensor_parallel.cuts_layers": False,
        "tensor_parallel.cuts_sequences": False,
        "pipeline.stages": False,
        "offload.modules": (),
        "data_parallel.copies_parameters": False,
        "data_parallel.joins_gradients": True,
    },
)
