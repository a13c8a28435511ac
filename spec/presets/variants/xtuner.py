"""XTuner: Hugging Face's models over DeepSpeed."""

from spec.presets.variants.variant import Variant

XTUNER = Variant(
    name="xtuner",
    of="deepspeed",
    source="InternLM/xtuner 0.1.x: model/sft.py (gradient_checkpointing_enable on a Hugging Face model, dispatch_modules: flash "
    "attention, and a Triton norm with USE_TRITON_KERNEL alone); transformers 4.4x, models/llama/modeling_llama.py (q_proj, k_proj, v_proj, gate_proj and "
    "up_proj apart, act_fn(gate) * up, logits.float() before PyTorch's loss); engine/hooks/throughput_hook.py (a causal matrix halved, layers once more with checkpoints)",
    choices={
        "log.attention": "half",
        "log.repeats": "layers",
        "layers.two_pass_norms": False,
        "layers.joined_gate": False,
        "layers.joined_qkv": False,
        "layers.fused_activation": False,
        "loss.plain": True,
        "recomputation.selective": "",
        "host.code": "torch",
    },
)
