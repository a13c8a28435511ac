"""NeMo 24; NeMo 2, and NVIDIA's submissions to MLPerf Training with it."""

from spec.presets.variants.variant import Variant

NEMO = Variant(
    name="nemo",
    of="megatron",
    source="NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/20b.yaml: ub_tp_comm_overlap True (tensor-parallel "
    "communication inside the GEMMs); NeMo v2.2.0, nemo/utils/flops_formulas.py: 12 seq_len / hidden",
    choices={
        "log.attention": "whole",
        # before Megatron-Core 0.10 and 0.12 had them
        "data_parallel.hybrid_zero": False,
        "offload.optimizer": "",
        "tensor_parallel.overlap": True,
        "pipeline.uneven_chunks": "ends",
        "host.checks_numbers": False,
        # before Megatron-Core and Transformer Engine had them
        "offload.modules": (),
        "layers.shares_kept_inputs": False,
        "layers.sends_probabilities": False,
        "data_parallel.keeps_stand_ins": False,
    },
)
NEMO2 = Variant(
    name="nemo2",
    of="megatron",
    source="NVIDIA/NeMo v2.3.0, nemo/collections/llm/recipes/llama3_8b.py and llama3_70b.py, *_performance_optimizations "
    "(grad_reduce_in_fp32 False, tp_comm_overlap), nemo/utils/flops_formulas.py (12 seq_len / hidden), gpt/model/base.py (cross_entropy_loss_fusion, gradient_accumulation_fusion); "
    "nemo/collections/llm/recipes/precision/mixed_precision.py of v2.1.0 to v2.3.0 (bf16_with_fp8_mixed: fp8_params, then fp8_param_gather, True; "
    "bf16_with_mxfp8_mixed: False); "
    "mlcommons/training_results_v4.1, NVIDIA/benchmarks/gpt3/implementations/eos_n32_ngc24.09_nemo "
    "(conf/optim/distributed_fused_adam.yaml: grad_sync_dtype bf16; conf/custom.yaml: cross_entropy_loss_fusion; TP_COMM_OVERLAP)",
    choices={
        "log.attention": "whole",
        "data_parallel.fp32_gradients": False,
        "data_parallel.accumulation": "accumulate_16bit",
        "data_parallel.held_narrow": frozenset({"tensor"}),
        "loss.fused": True,
        "tensor_parallel.overlap": True,
        "pipeline.uneven_chunks": "ends",
        "host.checks_numbers": False,
        # before Megatron-Core and Transformer Engine had them
        "offload.modules": (),
        "layers.shares_kept_inputs": False,
        "layers.sends_probabilities": False,
        "data_parallel.keeps_stand_ins": False,
    },
)
