"""Aleph Alpha's own library with ZeRO-1."""

from spec.presets.variants.variant import Variant

ALEPH_ALPHA = Variant(
    name="aleph-alpha",
    of="deepspeed",
    source="arXiv 2311.05610 sec. 3, as published in Aleph-Alpha/scaling: core/nn/linear/utils.py (input gradients reduced "
    "synchronously, gathered inputs kept), core/nn/mlp.py (silu(gate) * up in plain PyTorch), "
    "core/nn/attention/attention.py (qkv_in_one: split_tensor_along_last_dim, views of which reach flash_attn_varlen_func), "
    "core/nn/parallel_module/communicator.py (send_data: whole activations to the next stage), "
    "core/optimizer/optimizer.py (torch.optim.AdamW, neither fused nor foreach named), "
    "core/optimizer/allreduce.py (gradients all-reduced at the end in fp32 buckets), transformer/model/layers/lm_head.py "
    "(the head gathers its logits), transformer/model/losses/cross_entropy.py (PyTorch's, on an fp32 copy), "
    "core/nn/parallel_module/parallel_module.py (every_layer checkpointing takes in embedding and head, pipeline buffers "
    "keep outputs), core/topology/topology_config.py and transformer/model/model.py (embedding, final norm and head are "
    "modules of the uniform partition, the default); transformer/utils/get_tflops.py logs five counts; the paper's RMSNorm "
    "kernel is the one of flash-attn, in one pass; it has no experts",
    choices={
        "tensor_parallel.spreads_experts": False,
        "log.attention": "",
        "offload.optimizer": "",
        "log.repeats": "",
        "tensor_parallel.strategies": ("mtp", "msp"),
        "tensor_parallel.overlap_backward": False,
        "tensor_parallel.reduces_halves": False,
        "layers.two_pass_norms": False,
        "layers.fused_activation": False,
        "layers.joined_gate": False,
        "layers.keeps_joined_qkv": True,
        "pipeline.scattered_hops": False,
        "data_parallel.gradient_sync": "all_reduce",
        "data_parallel.update_copies": True,
        "loss.plain": True,
        "loss.gathers_logits": True,
        "recomputation.recomputes_ends": True,
        "pipeline.deals": "modules",
        "host.code": "torch",
        "host.hooks_modules": False,
    },
)
