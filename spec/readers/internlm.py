"""InternLM-style ``.py`` configs: a model as InternEvo builds it, the plan it is written with, and what is passed over.

Layers as in ``internlm/model/modeling_*.py`` and ``modules/mlp.py``. InternEvo's own defaults apply where it has one
(``internlm/initialize/launch.py``, args_sanity_check): zero1 over the whole data-parallel group, tensor, pipeline and
weight 1, mtp.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spec.dtypes import canonical_dtype
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec, RopeScaling, RopeSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind
from spec.readers.config_file import ConfigFile
from spec.readers.pyconfig import PyConfig, read_pyconfig
from spec.section import MAX_LAYERS, Section
from spec.settings.plan import WrittenPlan

# Keys that cannot change step time or memory, section by section; one that is neither read nor listed here is refused
# (InternEvo 0.5 ``configs/`` and ``internlm/initialize/launch.py``, args_sanity_check).

# whole top-level settings: names, checkpoints, logging, schedules of learning rate and loss scale,
# generation after training
TOP_LEVEL = frozenset(
    str.split(
        "JOB_NAME DO_ALERT model_type ckpt loss adam lr_scheduler beta2_scheduler grad_scaler "
        "grad_profiling monitor alert_address generation cudnn_deterministic cudnn_benchmark enable_tb "
        "tensorboard_folder resume_tb_folder metric_dtype batch_count enable_save_ckpt use_apex_adam"
    )
)

# initialisation, layout of queries and keys, gradient scale of the embedding, kernel fusion that
# moves the same bytes and FLOPs
MODEL = frozenset(
    str.split(
        "embed_split_hidden embed_grad_scale qk_interleaved rope_type rot_embed_HF_impl adapt_hf "
        "max_window_layers use_scaled_init use_swiglu_init init_type embedding_init_std "
        "attn_wqkv_init_std attn_other_init_std ffn_uplayer_init_std ffn_other_init_std out_head_init_std "
        "norm_head dropout_selective_checkpoint"
    )
)

MOE = frozenset(
    str.split(
        "eval_capacity_factor min_capacity noisy_gate_policy use_rts use_fused_gating "
        "enable_fused_routing enable_token_rearrange_opt use_tutel aux_loss_by_layer"
    )
)

HYBRID_ZERO = frozenset({"clip_grad_norm", "grad_clip", "check_nan", "partition_grad_order"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts that ``model_type`` fixes.

    ``biases``: "always" (q, k, v and output), "unless_no_bias" (all four and the MLP unless
    ``no_bias``) or "split" (``qkv_bias`` and ``o_bias``, by default only the former).
    """

    biases: str
    qk_norm: bool = False
    shared_gate: bool = False


# model_type names as InternEvo registers them (internlm/model/builder.py)
FAMILIES: dict[str, Family] = {
    "INTERNLM": Family(biases="always"),
    "INTERNLM_MoE": Family(biases="always"),
    "INTERNLM2": Family(biases="unless_no_bias"),
    "INTERNLM2_PUBLIC": Family(biases="unless_no_bias"),
    "INTERNLM3": Family(biases="unless_no_bias"),
    "LLAMA": Family(biases="unless_no_bias"),
    "LLAMA2": Family(biases="unless_no_bias"),
    "BAICHUAN2": Family(biases="unless_no_bias"),
    "QWEN2": Family(biases="split"),
    "QWEN2MOE": Family(biases="split", shared_gate=True),
    "MIXTRALMOE": Family(biases="split"),
    "QWEN3MOE": Family(biases="split", qk_norm=True),
}

MOE_TYPES_DROPPING = ("GShard", "MegaBlock")
MOE_TYPES_DROPLESS = ("MegaBlock-D", "MegaBlock-Dropless", "Dropless")


def read_internlm_model(model: Section, moe: Section, *, model_type: str, name: str, source: str) -> ModelSpec:
    """The ModelSpec of the sections ``model`` and ``moe``; raises ConfigError for a bad key.

    ``model_type`` must be one of FAMILIES; ``source`` is the file the model comes from.
    """
    family = FAMILIES[model_type]
    hidden = model.integer("hidden_size")
    _refuse_unpriced(model)
    attention, mlp_bias = _attention(model, family, hidden, model_type)
    norm = NormKind(model.choice("norm_type", [kind.value for kind in NormKind], "rmsnorm"))
    ffn = rounded_ffn(hidden, model.measure("mlp_ratio", *MLP_RATIOS), multiple_of=model.integer("multiple_of", 256))
    swiglu = model.flag("use_swiglu", True)
    experts = _experts(model, moe, family, ffn)
    # without SwiGLU the gate is a GELU (InternEvo 0.5.3, internlm/model/modules/mlp.py, FeedForward)
    dense = MlpSpec(ffn_hidden=ffn, gated=True, bias=mlp_bias, activation="silu" if swiglu else "gelu")
    block = BlockSpec(mixer=attention, mlp=None if experts else dense, moe=experts, norm=norm)
    spec = ModelSpec(
        name=name,
        hidden=hidden,
        vocab=model.integer("vocab_size"),
        blocks=(BlockRun(block=block, count=model.integer("num_layers", maximum=MAX_LAYERS)),),
        source=f"{source} ({model_type})",
        tied_embeddings=model.flag("tie_embeddings_and_output_weights", False),
        max_positions=model.integer("max_position_embeddings", 0),
        norm=norm,
        rope=_rope(model),
        norm_epsilon=model.number("layer_norm_epsilon", 1e-5, maximum=1.0),
    )
    model.close(MODEL)
    moe.close(MOE)
    return spec


MLP_RATIOS = (1e-3, 1e3)
"""Narrowest and widest MLP over hidden that anybody means: published ones lie from 0.1 (an expert) to 8."""


def rounded_ffn(hidden: int, mlp_ratio: float, *, multiple_of: int) -> int:
    """InternEvo's MLP width: int(hidden * mlp_ratio) rounded up to ``multiple_of``.

    Source: InternEvo ``internlm/model/modules/mlp.py``, FeedForward.
    """
    return multiple_of * -(-int(hidden * mlp_ratio) // multiple_of)


def _rope(model: Section) -> RopeSpec:
    """Base 10,000 unless said; dynamic NTK is the one scaling InternEvo has."""
    factor = model.number("rope_scaling_factor", 1.0)
    dynamic = model.flag("use_dynamic_ntk_rope", False)
    return RopeSpec(
        base=model.number("rope_base", 10_000.0),
        scaling=RopeScaling(kind="dynamic", factor=factor) if dynamic else None,
    )


def _refuse_unpriced(model: Section) -> None:
    """Settings that would change the answer and have no price yet."""
    model.only("apply_post_layer_norm", (False,), "post-norm blocks are not priced")
    model.only("residual_in_fp32", (False,), "fp32 residuals are not priced")
    model.only("attn_drop_rate", (0, 0.0), "dropout is not priced")
    model.only("drop_rate", (0, 0.0), "dropout is not priced")
    model.only("is_reward", (False,), "reward heads are not priced")
    model.only("moe_use_residual", (False,), "residual experts are not priced")
    model.only("first_k_dense_replace", (0,), "use a Hugging Face or TOML config for mixed layers")
    model.only("mtp_depth", (0,), "use a Hugging Face or TOML config for multi-token prediction")


def _attention(model: Section, family: Family, hidden: int, model_type: str) -> tuple[AttentionSpec, bool]:
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


def _experts(model: Section, moe: Section, family: Family, ffn: int) -> MoeSpec | None:
    """The experts, or None for a dense model (num_experts absent or 1)."""
    num_experts = model.integer("num_experts", 1)
    kind = model.choice("moe_type", MOE_TYPES_DROPPING + MOE_TYPES_DROPLESS, "GShard")
    kwargs = model.section("moe_layer_kwargs")
    topk = _written_topk(model, moe)
    shared = model.integer("num_shared_experts", 0, minimum=0)
    capacity = _capacity(model, moe, kwargs, kind)
    # GShard's top-1 gate keeps its probability, every other divides by the sum of the chosen
    normalized = kwargs.flag("normalize_expert_weights", topk > 1 or kind in MOE_TYPES_DROPLESS)
    score = kwargs.choice("scoring_func", ("softmax", "sigmoid"), "softmax")
    route_scale = kwargs.number("routed_scaling_factor", 1.0)
    kwargs.close(MOE)
    if num_experts == 1:
        return None
    if topk > num_experts:
        model.fail("top_k", f"at most num_experts = {num_experts}")
    return MoeSpec(
        num_experts=num_experts,
        topk=topk,
        expert_ffn_hidden=ffn,
        shared_ffn_hidden=shared * ffn,
        shared_gate=family.shared_gate and shared > 0,
        capacity_factor=capacity,
        normalized=normalized,
        score=score,
        route_scale=route_scale,
    )


def _written_topk(model: Section, moe: Section) -> int:
    """Experts per token: model.top_k, model.moe_gate_k or moe.top_k; InternEvo's default is 1."""
    written = [
        value
        for value in (
            model.integer("top_k", None),
            model.integer("moe_gate_k", None),
            moe.integer("top_k", None),
        )
        if value is not None
    ]
    if len(set(written)) > 1:
        moe.fail("top_k", "the same number wherever it is written")
    return written[0] if written else 1


def _capacity(model: Section, moe: Section, kwargs: Section, kind: str) -> float | None:
    """Capacity factor of kinds that drop tokens (InternEvo's default 1.0); None means dropless."""
    factor = 1.0
    for section, key in (
        (model, "moe_capacity_factor"),
        (moe, "capacity_factor"),
        (kwargs, "capacity_factor"),
    ):
        if section.has(key):
            factor = section.number(key)
    drops = True
    for section, key in ((model, "moe_drop_tokens"), (moe, "drop_tokens"), (kwargs, "drop_tokens")):
        drops = section.flag(key, drops)
    return factor if drops and kind in MOE_TYPES_DROPPING else None


PRICED_DTYPES = ("bf16", "fp16")
# Key of a model -> which of its matrices are one (internlm/model/modules/mlp.py and mha.py).
JOINED = {"mlp_layer_fusion": "layers.joined_gate", "enable_qkv_fusion": "layers.joined_qkv"}
# parallel.pipeline.mode -> a schedule; InternEvo takes them in either case.
MODES = {"1F1B": "1f1b", "1f1b": "1f1b", "ZBH1": "zb-h1", "zbh1": "zb-h1"}


def chunk_sizes(num_layers: int, pp: int) -> frozenset[int]:
    """Layers of InternEvo's stages: the whole part of layers over stages, on some one more
    (internlm/core/parallel/shard.py, partition_uniform)."""
    return frozenset(size for size in (num_layers // pp, -(-num_layers // pp)) if size)


def read_internlm_plan(parallel: Section, data: Section, model: Section, zero: Section) -> dict[str, Any]:
    """Returns the written plan, its job and what else ConfigFile holds of a training; raises ConfigError for settings that
    are wrong or not priced yet."""
    tensor = _entry(parallel, "tensor")
    tp = tensor.integer("size", 1)
    strategy = tensor.choice("mode", framework_preset("internevo").tensor_parallel.strategies, "mtp")
    tensor.close()
    pp, schedule, overlap_p2p = _pipeline(parallel)
    vpp = _chunks(model, pp)
    weight = _entry(parallel, "weight")
    wp = weight.integer("size", 1)
    zero_stage, zero_size = _zero(parallel)
    ep, etp = _expert_degrees(parallel, tp)
    _refuse_unpriced_parallel(parallel)
    sequence_parallel = parallel.flag("sequence_parallel", False)
    parallel.close()
    if not model.flag("parallel_output", True) and tp > 1:
        model.fail("parallel_output", "True when tensor.size > 1: gathered logits are not priced")
    recompute, recompute_layers = _recompute(model, pp, vpp)
    plan = WrittenPlan(
        strategy=strategy,
        tp=tp,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        wp=wp,
        ep=ep,
        etp=etp,
        zero_stage=zero_stage,
        zero_size=zero_size,
        micro_batch=data.integer("micro_bsz", None),
        num_micro=data.integer("micro_num", None),
        recompute=recompute,
        recompute_layers=recompute_layers,
        preset="internevo",
    )
    job = {
        "flash_attention": model.flag("use_flash_attn", True),
        "precision.recipe": _dtype(model),
    }
    framework_job: dict[str, object] = {
        "data_parallel.overlap_grad_reduce": _overlap_sync_grad(zero),
        "data_parallel.overlap_param_gather": zero.flag("overlap_sync_param", False),
        "data_parallel.overlap_weights": weight.flag("overlap", False),
    }
    for key, choice in JOINED.items():
        if model.has(key):
            framework_job[choice] = model.flag(key, False)
    if vpp > 1:
        framework_job["pipeline.overlap_p2p"] = overlap_p2p
    if zero.has("reduce_bucket_size"):
        framework_job["data_parallel.bucket_elements"] = zero.integer("reduce_bucket_size")
    weight.flag("memory_pool", False)
    weight.choice("forward_overlap_per", ("layer", "module"), "layer")
    weight.only("launch_allgather_before", ("wo",), "another prefetch point is not priced")
    weight.close()
    zero.close(HYBRID_ZERO)
    return {
        "plan": plan,
        "job": job,
        "framework_job": framework_job,
        "sequence_parallel": sequence_parallel,
    }


def _entry(parallel: Section, key: str) -> Section:
    """A parallel entry, where a bare integer stands for dict(size=...)."""
    if type(parallel.values.get(key)) is int:
        parallel.has(key)
        return Section(where=parallel.where, name=f"{parallel.name}.{key}", values={"size": parallel.values[key]})
    return parallel.section(key)


def _pipeline(parallel: Section) -> tuple[int, str, bool]:
    """Stages, their schedule, and whether interleaved ones compute beside their messages (False when absent)."""
    pipeline = _entry(parallel, "pipeline")
    size = pipeline.integer("size", 1)
    overlap = pipeline.flag("interleaved_overlap", False)
    schedule = MODES[pipeline.choice("mode", tuple(MODES), "1F1B")]
    pipeline.only("zero_bubble", (False,), 'say mode = "ZBH1"')
    pipeline.only("use_zeropp", (False,), "ZeroPP schedules are not priced")
    pipeline.only("decouple_grad", (False,), "zero-bubble schedules are not priced yet")
    pipeline.close()
    return size, schedule, overlap


def _chunks(model: Section, pp: int) -> int:
    """Virtual chunks of a stage; layers divide over them (internlm/solver/pipeline_utils.py, partition_uniform)."""
    chunks = model.integer("num_chunks", 1)
    layers = model.integer("num_layers")
    if chunks > 1 and (pp == 1 or layers % chunks):
        model.fail("num_chunks", f"1, or with pipeline.size > 1 a divisor of num_layers = {layers}")
    return chunks


def _zero(parallel: Section) -> tuple[int, int]:
    """(stage, size): size <= 0 is the whole data-parallel group, 1 no sharding, else a part of it."""
    zero1 = _entry(parallel, "zero1")
    size = zero1.integer("size", -1, minimum=-(2**31))
    zero1.only("fsdp", (False,), "InternEvo under torch FSDP is not priced")
    zero1.close()
    return (0, 1) if size == 1 else (1, max(size, 0))


def _expert_degrees(parallel: Section, tp: int) -> tuple[int | None, int | None]:
    """(ep, etp); expert.size <= 0 lets InternEvo choose, no_tp keeps experts whole."""
    parallel.has("expert")
    if parallel.values.get("expert") is None:
        ep, etp = None, None
    else:
        expert = _entry(parallel, "expert")
        ep = max(expert.integer("size", -1, minimum=-(2**31)), 0)
        etp = 1 if expert.flag("no_tp", False) else tp
        expert.close()
    for key, accepted in (("expert_weight", (0, 1)), ("expert_zero1", (-1, 0))):
        entry = _entry(parallel, key)
        entry.only("size", accepted, f"{key} is not priced")
        entry.close(("overlap", "memory_pool", "fsdp", "launch_allgather_before", "forward_overlap_per"))
    return ep, etp


def _refuse_unpriced_parallel(parallel: Section) -> None:
    sequence_2d = parallel.section("sequence_2D")
    sequence_2d.only("enable", (False,), "2D sequence parallelism is not priced yet")
    sequence_2d.close(("head_size", "context_size", "window_size", "device_placement_strategy"))


def _recompute(model: Section, pp: int, vpp: int) -> tuple[Literal["none", "full"], int | None]:
    """``checkpoint``, a bool or the share of each chunk's layers, as WrittenPlan's recompute and
    recompute_layers: the first int(share x layers) of a chunk run again (internlm/model/modeling_*.py,
    checkpoint_layer_num)."""
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


def _overlap_sync_grad(zero: Section) -> bool:
    """overlap_sync_grad, or its older name zero_overlap_communication."""
    older = zero.flag("zero_overlap_communication", False)
    return zero.flag("overlap_sync_grad", older)


def _dtype(model: Section) -> str:
    """The compute format: bf16 or fp16 (InternEvo's default)."""
    written = model.text("dtype", "torch.float16")
    short = canonical_dtype(written, where=model.where, key="model.dtype")
    if short not in PRICED_DTYPES:
        allowed = "torch.bfloat16 or torch.float16: other formats are not priced yet"
        raise ConfigError(where=model.where, key="model.dtype", value=written, allowed=allowed)
    return short


def read_internlm_config(path: Path) -> ConfigFile:
    """The model, sequence length and written plan of one file; raises ConfigError.

    A file without a ``parallel`` section has no written plan.
    """
    return internlm_config(read_pyconfig(path), where=str(path), name=path.stem)


def internlm_config(config: PyConfig, *, where: str, name: str) -> ConfigFile:
    """Returns what read_internlm_config does, from names already evaluated."""
    top = Section(where=where, name="", values=config.values, lines=config.lines)
    model_section, data = top.section("model"), top.section("data")
    if not model_section.values:
        top.fail("model", "required: model = dict(num_layers=..., hidden_size=..., ...)")
    training = read_internlm_plan(top.section("parallel"), data, model_section, top.section("hybrid_zero_optimizer"))
    model = read_internlm_model(
        model_section,
        top.section("moe"),
        model_type=top.choice("model_type", tuple(FAMILIES), "INTERNLM"),
        name=name,
        source=where,
    )
    seq_len = data.integer("seq_len", None)
    # the rest of `data` describes the data set; what reaches the step is whole sequences
    data.only("unit_schedule_size", (), "ZeroPP schedules are not priced")
    if data.has("gradient_accumulation"):
        data.only("gradient_accumulation", (data.values.get("micro_num"),), "it must equal micro_num")
    _close_top(top, config)
    return ConfigFile(
        path=where,
        format="internlm",
        model=model,
        seq_len=seq_len,
        framework="internevo",
        **(training if "parallel" in top.values else {}),
    )


def _close_top(top: Section, config: PyConfig) -> None:
    """Refuse what could change the answer; pass over the file's own constants and helpers.

    A constant is a name in capitals, or one that another expression of the file refers to.
    """
    top.only("use_fp32_norm", (False,), "fp32 norms are not priced")
    top.only("selective_checkpoint", (False,), "selective recomputation is not priced yet")
    top.only("selective_checkpoint_offload", (False,), "offloading is not priced yet")
    offload = top.section("cpu_offloading")
    offload.only("enable", (False,), "offloading is not priced yet")
    constants = {name for name in config.values if name.isupper() or name.startswith("_")}
    top.close(TOP_LEVEL | constants | config.used)
