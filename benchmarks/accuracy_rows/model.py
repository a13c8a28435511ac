"""From a row's model columns to a ModelSpec.

What no column says follows the model's family, by name: OpenAI-style GPTs (no gated MLP) have biases,
LayerNorm, GELU and learned positions; Llama-style ones have none of them and rotary positions. Each
family that departs from that is named in ``FAMILIES`` with its source.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.accuracy_rows import recipes
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.notes import Notes
from benchmarks.accuracy_rows.row import Row
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, PositionKind

# Vocabulary where the source names none: GPT-2's byte-pair encoding, Megatron-LM's default tokenizer.
GPT2_VOCAB = 50257

DENSE_FIRST = {"first1dense": 1, "first3dense": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What one family of models has beyond the columns; ``window`` keys of every second layer, ``groups`` of
    experts and how many of them a token's experts lie in; ``activation`` of feed-forward layers without a
    gate."""

    tied: bool = False
    position: PositionKind = PositionKind.ROTARY
    embedding_norm: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    out_bias: bool = False
    alibi: bool = False
    expert_bias: bool = False
    clamped: bool = False
    shared_gate: bool = False
    activation: str = "gelu"
    sinks: bool = False
    parallel: bool = False
    window: int | None = None
    latent: tuple[int, int, int, int, int] | None = None
    groups: tuple[int, int] = (1, 1)


GPT = Family(tied=True, position=PositionKind.LEARNED, qkv_bias=True, out_bias=True)
LLAMA = Family()
# BLOOM and its predecessors: ALiBi and a LayerNorm on the embedding (arXiv 2211.05100 sec. 3.2).
BLOOM = Family(
    tied=True, position=PositionKind.NONE, embedding_norm=True, qkv_bias=True, out_bias=True, alibi=True
)
# GPT-NeoX configs/20B.yml and configs/pythia: gpt_j_residual, rotary positions, no_weight_tying; biases everywhere
NEOX = Family(qkv_bias=True, out_bias=True, parallel=True)
# (q_lora_rank, kv_lora_rank, nope, rope, v): DeepSeek-V3, arXiv 2412.19437 sec. 4.2; Kimi K2 keeps them
# (arXiv 2507.20534 sec. 2.3); DeepSeek-V2 has the same (arXiv 2405.04434 sec. 3.1.2), V2-Lite no query rank.
LATENT = (1536, 512, 128, 64, 128)

# First match in the lower-case model name wins.
FAMILIES: tuple[tuple[str, Family], ...] = (
    # gpt-oss config.json: attention biases and sinks, expert biases, swiglu_limit, window 128 in every
    # second layer
    (
        "gpt-oss",
        Family(qkv_bias=True, out_bias=True, expert_bias=True, clamped=True, sinks=True, window=128),
    ),
    # Qwen2 config.json: biases on q, k, v; Qwen2-MoE gates its shared expert
    ("qwen2", Family(qkv_bias=True, shared_gate=True)),
    # InternEvo internlm/model/multi_head_attention.py: "notice here should change bias=True"
    ("internlm", Family(qkv_bias=True)),
    ("qwen3", Family(qk_norm=True)),
    ("deepseek-v2-lite", Family(latent=(0, 512, 128, 64, 128))),
    ("deepseekv2-lite", Family(latent=(0, 512, 128, 64, 128))),
    # n_group and topk_group of DeepSeek-V3's config.json (node-limited routing, arXiv 2412.19437 sec. 2.1.2)
    ("deepseek-v3", Family(latent=LATENT, groups=(8, 4))),
    ("deepseekv3", Family(latent=LATENT, groups=(8, 4))),
    ("deepseek", Family(latent=LATENT)),
    ("kimi", Family(latent=LATENT)),
    # NeMo nemo/collections/llm/gpt/model/nemotron.py, NemotronConfig: squared_relu, rope, no biases, nothing
    # tied, LayerNorm
    ("nemotron", Family(activation="squared_relu")),
    *((word, NEOX) for word in ("neox", "pythia")),
    ("bloom", BLOOM),
    # OPT's config.json: activation_function relu, biases everywhere, learned positions, tied embeddings
    (
        "opt-",
        Family(tied=True, position=PositionKind.LEARNED, qkv_bias=True, out_bias=True, activation="relu"),
    ),
    # Falcon's config.json: parallel_attn, no biases, tied embeddings
    ("falcon", Family(tied=True, parallel=True)),
    ("llama3.2-1b", Family(tied=True)),
    ("llama3.2-3b", Family(tied=True)),
)
# Megatron-Core's GPT of the scaling table unties embedding and head (the schema's notes).
UNTIED_GPT = Family(position=PositionKind.LEARNED, qkv_bias=True, out_bias=True)


def family_of(row: Row) -> Family:
    """The family of a row's model."""
    name = row.text("model_name").lower()
    for word, family in FAMILIES:
        if word in name:
            return family
    if row.dataset == "bigscience":
        return BLOOM
    if "untied" in row.notes and row.text("gated_mlp") != "1":
        return UNTIED_GPT
    return LLAMA if row.text("gated_mlp") == "1" else GPT


def model_of(row: Row, notes: Notes) -> tuple[ModelSpec, tuple[Gap, ...]]:
    """The model of a row and the physics of it that is not priced. Raises RowError for a row without
    its dimensions."""
    family = family_of(row)
    gpt = row.text("gated_mlp") != "1" and not row.whole_or("num_experts", 0)
    norm = NormKind.LAYER if gpt else NormKind.RMS
    model = ModelSpec(
        name=row.text("model_name") or row.row_id,
        hidden=row.whole("hidden"),
        vocab=row.whole_or("vocab", GPT2_VOCAB),
        blocks=_blocks(row, notes, family, norm),
        source=row.dataset,
        tied_embeddings=family.tied if notes.tied is None else notes.tied,
        position=family.position,
        max_positions=row.whole("seq_len") if family.position is PositionKind.LEARNED else 0,
        norm=norm,
        embedding_norm=family.embedding_norm,
    )
    return model, _gaps(row, notes, family)


def _gaps(row: Row, notes: Notes, family: Family) -> tuple[Gap, ...]:
    found = []
    if family.latent and "lora" not in row.notes:
        found.append(Gap.LATENT_SHAPES)
    return tuple(found)


def _blocks(row: Row, notes: Notes, family: Family, norm: NormKind) -> tuple[BlockRun, ...]:
    """Dense layers first, then experts; windowed layers spread evenly over the pipeline stages."""
    layers = row.whole("layers")
    last = _block(row, notes, family, norm)
    if last.moe is None:
        return (BlockRun(block=last, count=layers),)
    first = _dense_first(row, layers)
    runs = list(_windowed(row, last, layers - first, family))
    if first:
        dense = BlockSpec(mixer=last.mixer, mlp=_mlp(row, family), norm=norm)
        runs.insert(0, BlockRun(block=dense, count=first))
    extra = recipes.prediction_blocks(row, notes.multi_token_prediction)
    if extra:
        runs.append(BlockRun(block=replace(last, mtp=True), count=extra))
    return tuple(runs)


def _dense_first(row: Row, layers: int) -> int:
    word = row.text("moe_layer_freq") or "1"
    if word in DENSE_FIRST:
        return DENSE_FIRST[word]
    if word != "1":
        raise row.refuse("moe_layer_freq", f"must be 1 or one of {', '.join(DENSE_FIRST)}")
    return 0


def _windowed(row: Row, block: BlockSpec, count: int, family: Family) -> list[BlockRun]:
    """Full and windowed layers in equal runs for each pipeline stage (their order inside a stage changes
    neither time nor memory)."""
    if family.window is None:
        return [BlockRun(block=block, count=count)]
    narrow = BlockSpec(
        mixer=_attention(row, family, window=family.window),
        mlp=block.mlp,
        moe=block.moe,
        norm=block.norm,
    )
    stages = row.whole_or("pp", 1)
    runs = []
    bounds = [count * stage // stages for stage in range(stages + 1)]
    for low, high in pairwise(bounds):
        full = (high - low) // 2
        runs += [BlockRun(block=block, count=full), BlockRun(block=narrow, count=high - low - full)]
    return [run for run in runs if run.count]


def _block(row: Row, notes: Notes, family: Family, norm: NormKind) -> BlockSpec:
    attention = _attention(row, family)
    if row.whole_or("num_experts", 0):
        return BlockSpec(mixer=attention, mlp=None, moe=_experts(row, notes, family), norm=norm)
    return BlockSpec(mixer=attention, mlp=_mlp(row, family), norm=norm, parallel_residual=family.parallel)


def _mlp(row: Row, family: Family) -> MlpSpec:
    gated = row.text("gated_mlp") == "1"
    return MlpSpec(
        ffn_hidden=row.whole("ffn_hidden"),
        gated=gated,
        bias=family.out_bias,
        activation="silu" if gated else family.activation,
    )


def _attention(row: Row, family: Family, window: int | None = None) -> AttentionSpec:
    heads = row.whole("heads")
    kv_heads = row.whole_or("kv_heads", heads)
    if family.latent is not None:
        q_rank, kv_rank, nope, rope, value = family.latent
        return AttentionSpec(
            kind=AttentionKind.MLA,
            num_heads=heads,
            num_kv_heads=heads,
            qk_dim=nope + rope,
            v_dim=value,
            rope_dim=rope,
            q_lora_rank=q_rank,
            kv_lora_rank=kv_rank,
        )
    width = row.whole_or("head_dim", row.whole("hidden") // heads)
    return AttentionSpec(
        kind=AttentionKind.GQA if kv_heads < heads else AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=width,
        v_dim=width,
        window=window,
        qkv_bias=family.qkv_bias,
        out_bias=family.out_bias,
        qk_norm=family.qk_norm,
        alibi=family.alibi,
        sinks=family.sinks,
    )


def _experts(row: Row, notes: Notes, family: Family) -> MoeSpec:
    """Routed experts; ``shared_experts`` counts experts of the same width. Token-dropping runs without a
    stated factor have capacity 1 (Megatron-Bridge's token-drop recipes)."""
    width = row.whole("moe_ffn_hidden")
    shared = row.whole_or("shared_experts", 0)
    drops = notes.capacity or (1.0 if "tokendrop" in row.notes else None)
    return MoeSpec(
        num_experts=row.whole("num_experts"),
        topk=row.whole("topk"),
        expert_ffn_hidden=width,
        gated=row.text("gated_mlp") != "0",
        bias=family.expert_bias,
        clamped=family.clamped,
        route_groups=family.groups[0],
        route_chosen_groups=family.groups[1],
        shared_ffn_hidden=shared * width,
        shared_gate=family.shared_gate and shared > 0,
        capacity_factor=drops,
    )
