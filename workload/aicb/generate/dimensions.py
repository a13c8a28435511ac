"""A model of the dimensions given, without a size: what each frame trains.

Megatron-LM's GPT; LLaMA in DeepSpeed and FSDP, as AICB's DeepSpeed model is one; multi-head latent attention and
experts in DeepSeek.
"""

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, PositionKind
from workload.aicb.generate.shape_flags import DEEPSEEK, DEEPSPEED, FSDP, ShapeFlags, refuse

# Megatron-LM's GPT-2 vocabulary, which AICB's scripts give, and AICB's number of learned positions.
GPT_VOCAB = 50257
GPT_POSITIONS = 4096
# LLaMA, arXiv 2302.13971 sec. 2: a tokenizer of 32k, 2,048 positions, widths rounded up to 256 (its model.py).
LLAMA_VOCAB = 32000
LLAMA_POSITIONS = 2048
LLAMA_MULTIPLE = 256
# DeepSeek-V3, arXiv 2412.19437 sec. 4.2 and its config.json.
DEEPSEEK_VOCAB = 129280
DEEPSEEK_POSITIONS = 4096
# AICB's defaults for its DeepSeek flags; the ranks and head sizes are those of DeepSeek-V2 and V3.
DEEPSEEK_DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_dim": 128,
    "qk_rope_dim": 64,
    "v_head_dim": 128,
    "n_dense_layers": 3,
    "n_shared_expert": 2,
    "moe_router_topk": 1,
}
NEEDED = ("num_layers", "hidden_size", "num_attention_heads")


def from_dimensions(flags: ShapeFlags) -> ModelSpec:
    """The model of the frame with these dimensions. Raises ConfigError for what is missing."""
    if flags.frame == DEEPSEEK:
        return _deepseek(flags)
    _need(flags, NEEDED)
    return _llama(flags) if flags.frame in (DEEPSPEED, FSDP) else _gpt(flags)


def default_width(frame: str, hidden: int, *, gated: bool) -> int:
    """Feed-forward width that a frame gives a hidden size h: 4 h, or gated 2/3 of it, which LLaMA (arXiv
    2302.13971 sec. 2.2) rounds up to a multiple of 256 and Megatron-LM (arguments.py) down to one of 64."""
    if not gated:
        return 4 * hidden
    if frame in (DEEPSPEED, FSDP):
        return -(-(hidden * 8 // 3) // LLAMA_MULTIPLE) * LLAMA_MULTIPLE
    return hidden * 8 // 3 // 64 * 64


def _need(flags: ShapeFlags, needed: tuple[str, ...]) -> None:
    missing = ", ".join(f"--{name}" for name in needed if getattr(flags, name) is None)
    if missing and flags.model_size:
        raise refuse(
            "model_size", flags.model_size, f"no dimensions are published for it: also give {missing}"
        )
    if missing:
        raise refuse("model_size", None, f"a size, a --config, or all dimensions (missing: {missing})")


def _name(flags: ShapeFlags, family: str) -> str:
    return f"{family}_{flags.model_size}B" if flags.model_size else family


def _heads(flags: ShapeFlags, *, bias: bool) -> AttentionSpec:
    """Heads of hidden / heads channels."""
    hidden, heads = flags.hidden_size or 1, flags.num_attention_heads or 1
    if hidden % heads:
        raise refuse("num_attention_heads", heads, f"a divisor of the hidden size {hidden}")
    return AttentionSpec(
        kind=AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=hidden // heads,
        v_dim=hidden // heads,
        qkv_bias=bias,
        out_bias=bias,
    )


def _gpt(flags: ShapeFlags) -> ModelSpec:
    """Megatron-LM's defaults: learned positions, LayerNorm, biases, GELU, the embedding's matrix as head."""
    hidden = flags.hidden_size or 1
    mlp = MlpSpec(
        ffn_hidden=default_width(flags.frame, hidden, gated=False), gated=False, bias=True, activation="gelu"
    )
    block = BlockSpec(mixer=_heads(flags, bias=True), mlp=mlp, norm=NormKind.LAYER)
    return ModelSpec(
        name=_name(flags, "gpt"),
        hidden=hidden,
        vocab=GPT_VOCAB,
        blocks=(BlockRun(block=block, count=flags.num_layers or 1),),
        source="command line; Megatron-LM GPT defaults",
        tied_embeddings=True,
        position=PositionKind.LEARNED,
        max_positions=GPT_POSITIONS,
        norm=NormKind.LAYER,
    )


def _llama(flags: ShapeFlags) -> ModelSpec:
    """RMSNorm, no biases, gated feed-forward, rotary positions, a head of its own."""
    hidden = flags.hidden_size or 1
    mlp = MlpSpec(ffn_hidden=default_width(flags.frame, hidden, gated=True), gated=True)
    return ModelSpec(
        name=_name(flags, "llama"),
        hidden=hidden,
        vocab=LLAMA_VOCAB,
        blocks=(
            BlockRun(block=BlockSpec(mixer=_heads(flags, bias=False), mlp=mlp), count=flags.num_layers or 1),
        ),
        source="command line; LLaMA, arXiv 2302.13971",
        max_positions=LLAMA_POSITIONS,
    )


def _deepseek(flags: ShapeFlags) -> ModelSpec:
    """Leading dense layers, then experts with shared ones, all with multi-head latent attention
    (arXiv 2405.04434 sec. 2). AICB gives dense layers and experts one width, ``ffn_hidden_size``."""
    _need(flags, (*NEEDED, "num_experts", "ffn_hidden_size"))
    size = DEEPSEEK_DEFAULTS | {
        name: value for name in DEEPSEEK_DEFAULTS if (value := getattr(flags, name)) is not None
    }
    heads, layers = flags.num_attention_heads or 1, flags.num_layers or 1
    attention = AttentionSpec(
        kind=AttentionKind.MLA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=size["qk_nope_dim"] + size["qk_rope_dim"],
        v_dim=size["v_head_dim"],
        rope_dim=size["qk_rope_dim"],
        q_lora_rank=size["q_lora_rank"],
        kv_lora_rank=size["kv_lora_rank"],
    )
    width, dense = flags.expert_width or 1, size["n_dense_layers"]
    if dense >= layers:
        raise refuse("n_dense_layers", dense, f"less than the {layers} layers")
    moe = MoeSpec(
        num_experts=flags.num_experts or 1,
        topk=size["moe_router_topk"],
        expert_ffn_hidden=width,
        shared_ffn_hidden=size["n_shared_expert"] * width,
        router_bias=True,
    )
    mlp = MlpSpec(ffn_hidden=flags.ffn_hidden_size or 1, gated=True)
    runs = (
        BlockRun(block=BlockSpec(mixer=attention, mlp=mlp), count=dense),
        BlockRun(block=BlockSpec(mixer=attention, mlp=None, moe=moe), count=layers - dense),
    )
    return ModelSpec(
        name=_name(flags, "deepseek"),
        hidden=flags.hidden_size or 1,
        vocab=DEEPSEEK_VOCAB,
        blocks=tuple(run for run in runs if run.count),
        source="command line; DeepSeek-V3, arXiv 2412.19437",
        max_positions=DEEPSEEK_POSITIONS,
    )
