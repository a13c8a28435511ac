"""XTuner: Hugging Face's models over DeepSpeed, and since 2025 an engine of its own (V1) over FSDP2."""

from spec.presets.variants.torchtitan import COMPILED
from spec.presets.variants.variant import Variant

XTUNER = Variant(
    name="xtuner",
    of="deepspeed",
    source="InternLM/xtuner 0.1.x: model/sft.py (gradient_checkpointing_enable on a Hugging Face model, dispatch_modules: flash "
    "attention, and a Triton norm with USE_TRITON_KERNEL alone); transformers 4.4x, models/llama/modeling_llama.py (q_proj, k_proj, v_proj, gate_proj and "
    "up_proj apart, act_fn(gate) * up, logits.float() before PyTorch's loss); engine/hooks/throughput_hook.py (a causal matrix halved, layers once more with checkpoints); parallel/sequence (all-to-all), and nothing else is cut but by ZeRO; configs/deepspeed (overlap_comm true, as in accelerate's "
    "examples/deepspeed_config_templates)",
    choices={
        "data_parallel.overlap_grad_reduce": True,
        "tensor_parallel.cuts_layers": False,
        "tensor_parallel.exchange_copies": "lists",
        "tensor_parallel.spreads_experts": False,
        "pipeline.stages": False,
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
# With ep, its dense parameters are sharded over the ranks of one expert shard and kept by every rank of ep
# (model/moe/moe.py, _init_device_mesh); they are priced as sharded over all ranks.
XTUNER_V1 = Variant(
    name="xtuner-v1",
    of="fsdp",
    source="InternLM/xtuner b934f46 (August 2026), xtuner/v1: config/fsdp.py (param_dtype and reduce_dtype bfloat16, recompute_ratio 1), "
    "model/moe/moe.py, fully_shard (fp32 shards; checkpoint_wrapper REENTRANT: the forward is repeated to its end) and MOE_EP_COMPILE_CFG "
    "(all but the dispatch compiled), module/attention/mha.py and module/decoder_layer (q_proj, k_proj, v_proj, gate_proj and up_proj apart), "
    "loss/ce_loss.py with mode chunk as in examples/v1/config and ci/scripts, config/optim.py (AdamW without foreach named, so torch's "
    "foreach one), module/dispatcher/torch_all2all.py, utils/activation_offload.py (XTUNER_ACTIVATION_OFFLOAD); its tp_size builds no mesh that a dense layer reads",
    choices={
        **COMPILED,
        "tensor_parallel.cuts_layers": False,
        "pipeline.stages": False,
        "log.attention": "",
        "data_parallel.update_copies": True,
        "loss.chunked": True,
        "recomputation.selective": "",
        "recomputation.stops_early": False,
    },
)
