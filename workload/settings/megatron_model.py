"""The shapes of a model as Megatron-LM's flags.

Source: Megatron-LM core 0.14, megatron/training/arguments.py and core/models/gpt/gpt_layer_specs.py (the norms of
latent attention exist only with --qk-layernorm); core 0.16 for the gate of shared experts.
"""

from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights, attention_of
from spec.model import BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from workload.settings.launch_error import refuse_unless

NAME = "Megatron-LM"
Flags = dict[str, str | int | None]
POSITIONS = {
    PositionKind.ROTARY: "rope",
    PositionKind.LEARNED: "learned_absolute",
    PositionKind.NONE: "none",
}


def model_flags(model: ModelSpec, job: JobSpec) -> Flags:
    """Flags and their values (None: a switch). Raises ExportError for layers Megatron-LM does not have."""
    blocks = [run.block for run in model.main_blocks]
    mixers = {attention_of(block.mixer, f"settings of {NAME}") for block in blocks}
    refuse_unless(len(mixers) == 1, NAME, "layers of unequal attention")
    (attention,) = mixers
    refuse_unless(len({block.norm for block in blocks} | {model.norm}) == 1, NAME, "norms of two kinds")
    refuse_unless(not any(block.parallel_residual for block in blocks), NAME, "parallel residuals")
    refuse_unless(
        all(block.norm_place is NormPlace.BEFORE for block in blocks),
        NAME,
        "norms elsewhere than before each half",
    )
    refuse_unless(model.norm is not NormKind.LAYER_WITHOUT_BIAS, NAME, "LayerNorm without biases")
    refuse_unless(not model.logit_softcap, NAME, "soft-capped logits")
    refuse_unless(not (model.head_bias or model.embedding_norm), NAME, "a head bias or a norm of embeddings")
    flags: Flags = {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden,
        "--vocab-size": model.vocab,
        "--make-vocab-size-divisible-by": job.preset.tensor_parallel.vocab_pad_multiple,
        "--max-position-embeddings": max(model.max_positions, job.seq_len),
        "--position-embedding-type": POSITIONS[model.position],
        "--normalization": "RMSNorm" if model.norm is NormKind.RMS else "LayerNorm",
    }
    if not model.tied_embeddings:
        flags["--untie-embeddings-and-output-weights"] = None
    predicted = sum(run.count for run in model.blocks if run.block.mtp)
    if predicted:
        flags["--mtp-num-layers"] = predicted
    flags |= _attention(attention, model.hidden)
    flags |= _biases(attention, blocks)
    return flags | _feed_forward(model, job, blocks)


def _attention(attention: AttentionSpec, hidden: int) -> Flags:
    refuse_unless(not (attention.softcap or attention.chunk), NAME, "soft-capped or chunked attention")
    refuse_unless(not attention.alibi, NAME, "ALiBi")
    plain_norms = not attention.qk_norm or attention.qk_norm_weights is QkNormWeights.HEAD
    refuse_unless(plain_norms, NAME, "norms of queries and keys without one weight vector for all heads")
    flags: Flags = {"--num-attention-heads": attention.num_heads}
    if attention.output_gate:
        flags["--attention-output-gate"] = None
    if attention.sinks:
        flags["--softmax-type"] = "learnable"
    if attention.kind is AttentionKind.MLA:
        flags |= {
            "--multi-latent-attention": None,
            "--kv-lora-rank": attention.kv_lora_rank,
            "--qk-head-dim": attention.qk_dim - attention.rope_dim,
            "--qk-pos-emb-head-dim": attention.rope_dim,
            "--v-head-dim": attention.v_dim,
        }
        if attention.q_lora_rank:
            flags["--q-lora-rank"] = attention.q_lora_rank
    else:
        refuse_unless(attention.qk_dim == attention.v_dim, NAME, "values of another width than keys")
        if attention.num_kv_heads != attention.num_heads:
            flags |= {"--group-query-attention": None, "--num-query-groups": attention.num_kv_heads}
        if attention.qk_dim * attention.num_heads != hidden:
            flags["--kv-channels"] = attention.qk_dim
    if attention.qk_norm or attention.kind is AttentionKind.MLA:
        flags["--qk-layernorm"] = None
    if attention.window is not None:
        # Transformer Engine counts the tokens before and after one's own.
        flags["--window-size"] = f"({attention.window - 1},0)"
    return flags


def _biases(attention: AttentionSpec, blocks: list[BlockSpec]) -> Flags:
    """All linears have biases, none has, or only queries, keys and values have."""
    inner = {part.bias for block in blocks for part in (block.mlp, block.moe) if part}
    rest = inner | {attention.out_bias}
    refuse_unless(len(rest) == 1 and (attention.qkv_bias or rest == {False}), NAME, "these biases")
    if rest == {True}:
        return {}
    flags: Flags = {"--disable-bias-linear": None}
    return flags | {"--add-qkv-bias": None} if attention.qkv_bias else flags


def _feed_forward(model: ModelSpec, job: JobSpec, blocks: list[BlockSpec]) -> Flags:
    refuse_unless(all(block.feeds_forward for block in blocks), NAME, "layers without a feed-forward network")
    dense = {block.mlp for block in blocks if block.mlp}
    routed = {block.moe for block in blocks if block.moe}
    refuse_unless(len(dense) < 2 and len(routed) < 2, NAME, "feed-forward layers of several widths")
    parts: tuple[MlpSpec | MoeSpec, ...] = (*dense, *routed)
    kinds = {(part.gated, part.activation) for part in parts}
    refuse_unless(len(kinds) == 1, NAME, "experts of another activation than dense layers")
    flags = _activation(*kinds.pop(), bias=any(part.bias for part in dense))
    for mlp in dense:
        flags["--ffn-hidden-size"] = mlp.ffn_hidden
    for moe in routed:
        flags |= _experts(moe, job.capacity_factor(moe))
    if dense and routed:
        pattern = "+".join(f"[{int(run.block.moe is not None)}]*{run.count}" for run in model.main_blocks)
        flags["--moe-layer-freq"] = f"({pattern})"
    return flags


def _activation(gated: bool, activation: str, *, bias: bool) -> Flags:
    """Only GELU and SwiGLU are fused with a bias."""
    if gated:
        refuse_unless(activation == "silu", NAME, f"gates by {activation}")
        return {"--swiglu": None}
    refuse_unless(activation in ("gelu", "gelu_tanh", "squared_relu"), NAME, f"activations by {activation}")
    if activation != "squared_relu":
        return {}
    return {"--squared-relu": None, **({"--no-bias-gelu-fusion": None} if bias else {})}


def _experts(moe: MoeSpec, capacity: float | None) -> Flags:
    refuse_unless(not (moe.bias or moe.clamped), NAME, "biases of experts, or clamped ones")
    flags: Flags = {
        "--num-experts": moe.num_experts,
        "--moe-router-topk": moe.topk,
        "--moe-ffn-hidden-size": moe.expert_ffn_hidden,
    }
    if moe.latent_hidden:
        flags["--moe-latent-size"] = moe.latent_hidden
    if moe.shared_ffn_hidden:
        flags["--moe-shared-expert-intermediate-size"] = moe.shared_ffn_hidden
        if moe.shared_gate:
            flags["--moe-shared-expert-gate"] = None
    if capacity is not None:
        flags["--moe-expert-capacity-factor"] = str(capacity)
    if moe.router_bias:
        refuse_unless(moe.score == "sigmoid", NAME, "score corrections of a softmax router")
    return flags
