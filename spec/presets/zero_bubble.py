"""The zero-bubble fork of Megatron-LM (arXiv 2401.10241)."""

from dataclasses import replace

from spec.presets.megatron import MEGATRON

ZERO_BUBBLE = replace(
    MEGATRON,
    name="zero-bubble",
    source="sail-sg/zero-bubble-pipeline-parallelism, a fork of Megatron-LM: --enable-zero-bubble; "
    "megatron/core/zbpp_utils.py refuses overlap-grad-reduce and overlap-param-gather beside its distributed optimizer, "
    "and splits no backward where gradients are reduced ahead; "
    "megatron/training/training.py, num_floating_point_operations: seq_length / hidden_size; otherwise "
    + MEGATRON.source,
).changed(
    {
        "pipeline.uneven_chunks": "",
        "recomputation.modules": (),
        "pipeline.schedules": ("1f1b", "zb-h1", "zb-h2"),
        # --enable-optimizer-post-validation
        "pipeline.post_validation": True,
        "data_parallel.overlap_grad_reduce": False,
        "data_parallel.overlap_param_gather": False,
        # before Megatron-Core and Transformer Engine had them
        "data_parallel.hybrid_zero": False,
        "offload.activations": False,
        "offload.modules": (),
        "offload.optimizer": "",
        "data_parallel.keeps_stand_ins": False,
        "log.attention": "whole",
    }
)
