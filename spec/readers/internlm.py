"""InternLM-style ``.py`` configs: a model as InternEvo builds it, the plan it is written with, and what is passed over.

Layers as in ``internlm/model/modeling_*.py`` and ``modules/mlp.py``. InternEvo's own defaults apply where it has one
(``internlm/initialize/launch.py``, args_sanity_check): zero1 over the whole data-parallel group, tensor, pipeline and
weight 1, mtp.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spec.dtypes import canonical_dtype
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec, RopeScaling, RopeSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind
from spec.readers.config_file import ConfigFile
from spec.readers.pyconfig import read_pyconfig
from spec.section import MAX_LAYERS, Section
from spec.settings.plan import PlanSettings

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTypeFacts:
    """Facts that ``model_type`` fixes; the table says what they mean."""

    biases: str
    qk_norm: bool = False
    shared_gate: bool = False
    hub: str = ""


FAMILIES = {name: ModelTypeFacts(**row) for name, row in TABLE["types"].items()}

MOE_TYPES_DROPPING = ("GShard", "MegaBlock")
MOE_TYPES_DROPLESS = ("MegaBlock-D", "MegaBlock-Dropless", "Dropless")


MLP_RATIOS = (1e-3, 1e3)
"""Narrowest and widest MLP over hidden that anybody means: published ones lie from 0.1 (an expert) to 8."""
PRICED_DTYPES = ("bf16", "fp16")
# Key of a model -> which of its matrices are one (internlm/model/modules/mlp.py and mha.py).
JOINED = {"mlp_layer_fusion": "layers.joined_gate", "enable_qkv_fusion": "layers.joined_qkv"}
# parallel.pipeline.mode -> a schedule; InternEvo takes them in either case.
MODES = {"1F1B": "1f1b", "1f1b": "1f1b", "ZBH1": "zb-h1", "zbh1": "zb-h1"}


def read_internlm_config(path: Path) -> ConfigFile:
    """Returns the model, sequence length and parallel plan of one file; raises ConfigError.

    A file without a ``parallel`` section has no plan, but what stands in the other sections is checked as well.
    """
    config = read_pyconfig(path)
    top = Section(where=str(path), name="", values=config.values, lines=config.lines)
    model, data, cpu_offloading = (top.section(key) for key in ("model", "data", "cpu_offloading"))
    if not model.values:
        top.fail("model", "required: model = dict(num_layers=..., hidden_size=..., ...)")
    training = read_internlm_plan(top.section("parallel"), data, model, top.section("hybrid_zero_optimizer"))
    model_type = top.choice("model_type", tuple(FAMILIES), "INTERNLM")
    spec = read_internlm_model(model, top.section("moe"), model_type=model_type, name=path.stem, source=str(path))
    seq_len = data.integer("seq_len", None)
    if data.has("gradient_accumulation"):
        data.only("gradient_accumulation", (data.values.get("micro_num"),), "it must equal micro_num")
    # The rest of ``data`` describes the data set; what reaches the step is whole sequences.
    _close(data, harmless=data.values.keys())
    _close(cpu_offloading, harmless=cpu_offloading.values.keys())
    # Names in capitals, and those that another expression of the file refers to, are its own constants, not settings.
    constants = {name for name in config.values if name.isupper() or name.startswith("_")}
    _close(top, harmless=constants | config.used)
    return ConfigFile(
        path=str(path),
        format="internlm",
        model=spec,
        seq_len=seq_len,
        framework="internevo",
        **(training if "parallel" in top.values else {}),
    )


def _close(section: Section, harmless: Iterable[str] = ()) -> None:
    """Raises ConfigError for the section's settings without a price, and for keys that are neither read nor
    ``harmless`` nor in HARMLESS."""
    for key, row in TABLE["unpriced"].get(section.name, {}).items():
        section.only(key, tuple(row["accepted"]), row["why"])
    section.close({*TABLE["harmless"].get(section.name, ()), *harmless})


def _entry(parallel: Section, key: str) -> Section:
    """Returns an entry of ``parallel``, where a bare integer stands for dict(size=...)."""
    if type(parallel.values.get(key)) is int:
        parallel.has(key)
        return Section(where=parallel.where, name=f"{parallel.name}.{key}", values={"size": parallel.values[key]})
    return parallel.section(key)


def read_internlm_model(model: Section, moe: Section, *, model_type: str, name: str, source: str) -> ModelSpec:
    """The ModelSpec of the sections ``model`` and ``moe``; raises ConfigError for a bad key.

    ``model_type`` must be one of FAMILIES; ``source`` is the file the model comes from.
    """
    family = FAMILIES[model_type]
    hidden = model.integer("hidden_size")
    attention, mlp_bias = _attention(model, family, hidden, model_type)
    norm = NormKind(model.choice("norm_type", NormKind, "rmsnorm"))
    ffn = rounded_ffn(hidden, model.measure("mlp_ratio", *MLP_RATIOS), multiple_of=model.integer("multiple_of", 256))
    swiglu = model.flag("use_swiglu", True)
    experts = _experts(model, moe, family, ffn)
    # without SwiGLU the gate is a GELU (InternEvo 0.5.3, internlm/model/modules/mlp.py, FeedForward)
    dense = MlpSpec(ffn_hidden=ffn, gated=True, bias=mlp_bias, activation="silu" if swiglu else "gelu")
    block = BlockSpec(mixer=attention, mlp=None if experts else dense, moe=experts, norm=norm)
    # dynamic NTK is the one scaling that InternEvo has
    scaling = RopeScaling(kind="dynamic", factor=model.number("rope_scaling_factor", 1.0))
    dynamic = model.flag("use_dynamic_ntk_rope", False)
    spec = ModelSpec(
        name=name,
        hidden=hidden,
        vocab=model.integer("vocab_size"),
        blocks=(BlockRun(block=block, count=model.integer("num_layers", maximum=MAX_LAYERS)),),
        source=f"{source} ({model_type})",
        tied_embeddings=model.flag("tie_embeddings_and_output_weights", False),
        max_positions=model.integer("max_position_embeddings", 0),
        norm=norm,
        rope=RopeSpec(base=model.number("rope_base", 10_000.0), scaling=scaling if dynamic else None),
        norm_epsilon=model.number("layer_norm_epsilon", 1e-5, maximum=1.0),
        model_type=family.hub,
    )
    _close(model)
    _close(moe)
    return spec


def rounded_ffn(hidden: int, mlp_ratio: float, *, multiple_of: int) -> int:
    """Returns InternEvo's MLP width: int(hidden * mlp_ratio) rounded up to ``multiple_of``.

    Source: InternEvo ``internlm/model/modules/mlp.py``, FeedForward.
    """
    return multiple_of * -(-int(hidden * mlp_ratio) // multiple_of)


def _attention(model: Section, family: ModelTypeFacts, hidden: int, model_type: str) -> tuple[AttentionSpec, bool]:
    """The attention layer, and whether the MLP has biases."""
    heads = model.integer("num_attention_heads")
    kv_heads = model.integer("num_kv_attention_heads", heads)
    if heads % kv_heads:
        model.fail("num_kv_attention_heads", f"a divisor of num_attention_heads = {heads}")
    if not model.has("head_dim") and hidden % heads:
        model.fail("num_attention_heads", f"a divisor of hidden_size = {hidden}, or give head_dim")
    head_dim = model.integer("head_dim", hidden // heads)
    no_bias = model.flag("no_bias", False)
    if family.biases == "always":
        qkv_bias, out_bias, mlp_bias = True, True, False
        if no_bias:
            model.fail("no_bias", f"absent or False: {model_type} always has attention biases")
    elif family.biases == "split":
        qkv_bias = model.flag("qkv_bias", model_type != "QWEN3MOE" and not no_bias)
        out_bias, mlp_bias = model.flag("o_bias", False), model.flag("mlp_bias", False)
    else:
        qkv_bias = out_bias = mlp_bias = not no_bias
    window = None
    if model.flag("use_sliding_window", False):
        window = model.integer("sliding_window")
    else:
        model.has("sliding_window")
    spec = AttentionSpec(
        kind=AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        window=window,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=family.qk_norm,
    )
    return spec, mlp_bias


def _experts(model: Section, moe: Section, family: ModelTypeFacts, ffn: int) -> MoeSpec | None:
    """Returns the experts, or None for a dense model (num_experts absent or 1), whose settings of experts are checked as
    well."""
    num_experts = model.integer("num_experts", 1)
    kind = model.choice("moe_type", MOE_TYPES_DROPPING + MOE_TYPES_DROPLESS, "GShard")
    kwargs = model.section("moe_layer_kwargs")
    # Two sections may give the same setting. Experts per token: InternEvo's default is 1.
    topk = {
        section.integer(key)
        for section, key in ((model, "top_k"), (model, "moe_gate_k"), (moe, "top_k"))
        if section.has(key)
    } or {1}
    if len(topk) > 1:
        moe.fail("top_k", "the same number wherever it is written")
    (experts_per_token,) = topk
    # Kinds that drop tokens have a capacity, by default 1.0; of several given ones the last holds.
    capacity, drops = 1.0, True
    for section, prefix in ((model, "moe_"), (moe, ""), (kwargs, "")):
        if section.has(f"{prefix}capacity_factor"):
            capacity = section.number(f"{prefix}capacity_factor")
        drops = section.flag(f"{prefix}drop_tokens", drops)
    shared = model.integer("num_shared_experts", 0, minimum=0)
    # GShard's top-1 gate keeps its probability, every other divides by the sum of the chosen ones.
    normalized = kwargs.flag("normalize_expert_weights", experts_per_token > 1 or kind in MOE_TYPES_DROPLESS)
    score = kwargs.choice("scoring_func", ("softmax", "sigmoid"), "softmax")
    route_scale = kwargs.number("routed_scaling_factor", 1.0)
    _close(kwargs)
    if num_experts == 1:
        return None
    if experts_per_token > num_experts:
        model.fail("top_k", f"at most num_experts = {num_experts}")
    return MoeSpec(
        num_experts=num_experts,
        topk=experts_per_token,
        expert_ffn_hidden=ffn,
        shared_ffn_hidden=shared * ffn,
        shared_gate=family.shared_gate and shared > 0,
        capacity_factor=capacity if drops and kind in MOE_TYPES_DROPPING else None,
        normalized=normalized,
        score=score,
        route_scale=route_scale,
    )


def chunk_sizes(num_layers: int, pp: int) -> frozenset[int]:
    """Layers of InternEvo's stages: the whole part of layers over stages, on some one more
    (internlm/core/parallel/shard.py, partition_uniform)."""
    return frozenset(size for size in (num_layers // pp, -(-num_layers // pp)) if size)


def read_internlm_plan(parallel: Section, data: Section, model: Section, zero: Section) -> dict[str, Any]:
    """Returns the plan, its job and what else ConfigFile holds of a training; raises ConfigError for settings that are
    wrong or not priced yet."""
    tensor, pipeline, weight, zero1 = (_entry(parallel, key) for key in ("tensor", "pipeline", "weight", "zero1"))
    tp, pp = tensor.integer("size", 1), pipeline.integer("size", 1)
    # 0 and below: the whole data-parallel group; 1: nothing is sharded
    zero_size = zero1.integer("size", -1, minimum=-(2**31))
    vpp, layers = model.integer("num_chunks", 1), model.integer("num_layers")
    if vpp > 1 and (pp == 1 or layers % vpp):
        # internlm/solver/pipeline_utils.py, partition_uniform
        model.fail("num_chunks", f"1, or with pipeline.size > 1 a divisor of num_layers = {layers}")
    if not model.flag("parallel_output", True) and tp > 1:
        model.fail("parallel_output", "True when tensor.size > 1: gathered logits are not priced")
    ep, etp = _expert_degrees(parallel, tp)
    recompute, recompute_layers = _recompute(model, pp, vpp)
    plan = PlanSettings(
        strategy=tensor.choice("mode", framework_preset("internevo").tensor_parallel.strategies, "mtp"),
        tp=tp,
        pp=pp,
        vpp=vpp,
        schedule=MODES[pipeline.choice("mode", tuple(MODES), "1F1B")],
        wp=weight.integer("size", 1),
        ep=ep,
        etp=etp,
        zero_stage=0 if zero_size == 1 else 1,
        zero_size=max(zero_size, 0),
        micro_batch=data.integer("micro_bsz", None),
        num_micro=data.integer("micro_num", None),
        recompute=recompute,
        recompute_layers=recompute_layers,
        preset="internevo",
    )
    dtype = model.text("dtype", "torch.float16")
    recipe = canonical_dtype(dtype, where=model.where, key="model.dtype")
    if recipe not in PRICED_DTYPES:
        allowed = "torch.bfloat16 or torch.float16: other formats are not priced yet"
        raise ConfigError(where=model.where, key="model.dtype", value=dtype, allowed=allowed)
    framework_job = _framework_job(model, weight, zero)
    overlap_p2p = pipeline.flag("interleaved_overlap", False)
    if vpp > 1:
        framework_job["pipeline.overlap_p2p"] = overlap_p2p
    training = {
        "plan": plan,
        "job": {"flash_attention": model.flag("use_flash_attn", True), "precision.recipe": recipe},
        "framework_job": framework_job,
        "sequence_parallel": parallel.flag("sequence_parallel", False),
    }
    for section in (tensor, pipeline, weight, zero1, parallel.section("sequence_2D"), parallel, zero):
        _close(section)
    return training


def _framework_job(model: Section, weight: Section, zero: Section) -> dict[str, object]:
    """Returns the settings of a job that InternEvo alone has, by key; those that stand here only where the file gives
    them have the preset's values otherwise."""
    older = zero.flag("zero_overlap_communication", False)  # the older name of overlap_sync_grad
    job: dict[str, object] = {
        "data_parallel.overlap_grad_reduce": zero.flag("overlap_sync_grad", older),
        "data_parallel.overlap_param_gather": zero.flag("overlap_sync_param", False),
        "data_parallel.overlap_weights": weight.flag("overlap", False),
    }
    for key, choice in JOINED.items():
        if model.has(key):
            job[choice] = model.flag(key, False)
    if zero.has("reduce_bucket_size"):
        job["data_parallel.bucket_elements"] = zero.integer("reduce_bucket_size")
    weight.flag("memory_pool", False)
    weight.choice("forward_overlap_per", ("layer", "module"), "layer")
    return job


def _expert_degrees(parallel: Section, tp: int) -> tuple[int | None, int | None]:
    """Returns (ep, etp); expert.size <= 0 lets InternEvo choose, no_tp keeps experts whole."""
    ep = etp = None
    if parallel.has("expert"):
        expert = _entry(parallel, "expert")
        ep = max(expert.integer("size", -1, minimum=-(2**31)), 0)
        etp = 1 if expert.flag("no_tp", False) else tp
        _close(expert)
    for key in ("expert_weight", "expert_zero1"):
        _close(_entry(parallel, key))
    return ep, etp


def _recompute(model: Section, pp: int, vpp: int) -> tuple[Literal["none", "full"], int | None]:
    """Returns PlanSettings's recompute and recompute_layers of ``checkpoint``, a bool or the share of each chunk's layers:
    the first int(share x layers) of a chunk run again (internlm/model/modeling_*.py, checkpoint_layer_num)."""
    value = model.values.get("checkpoint") if model.has("checkpoint") else False
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        model.fail("checkpoint", "True, False or the share of layers to recompute, 0 to 1")
    if value in (0, 1):
        return ("full" if value else "none"), None
    sizes = chunk_sizes(model.integer("num_layers", maximum=MAX_LAYERS) // vpp, pp)
    recomputed = {int(size * value) for size in sizes}
    if len(recomputed) > 1:
        counts = " or ".join(str(count) for count in sorted(recomputed))
        model.fail("checkpoint", f"a share of equally many layers on every stage, not {counts} of them")
    count = recomputed.pop()
    return ("full", count) if count else ("none", None)
