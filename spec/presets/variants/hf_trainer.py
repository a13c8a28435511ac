"""Hugging Face's Trainer over FSDP1 (accelerate)."""

from spec.presets.variants.variant import Variant

HF_TRAINER = Variant(
    name="hf-trainer",
    of="fsdp",
    source="transformers 4.4x: models/llama/modeling_llama.py (q_proj, k_proj, v_proj, gate_proj and up_proj apart, act_fn(gate) * up, logits.float() "
    "before the loss), modeling_utils.py gradient_checkpointing_enable (use_reentrant=True: the forward is repeated to its end, of every layer or none); "
    "torch/distributed/fsdp/_runtime_utils.py (FSDP1); trainer.py, _inner_training_loop, and accelerate accelerator.py, no_sync; training_args.py, optim adamw_torch, and torch/optim/adamw.py, "
    "_multi_tensor_adamw: _foreach_sqrt(device_exp_avg_sqs); modeling_utils.py, floating_point_ops: 6 FLOPs a parameter and token, no attention; "
    "trainer.py of 4.4x shards by FSDP alone: neither tp, pp, cp nor experts over ranks; TRL trl/models/activation_offloading.py (SFTConfig, activation_offloading)",
    choices={
        "log.attention": "",
        "tensor_parallel.cuts_layers": False,
        "tensor_parallel.cuts_sequences": False,
        "tensor_parallel.spreads_experts": False,
        "pipeline.stages": False,
        "data_parallel.copies_parameters": False,
        "data_parallel.joins_gradients": True,
        "data_parallel.reduces_once": True,
        "data_parallel.update_copies": True,
        "data_parallel.gathered_layers": 1,
        "loss.upcasts": True,
        "layers.joined_gate": False,
        "layers.joined_qkv": False,
        "layers.fused_activation": False,
        "recomputation.stops_early": False,
        "recomputation.selective": "",
        "recomputation.partial": False,
        "recomputation.keeps_frozen_inputs": True,
    },
)
