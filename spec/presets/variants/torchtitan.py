"""PyTorch FSDP2 with torch.compile, as torchtitan trained at first, and torchtitan of 2026."""

from spec.presets.variants.variant import Variant

# What torch.compile makes of a layer, and models whose matrices stay apart.
COMPILED: dict[str, object] = {
    "loss.fused": True,
    "layers.joined_gate": False,
    "layers.joined_qkv": False,
    "layers.fused_sums": True,
    "layers.fused_limits": True,
    "host.code": "compiled",
}
# torchtitan models/moe/moe.py, _run_experts_grouped_mm, and torchao, whose MXFP8 components/quantization/mx.py takes.
EXPERTS: dict[str, object] = {"layers.grouped_kernel": True, "layers.casts_again": True}
FSDP_COMPILED = Variant(
    name="fsdp-compiled",
    of="fsdp",
    source='torchtitan train.py: model and loss compiled; before 2025 the loss was not (v0.0.2: "compiling loss function causes '
    'CUDA errors"), say loss.fused = false; models/llama/model.py (wq, wk, wv, w1, w3 apart; repeat_kv up to v0.2.1); '
    "components/quantization/mx.py (torchao's MXFP8)",
    choices={**COMPILED, "layers.repeats_keys": True, **EXPERTS},
)
TORCHTITAN = Variant(
    name="torchtitan",
    of="fsdp",
    source="torchtitan b5bcd76 (August 2026): config/configs.py (mixed_precision_reduce: float32 alone; CompileConfig: model and loss), distributed/fsdp.py, apply_fsdp_to_decoder (tok_embeddings, and norm and output, apart), "
    "models/*/config_registry.py (ChunkedLossWrapper in every recipe), distributed/activation_checkpoint.py (FullAC: "
    "early_stop=False), models/common/attention.py (enable_gqa: key and value heads are not repeated)",
    choices={
        **COMPILED,
        **EXPERTS,
        "loss.chunked": True,
        "data_parallel.wide_reduction": True,
        "data_parallel.separate_ends": True,
        "pipeline.deals": "ends",
        "recomputation.stops_early": False,
        "offload.modules": (),
    },
)
