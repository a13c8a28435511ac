"""The model of a generator command: a preset, and whatever the user says instead.

A preset never overrides a flag. Presets are the shipped configs; sizes are AICB's names.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import Mixer
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, PositionKind
from spec.readers.read_config import read_config

MEGATRON = "Megatron"
DEEPSPEED = "DeepSpeed"
FSDP = "FSDP"
DEEPSEEK = "DeepSeek"
FRAMES = (MEGATRON, DEEPSPEED, FSDP, DEEPSEEK)

# AICB's GPT presets are Megatron's GPT, its DeepSpeed ones LLaMA.
GPT_SIZES = {"7": "7B_gpt.toml", "13": "13B_gpt.toml"}
LLAMA_SIZES = {"7": "7B_llama2.py", "13": "13B_llama2.py"}
SIZES = {
    "8": "8B_llama3.py",
    "22": "22B_gpt.toml",
    "30": "30B_llama.toml",
    "65": "65B_llama.toml",
    "70": "70B_llama2.py",
    "175": "175B_gpt.toml",
    "405": "405B_llama3.py",
    "moe": "8x7B_mixtral.py",
    "deepseek16": "16B_deepseek_v2_lite.toml",
    "deepseek236": "236B_deepseek_v2.toml",
    "deepseek671": "671B_deepseek_v3.toml",
}
DEEPSEEK_SIZES = {"deepseek": "deepseek671", "16": "deepseek16", "236": "deepseek236", "671": "deepseek671"}
# Sizes AICB's users ask for of which no dimensions are published.
WITHOUT_DIMENSIONS = ("270",)
GPT_VOCAB = 50257
GPT_POSITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFlags:
    """What was typed about the model; None is not given."""

    frame: str = MEGATRON
    model_size: str | None = None
    config: Path | None = None
    model_name: str | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    ffn_hidden_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    swiglu: bool = False
    moe_enable: bool = False
    num_experts: int | None = None
    moe_router_topk: int | None = None
    make_vocab_size_divisible_by: int | None = None


def refuse(flag: str, value: object, allowed: str) -> ConfigError:
    """The error of one flag of the generator."""
    return ConfigError(where="generate", key=f"--{flag}", value=value, allowed=allowed)


def config_path(flags: ShapeFlags, root: Path) -> Path | None:
    """The config file that stands for a size; None when the dimensions must be given.

    Raises ConfigError for an unknown size.
    """
    if flags.config is not None:
        return flags.config
    if flags.model_size is None:
        return None
    size = flags.model_size.strip().lower().removeprefix("deepseek-")
    size = size if size in SIZES else size.removesuffix("b")
    if flags.frame == DEEPSEEK or size in ("deepseek", "16", "236", "671"):
        size = DEEPSEEK_SIZES.get(size, size)
    if size in WITHOUT_DIMENSIONS:
        return None
    known = {**SIZES, **(LLAMA_SIZES if flags.frame in (DEEPSPEED, FSDP) else GPT_SIZES)}
    if size not in known:
        raise refuse("model_size", flags.model_size, f"one of {', '.join([*known, *WITHOUT_DIMENSIONS])}")
    return root / "configs" / known[size]


def model_of(flags: ShapeFlags, root: Path) -> ModelSpec:
    """The preset with every given flag in its place; raises ConfigError for what cannot be built."""
    path = config_path(flags, root)
    model = read_config(path).model if path else _from_dimensions(flags)
    hidden = flags.hidden_size or model.hidden
    runs = _counted(flags, model)
    blocks = tuple(
        BlockRun(block=_block(flags, run.block, hidden, hidden != model.hidden), count=run.count)
        for run in runs
    )
    return replace(
        model,
        name=flags.model_name or model.name,
        hidden=hidden,
        vocab=flags.vocab_size or model.vocab,
        max_positions=flags.max_position_embeddings or model.max_positions,
        vocab_pad_multiple=flags.make_vocab_size_divisible_by or model.vocab_pad_multiple,
        blocks=blocks,
    )


def _from_dimensions(flags: ShapeFlags) -> ModelSpec:
    """A GPT of the dimensions given, with Megatron-LM's defaults (learned positions, LayerNorm, biases)."""
    needed = ("num_layers", "hidden_size", "num_attention_heads")
    missing = [f"--{name}" for name in needed if getattr(flags, name) is None]
    if missing:
        raise refuse(
            "model_size",
            flags.model_size,
            f"no dimensions are published for it: also give {', '.join(missing)}"
            if flags.model_size
            else f"a size, a --config, or all dimensions (missing: {', '.join(missing)})",
        )
    hidden, heads = flags.hidden_size or 1, flags.num_attention_heads or 1
    attention = AttentionSpec(
        kind=AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=hidden // heads,
        v_dim=hidden // heads,
        qkv_bias=True,
        out_bias=True,
    )
    mlp = MlpSpec(ffn_hidden=4 * hidden, gated=False, bias=True, activation="gelu")
    block = BlockSpec(mixer=attention, mlp=mlp, norm=NormKind.LAYER)
    return ModelSpec(
        name=f"gpt_{flags.model_size}B" if flags.model_size else "gpt",
        hidden=hidden,
        vocab=GPT_VOCAB,
        blocks=(BlockRun(block=block, count=flags.num_layers or 1),),
        source="command line; Megatron-LM GPT defaults",
        tied_embeddings=True,
        position=PositionKind.LEARNED,
        max_positions=GPT_POSITIONS,
        norm=NormKind.LAYER,
    )


def _counted(flags: ShapeFlags, model: ModelSpec) -> tuple[BlockRun, ...]:
    """The runs with --num_layers decoder layers: the last of them grows or shrinks."""
    if flags.num_layers is None or flags.num_layers == model.num_layers:
        return model.blocks
    main = model.main_blocks
    before = sum(run.count for run in main[:-1])
    if flags.num_layers <= before:
        raise refuse("num_layers", flags.num_layers, f"more than the {before} leading layers of {model.name}")
    last = BlockRun(block=main[-1].block, count=flags.num_layers - before)
    return (*main[:-1], last, *(run for run in model.blocks if run.block.mtp))


def _block(flags: ShapeFlags, block: BlockSpec, hidden: int, resized: bool) -> BlockSpec:
    mixer = _mixer(flags, block.mixer, hidden, resized)
    if block.moe is not None or flags.moe_enable:
        return replace(block, mixer=mixer, mlp=None, moe=_moe(flags, block, hidden, resized))
    if flags.num_experts is not None and flags.num_experts > 1:
        raise refuse("num_experts", flags.num_experts, "experts need --moe_enable")
    return replace(block, mixer=mixer, mlp=_mlp(flags, block.mlp, hidden, resized))


def _mixer(flags: ShapeFlags, mixer: Mixer, hidden: int, resized: bool) -> Mixer:
    """Attention with the heads typed; any other kind stays as its config has it."""
    if isinstance(mixer, AttentionSpec):
        return _attention(flags, mixer, hidden, resized)
    for flag in ("num_attention_heads", "num_query_groups"):
        if getattr(flags, flag) is not None:
            raise refuse(flag, getattr(flags, flag), f"layers of attention; these are of {mixer.name}")
    return mixer


def _attention(flags: ShapeFlags, attention: AttentionSpec, hidden: int, resized: bool) -> AttentionSpec:
    """Heads and their size. With another hidden size or number of heads a head has hidden / heads
    channels; MLA's head sizes are its own."""
    heads = flags.num_attention_heads or attention.num_heads
    if attention.kind is AttentionKind.MLA:
        return replace(attention, num_heads=heads, num_kv_heads=heads)
    grouped = attention.num_kv_heads != attention.num_heads
    groups = flags.num_query_groups or (attention.num_kv_heads if grouped else heads)
    if heads % groups:
        raise refuse("num_query_groups", groups, f"a divisor of {heads} attention heads")
    dim = attention.qk_dim
    if resized or heads != attention.num_heads:
        if hidden % heads:
            raise refuse("num_attention_heads", heads, f"a divisor of the hidden size {hidden}")
        dim = hidden // heads
    kind = AttentionKind.MHA if groups == heads else AttentionKind.GQA
    return replace(attention, kind=kind, num_heads=heads, num_kv_heads=groups, qk_dim=dim, v_dim=dim)


def default_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron-LM (arguments.py): 4 h, or with SwiGLU 8/3 h rounded down to a multiple of 64."""
    return hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden


def _mlp(flags: ShapeFlags, mlp: MlpSpec | None, hidden: int, resized: bool) -> MlpSpec:
    mlp = mlp or MlpSpec(ffn_hidden=default_ffn(hidden, gated=flags.swiglu), gated=flags.swiglu)
    gated = mlp.gated or flags.swiglu
    keeps = not resized and gated == mlp.gated
    width = flags.ffn_hidden_size or (mlp.ffn_hidden if keeps else default_ffn(hidden, gated=gated))
    return replace(mlp, ffn_hidden=width, gated=gated, activation="silu" if gated else mlp.activation)


def _moe(flags: ShapeFlags, block: BlockSpec, hidden: int, resized: bool) -> MoeSpec:
    """Experts; a dense preset's feed-forward layer becomes each expert."""
    moe = block.moe
    if moe is None:
        mlp = _mlp(flags, block.mlp, hidden, resized)
        if (flags.num_experts or 0) < 2:
            raise refuse("num_experts", flags.num_experts, "--moe_enable needs 2 experts or more")
        moe = MoeSpec(
            num_experts=flags.num_experts or 0,
            topk=1,
            expert_ffn_hidden=mlp.ffn_hidden,
            gated=mlp.gated,
            bias=mlp.bias,
        )
    experts = flags.num_experts or moe.num_experts
    topk = flags.moe_router_topk or moe.topk
    if not 1 <= topk <= experts:
        raise refuse("moe_router_topk", topk, f"1 to the number of experts {experts}")
    return replace(
        moe,
        num_experts=experts,
        topk=topk,
        expert_ffn_hidden=flags.ffn_hidden_size or moe.expert_ffn_hidden,
        gated=moe.gated or flags.swiglu,
    )
