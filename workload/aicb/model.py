"""The model of a generator command: the config that stands for a size or a frame, with the flags in place."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import Mixer
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec
from spec.readers.read_config import MODEL_SIZES, read_config
from workload.aicb.flags import DEEPSEEK, DEEPSPEED, FSDP, MEGATRON, check_counts, refuse

# AICB's GPT presets are Megatron's GPT, its DeepSpeed ones LLaMA.
GPT_SIZES = {"7": "7B_gpt.toml", "13": "13B_gpt.toml"}
LLAMA_SIZES = {"7": "7B_llama2.py", "13": "13B_llama2.py"}
SIZES = {name: MODEL_SIZES[name][0] for name in ("8", "22", "70", "175", "405", "moe")} | {
    "30": "30B_llama.toml",
    "65": "65B_llama.toml",
    "deepseek16": "16B_deepseek_v2_lite.toml",
    "deepseek236": "236B_deepseek_v2.toml",
    "deepseek671": "671B_deepseek_v3.toml",
}
# AICB's "deepseek" says "the rest from the command line"; the largest is what the rest starts from here.
ANY_DEEPSEEK = "deepseek"
DEEPSEEK_SIZES = {ANY_DEEPSEEK: "deepseek671", "16": "deepseek16", "236": "deepseek236", "671": "deepseek671"}
# Sizes of which no dimensions are published.
WITHOUT_DIMENSIONS = ("270",)


def config_path(flags: Namespace, root: Path) -> Path | None:
    """The config file that stands for a size; None when the dimensions must be given.

    Raises ConfigError for an unknown size.
    """
    config: Path | None = flags.config
    if config is not None or flags.model_size is None:
        return config
    size = _plain(flags.model_size)
    if flags.frame == DEEPSEEK or size in DEEPSEEK_SIZES:
        size = DEEPSEEK_SIZES.get(size, size)
    if size in WITHOUT_DIMENSIONS:
        return None
    known = {**SIZES, **(LLAMA_SIZES if flags.frame in (DEEPSPEED, FSDP) else GPT_SIZES)}
    if size not in known:
        raise refuse("model_size", flags.model_size, f"one of {', '.join([*known, *WITHOUT_DIMENSIONS])}")
    return root / "configs" / known[size]


def size_notes(flags: Namespace) -> tuple[str, ...]:
    """Notes on a size that stands for less than it names."""
    if flags.config is None and flags.model_size and _plain(flags.model_size) == ANY_DEEPSEEK:
        return ("--model_size deepseek: the dimensions of deepseek671 where no flag says otherwise",)
    return ()


def _plain(model_size: str) -> str:
    size = model_size.strip().lower().removeprefix("deepseek-")
    return size if size in SIZES else size.removesuffix("b")


# A model of the dimensions given, without a size: what each frame trains, in other sizes.
#
# Megatron-LM's GPT; LLaMA in DeepSpeed and FSDP, as AICB's DeepSpeed model is one; multi-head latent attention and
# experts in DeepSeek.

FRAME_MODELS = {
    MEGATRON: ("gpt", "7B_gpt.toml"),
    DEEPSPEED: ("llama", "7B_llama2.py"),
    FSDP: ("llama", "7B_llama2.py"),
    DEEPSEEK: ("deepseek", "671B_deepseek_v3.toml"),
}
# LLaMA, arXiv 2302.13971: widths rounded up to 256 (its model.py).
LLAMA_MULTIPLE = 256
# AICB's defaults for its DeepSeek flags; the ranks and head sizes are those of DeepSeek-V2 and V3.
DEEPSEEK_DEFAULTS: dict[str, Any] = {
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


def frame_model(flags: Namespace, root: Path) -> tuple[ModelSpec, Namespace]:
    """Returns the model of the frame and the flags that size it. Raises ConfigError for what is missing."""
    needed = (*NEEDED, "num_experts", "ffn_hidden_size") if flags.frame == DEEPSEEK else NEEDED
    missing = ", ".join(f"--{name}" for name in needed if getattr(flags, name) is None)
    if missing and flags.model_size:
        allowed = f"no dimensions are published for it: also give {missing}"
        raise refuse("model_size", flags.model_size, allowed)
    if missing:
        raise refuse("model_size", None, f"a size, a --config, or all dimensions (missing: {missing})")
    family, file = FRAME_MODELS[flags.frame]
    model = read_config(root / "configs" / file).model
    model = replace(model, name=f"{family}_{flags.model_size}B" if flags.model_size else family)
    if flags.frame != DEEPSEEK:
        return model, flags
    # AICB gives dense layers and experts one width, and has no groups to choose experts in.
    defaults = {name: value for name, value in DEEPSEEK_DEFAULTS.items() if getattr(flags, name) is None}
    runs = tuple(replace(run, block=_without_groups(run.block)) for run in model.main_blocks)
    given = vars(flags) | {"moe_ffn_hidden_size": flags.expert_width} | defaults
    return replace(model, blocks=runs), Namespace(**given)


def _without_groups(block: BlockSpec) -> BlockSpec:
    return replace(block, moe=block.moe and replace(block.moe, route_groups=1, route_chosen_groups=1))


def default_width(frame: str, hidden: int, *, gated: bool) -> int:
    """Feed-forward width that a frame gives a hidden size h: 4 h, or gated 2/3 of it, which LLaMA (arXiv
    2302.13971 sec. 2.2) rounds up to a multiple of 256 and Megatron-LM (arguments.py) down to one of 64."""
    if not gated:
        return 4 * hidden
    if frame in (DEEPSPEED, FSDP):
        return -(-(hidden * 8 // 3) // LLAMA_MULTIPLE) * LLAMA_MULTIPLE
    return hidden * 8 // 3 // 64 * 64


# One layer with the flags in place of what its preset says: heads, latent attention, feed-forward, experts.

LATENT_FLAGS = ("q_lora_rank", "kv_lora_rank", "qk_nope_dim", "qk_rope_dim", "v_head_dim")


@dataclass(frozen=True, slots=True)
class Resized:
    """The hidden size, and whether it is another than the preset's."""

    hidden: int
    changed: bool


def sized_block(flags: Namespace, block: BlockSpec, size: Resized, *, mixed: bool) -> BlockSpec:
    """``block`` of a preset in a model of another size; ``mixed``: some layers of the model have experts.
    Raises ConfigError for flags that the layer cannot take."""
    mixer = _mixer(flags, block.mixer, size)
    if block.moe is not None:
        return replace(block, mixer=mixer, moe=_experts(flags, block.moe))
    # With one width given that of an expert is meant, as in AICB: the dense layers keep theirs.
    width = None if mixed and flags.moe_ffn_hidden_size is None else flags.ffn_hidden_size
    return replace(block, mixer=mixer, mlp=block.mlp and _dense(flags, block.mlp, width, size))


def experts_of(flags: Namespace, mlp: MlpSpec, size: Resized) -> MoeSpec:
    """Experts each of which is the dense layer ``mlp``."""
    if (flags.num_experts or 0) < 2:
        raise refuse("num_experts", flags.num_experts, "--moe_enable needs 2 experts or more")
    one = _dense(flags, mlp, flags.expert_width, size)
    return MoeSpec(
        num_experts=flags.num_experts or 0, topk=1, expert_ffn_hidden=one.ffn_hidden, gated=one.gated, bias=one.bias
    )


def _mixer(flags: Namespace, mixer: Mixer | None, size: Resized) -> Mixer | None:
    """Attention with the heads and ranks given; any other kind stays as its config has it."""
    if isinstance(mixer, AttentionSpec):
        return _attention(flags, mixer, size)
    if mixer is None:
        return None
    for name in ("num_attention_heads", "num_query_groups", *LATENT_FLAGS):
        if getattr(flags, name) is not None:
            raise refuse(name, getattr(flags, name), f"layers of attention; these are of {mixer.name}")
    return mixer


def _attention(flags: Namespace, attention: AttentionSpec, size: Resized) -> AttentionSpec:
    """Heads and their size. With another hidden size or number of heads a head has hidden / heads
    channels; MLA's head sizes are its own."""
    heads = flags.num_attention_heads or attention.num_heads
    biased = replace(
        attention,
        qkv_bias=attention.qkv_bias or flags.add_bias_linear,
        out_bias=attention.out_bias or flags.add_bias_linear,
    )
    if attention.kind is AttentionKind.MLA:
        return _latent(flags, replace(biased, num_heads=heads, num_kv_heads=heads))
    for name in LATENT_FLAGS:
        if getattr(flags, name) is not None:
            raise refuse(name, getattr(flags, name), "a model of latent attention: a DeepSeek size or frame")
    grouped = attention.num_kv_heads != attention.num_heads
    groups = flags.num_query_groups or (attention.num_kv_heads if grouped else heads)
    if heads % groups:
        raise refuse("num_query_groups", groups, f"a divisor of {heads} attention heads")
    dim = attention.qk_dim
    if size.changed or heads != attention.num_heads:
        if size.hidden % heads:
            raise refuse("num_attention_heads", heads, f"a divisor of the hidden size {size.hidden}")
        dim = size.hidden // heads
    kind = AttentionKind.MHA if groups == heads else AttentionKind.GQA
    return replace(biased, kind=kind, num_heads=heads, num_kv_heads=groups, qk_dim=dim, v_dim=dim)


def _latent(flags: Namespace, attention: AttentionSpec) -> AttentionSpec:
    """Multi-head latent attention: its ranks, and a head of nope + rope channels (arXiv 2405.04434 sec. 2.1)."""
    if flags.num_query_groups is not None:
        raise refuse("num_query_groups", flags.num_query_groups, "no latent attention: it has no groups")
    given = {name: value for name in LATENT_FLAGS if (value := getattr(flags, name)) is not None}
    rope = given.get("qk_rope_dim", attention.rope_dim)
    return replace(
        attention,
        qk_dim=given.get("qk_nope_dim", attention.qk_dim - attention.rope_dim) + rope,
        rope_dim=rope,
        q_lora_rank=given.get("q_lora_rank", attention.q_lora_rank),
        kv_lora_rank=given.get("kv_lora_rank", attention.kv_lora_rank),
        v_dim=given.get("v_head_dim", attention.v_dim),
    )


def _dense(flags: Namespace, mlp: MlpSpec, width: int | None, size: Resized) -> MlpSpec:
    """The feed-forward layer ``width`` wide; without a width as wide as it was, or as its frame makes it where
    the hidden size or the gate is another."""
    gated = mlp.gated or flags.gated
    if width is None:
        keeps = not size.changed and gated == mlp.gated
        width = mlp.ffn_hidden if keeps else default_width(flags.frame, size.hidden, gated=gated)
    return replace(
        mlp,
        ffn_hidden=width,
        gated=gated,
        bias=mlp.bias or flags.add_bias_linear,
        activation="silu" if gated else mlp.activation,
    )


def _experts(flags: Namespace, moe: MoeSpec) -> MoeSpec:
    """Experts by the flags; shared experts are a number of experts' widths, as DeepSeek's are. Groups to choose
    experts in stay where these experts fill them."""
    experts = flags.num_experts or moe.num_experts
    topk = flags.moe_router_topk or moe.topk
    if not 1 <= topk <= experts:
        raise refuse("moe_router_topk", topk, f"1 to the number of experts {experts}")
    width = flags.expert_width or moe.expert_ffn_hidden
    shared = moe.shared_ffn_hidden
    if flags.n_shared_expert is not None:
        shared = flags.n_shared_expert * width
    elif shared % moe.expert_ffn_hidden == 0:
        shared = shared // moe.expert_ffn_hidden * width
    grouped = experts % moe.route_groups == 0 and topk <= experts // moe.route_groups * moe.route_chosen_groups
    return replace(
        moe,
        route_groups=moe.route_groups if grouped else 1,
        route_chosen_groups=moe.route_chosen_groups if grouped else 1,
        num_experts=experts,
        topk=topk,
        expert_ffn_hidden=width,
        shared_ffn_hidden=shared,
        gated=moe.gated or flags.gated,
        bias=moe.bias or flags.add_bias_linear,
    )


# The model of a generator command: a preset, and whatever the flags replace.
#
# A preset never overrides a flag. Presets are the shipped configs; sizes are AICB's names.


def model_of(options: Namespace, root: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """Returns the preset with every given flag in its place, and notes on it; raises ConfigError for what cannot
    be built."""
    check_counts(options)
    moe_width, width = options.moe_ffn_hidden_size, options.ffn_hidden_size
    given = Namespace(
        **vars(options),
        gated=options.swiglu or options.gated_linear_unit,
        expert_width=width if moe_width is None else moe_width,
    )
    path, flags = config_path(given, root), given
    if path is None:
        model, flags = frame_model(flags, root)
    else:
        model = read_config(path, assume=flags.assume).model
    hidden = flags.hidden_size or model.hidden
    size = Resized(hidden, hidden != model.hidden)
    runs = _layers(flags, model, size)
    mixed = any(run.block.moe is not None for run in runs)
    _check_expert_flags(flags, mixed=mixed)
    shaped = replace(
        model,
        name=flags.model_name or model.name,
        hidden=hidden,
        vocab=flags.vocab_size or model.vocab,
        max_positions=flags.max_position_embeddings or model.max_positions,
        vocab_pad_multiple=flags.make_vocab_size_divisible_by or model.vocab_pad_multiple,
        blocks=tuple(replace(run, block=sized_block(flags, run.block, size, mixed=mixed)) for run in runs),
    )
    assumed = (f"assumed: {each}" for each in model.assumptions)
    return shaped, (*assumed, *size_notes(given), *_notes(given, model, shaped))


def _notes(flags: Namespace, preset: ModelSpec, shaped: ModelSpec) -> Iterator[str]:
    """Notes on what no flag says."""
    groups = [{run.block.moe.route_groups for run in model.blocks if run.block.moe} for model in (preset, shaped)]
    if groups[0] != groups[1]:
        yield "assumed: experts are chosen among all, not in the preset's groups, which these do not fill"
    dense = [run for run in shaped.blocks if run.block.mlp is not None]
    if dense and flags.frame == DEEPSEEK and not flags.model_size and flags.moe_ffn_hidden_size is None:
        count = sum(run.count for run in dense)
        yield f"assumed: {count} dense layers as wide as an expert, as in AICB (--moe_ffn_hidden_size sets experts apart)"


def _check_expert_flags(flags: Namespace, *, mixed: bool) -> None:
    for name in ("moe_ffn_hidden_size", "n_shared_expert", "n_dense_layers"):
        if getattr(flags, name) is not None and not mixed:
            raise refuse(name, getattr(flags, name), "a model of experts: a size that has them, or --moe_enable")
    if not mixed and (flags.num_experts or 1) > 1:
        raise refuse("num_experts", flags.num_experts, "experts need --moe_enable")


def _layers(flags: Namespace, model: ModelSpec, size: Resized) -> tuple[BlockRun, ...]:
    """The runs of layers and which of them have experts, before their sizes."""
    has_experts = any(run.block.moe is not None for run in model.blocks)
    if flags.n_dense_layers is not None and (has_experts or flags.moe_enable):
        return _dense_first(flags, model, size)
    runs = model.blocks
    if flags.moe_enable and not has_experts:
        runs = tuple(replace(run, block=_with_experts(flags, run.block, size)) for run in runs)
    return _counted(flags, runs, model.name)


def _counted(flags: Namespace, runs: tuple[BlockRun, ...], name: str) -> tuple[BlockRun, ...]:
    """The runs with --num_layers decoder layers: the last of them grows or shrinks."""
    main = [run for run in runs if not run.block.mtp]
    before = sum(run.count for run in main[:-1])
    if flags.num_layers is None or flags.num_layers == before + main[-1].count:
        return runs
    if flags.num_layers <= before:
        raise refuse("num_layers", flags.num_layers, f"more than the {before} leading layers of {name}")
    last = BlockRun(block=main[-1].block, count=flags.num_layers - before)
    return (*main[:-1], last, *(run for run in runs if run.block.mtp))


def _dense_first(flags: Namespace, model: ModelSpec, size: Resized) -> tuple[BlockRun, ...]:
    """--n_dense_layers dense layers, then layers of experts."""
    main = model.main_blocks
    if [run.block.moe is not None for run in main] not in ([False], [True], [False, True]):
        raise refuse("n_dense_layers", flags.n_dense_layers, f"dense layers before experts: {model.name} mixes them")
    dense, layers = flags.n_dense_layers or 0, flags.num_layers or model.num_layers
    if dense >= layers:
        raise refuse("n_dense_layers", dense, f"less than the {layers} layers")
    runs = [BlockRun(block=_with_experts(flags, main[-1].block, size), count=layers - dense)]
    if dense:
        runs.insert(0, BlockRun(block=_without_experts(flags, main[0].block), count=dense))
    return (*runs, *(run for run in model.blocks if run.block.mtp))


def _with_experts(flags: Namespace, block: BlockSpec, size: Resized) -> BlockSpec:
    return replace(block, mlp=None, moe=experts_of(flags, block.mlp, size)) if block.mlp else block


def _without_experts(flags: Namespace, block: BlockSpec) -> BlockSpec:
    """A dense layer beside layers of experts, of the width that --ffn_hidden_size has for it."""
    if block.moe is None:
        return block
    if flags.moe_ffn_hidden_size is None or flags.ffn_hidden_size is None:
        allowed = "also --moe_ffn_hidden_size and --ffn_hidden_size: how wide an expert and a dense layer are"
        raise refuse("n_dense_layers", flags.n_dense_layers, allowed)
    mlp = MlpSpec(ffn_hidden=flags.ffn_hidden_size, gated=block.moe.gated, bias=block.moe.bias)
    return replace(block, mlp=mlp, moe=None)
