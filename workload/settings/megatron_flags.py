"""The shapes of a model as Megatron-LM's flags.

Source: Megatron-LM core 0.14, megatron/training/arguments.py and core/models/gpt/gpt_layer_specs.py (the norms of
latent attention exist only with --qk-layernorm); core 0.16 for the gate of shared experts.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.job import JobSpec, Precision
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights, attention_of
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.model import BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from workload.settings.launch_file import EXPANDABLE_SEGMENTS, requirement, true_notes

NAME = "Megatron-LM"
require = requirement(NAME)
Flags = dict[str, str | int | None]
RELATIVES = tomllib.loads(Path(__file__).with_name("megatron_relatives.toml").read_text(encoding="utf-8"))
"""Flags of Megatron-LM that the frameworks built on it have under which name, or lack."""
POSITIONS = {PositionKind.ROTARY: "rope", PositionKind.LEARNED: "learned_absolute", PositionKind.NONE: "none"}


# gpt-oss (transformers modeling_gpt_oss.py, GptOssExperts: gates of x sigmoid(1.702 x), limits of 7 and 1 added to what they
# gate); experts with biases do not fuse them with dropout (moe/experts.py, TEGroupedMLP).
CLAMPED: Flags = {
    "--quick-geglu": None,
    "--activation-func-clamp-value": "7.0",
    "--glu-linear-offset": "1.0",
    "--no-bias-dropout-fusion": None,
}


def model_flags(model: ModelSpec, job: JobSpec) -> Flags:
    """Flags and their values (None: a switch). Raises ExportError for layers Megatron-LM does not have."""
    blocks = [run.block for run in model.main_blocks]
    mixers = {attention_of(mixer, f"settings of {NAME}") for mixer in _softmax_mixers(blocks)}
    require(bool(mixers), "models without attention")
    # Layers may differ in whether they have a window (window_attn_skip_freq).
    alike = len({replace(mixer, window=None) for mixer in mixers}) == 1
    require(alike and len({mixer.window for mixer in mixers} - {None}) < 2, "layers of unequal attention")
    attention = max(mixers, key=lambda mixer: mixer.window or 0)
    require(len({block.norm for block in blocks} | {model.norm}) == 1, "norms of two kinds")
    require(not any(block.parallel_residual for block in blocks), "parallel residuals")
    require(all(block.norm_place is NormPlace.BEFORE for block in blocks), "norms elsewhere than before each half")
    require(model.norm in (NormKind.RMS, NormKind.LAYER), "norms without weights or biases")
    require(not model.logit_softcap, "soft-capped logits")
    require(not model.rare_parts, " or ".join(model.rare_parts))
    require(not (model.head_bias or model.embedding_norm), "a head bias or a norm of embeddings")
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
    flags |= _attention(attention, model.hidden) | _hybrid(model) | _linear_attention(model)
    if len(mixers) > 1:
        flags["--window-attn-skip-freq"] = _pattern(
            (attention_of(run.block.mixer, NAME).window is not None, run.count) for run in model.main_blocks
        )
    flags |= _biases(attention, blocks)
    return flags | _feed_forward(model, job, blocks)


def _softmax_mixers(blocks: list[BlockSpec]) -> list[Mixer]:
    """Returns the mixers that have no flags of their own as hybrids have; all must be attention."""
    return [
        block.mixer for block in blocks if block.mixer and not isinstance(block.mixer, (Mamba2Spec, GatedDeltaSpec))
    ]


# Megatron-Core's letters of half blocks (core/models/hybrid/hybrid_layer_allocation.py, Symbols).
HALVES = {(True, False, False): "M", (False, False, False): "*", (False, True, False): "-", (False, False, True): "E"}
HYBRID_SPEC = "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"


def hybrid_pattern(model: ModelSpec) -> str:
    """Returns the kind of each half block, a letter each; "" for a model of whole ones."""
    blocks = [run.block for run in model.main_blocks]
    if not any(isinstance(block.mixer, Mamba2Spec) for block in blocks):
        return ""
    halves = all(bool(block.mixer) + bool(block.mlp) + bool(block.moe) == 1 for block in blocks)
    require(halves, "Mamba-2 in layers with a feed-forward network")
    require(not any(run.block.mtp for run in model.blocks), "multi-token prediction beside Mamba-2")
    kinds = [(isinstance(block.mixer, Mamba2Spec), bool(block.mlp), bool(block.moe)) for block in blocks]
    return "".join(HALVES[kind] * run.count for kind, run in zip(kinds, model.main_blocks, strict=True))


def _hybrid(model: ModelSpec) -> Flags:
    """Returns what pretrain_hybrid.py takes: the half blocks, each with its own norm, and the sizes of Mamba-2."""
    pattern = hybrid_pattern(model)
    sizes = {run.block.mixer for run in model.main_blocks if isinstance(run.block.mixer, Mamba2Spec)}
    if not pattern:
        return {}
    require(len(sizes) == 1, "Mamba-2 of several sizes")
    mamba = sizes.pop()
    return {
        "--hybrid-layer-pattern": pattern,
        "--spec": HYBRID_SPEC,
        "--mamba-state-dim": mamba.state_size,
        "--mamba-head-dim": mamba.head_dim,
        "--mamba-num-groups": mamba.num_groups,
        "--mamba-num-heads": mamba.num_heads,
    }


def _linear_attention(model: ModelSpec) -> Flags:
    """Returns which layers are Gated DeltaNet, and its sizes."""
    mixers = {run.block.mixer for run in model.main_blocks if isinstance(run.block.mixer, GatedDeltaSpec)}
    if not mixers:
        return {}
    require(len(mixers) == 1, "Gated DeltaNet of several sizes")
    sizes = mixers.pop()
    layers = ((isinstance(run.block.mixer, GatedDeltaSpec), run.count) for run in model.main_blocks)
    return {
        "--experimental-attention-variant": "gated_delta_net",
        "--linear-attention-freq": _pattern(layers),
        "--linear-conv-kernel-dim": sizes.conv_kernel,
        "--linear-key-head-dim": sizes.key_dim,
        "--linear-value-head-dim": sizes.value_dim,
        "--linear-num-key-heads": sizes.num_key_heads,
        "--linear-num-value-heads": sizes.num_value_heads,
    }


def _attention(attention: AttentionSpec, hidden: int) -> Flags:
    require(not (attention.softcap or attention.chunk), "soft-capped or chunked attention")
    require(not attention.alibi, "ALiBi")
    require(not attention.head_gate, "gates of whole heads")
    require(not attention.index_topk, "sparse attention")
    plain_norms = not attention.qk_norm or attention.qk_norm_weights is QkNormWeights.HEAD
    require(plain_norms, "norms of queries and keys without one weight vector for all heads")
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
        require(attention.qk_dim == attention.v_dim, "values of another width than keys")
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
    require(len(rest) == 1 and (attention.qkv_bias or rest == {False}), "these biases")
    if rest == {True}:
        return {}
    flags: Flags = {"--disable-bias-linear": None}
    return flags | {"--add-qkv-bias": None} if attention.qkv_bias else flags


def _feed_forward(model: ModelSpec, job: JobSpec, blocks: list[BlockSpec]) -> Flags:
    feeds = bool(hybrid_pattern(model)) or all(block.feeds_forward for block in blocks)
    require(feeds, "layers without a feed-forward network")
    dense = {block.mlp for block in blocks if block.mlp}
    routed = {block.moe for block in blocks if block.moe}
    require(len(dense) < 2 and len(routed) < 2, "feed-forward layers of several widths")
    parts: tuple[MlpSpec | MoeSpec, ...] = (*dense, *routed)
    kinds = {(part.gated, part.activation) for part in parts}
    require(len(kinds) == 1, "experts of another activation than dense layers")
    clamped = any(moe.clamped for moe in routed)
    flags = dict(CLAMPED) if clamped else _activation(*kinds.pop(), bias=any(part.bias for part in dense))
    for mlp in dense:
        flags["--ffn-hidden-size"] = mlp.ffn_hidden
    for moe in routed:
        flags |= _experts(moe, job.capacity_factor(moe))
    if dense and routed:
        flags["--moe-layer-freq"] = _pattern((run.block.moe is not None, run.count) for run in model.main_blocks)
    return flags


def _pattern(runs: Iterable[tuple[bool, int]]) -> str:
    """Which layers are of a kind, as arguments.py reads it (moe_freq_type)."""
    return f"({'+'.join(f'[{int(is_one)}]*{count}' for is_one, count in runs)})"


def _activation(gated: bool, activation: str, *, bias: bool) -> Flags:
    """Only GELU and SwiGLU are fused with a bias."""
    if gated:
        require(activation == "silu", f"gates by {activation}")
        return {"--swiglu": None}
    require(activation in ("gelu", "gelu_tanh", "squared_relu"), f"activations by {activation}")
    if activation != "squared_relu":
        return {}
    return {"--squared-relu": None, **({"--no-bias-gelu-fusion": None} if bias else {})}


def _experts(moe: MoeSpec, capacity: float | None) -> Flags:
    require(moe.bias == moe.clamped, "biases of experts that are not clamped, or clamped ones without biases")
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
    if moe.router_bias and not moe.bias:
        require(moe.score == "sigmoid", "score corrections of a softmax router")
    return flags


# Number formats, kernels, overlaps and recomputation of a job as Megatron-LM's flags.
#
# Source: Megatron-LM core 0.14, megatron/training/arguments.py (``validate_args``) and
# core/transformer/transformer_config.py. Dropout is 0.1 there by default, gradients of bf16 are
# summed and reduced in fp32.

FORMATS = {"bf16": "--bf16", "fp16": "--fp16"}
# by ops.low_precision.RECIPES: --fp8-recipe and --fp8-format
FP8_RECIPES = {
    "delayed": ("delayed", "hybrid"),
    "current": ("tensorwise", "hybrid"),
    "block": ("blockwise", "e4m3"),
    "mx": ("mxfp8", "e4m3"),
}
BUCKETS = frozenset({"data_parallel.bucket_elements", "data_parallel.bucket_elements_per_rank"})
# The settings of a job that the flags, or their refusals and notes, say.
JOB_KEYS = BUCKETS | frozenset(
    str.split(
        "data_parallel.fp32_gradients "
        "data_parallel.overlap_grad_reduce data_parallel.overlap_param_gather tensor_parallel.vocab_pad_multiple "
        "tensor_parallel.overlap tensor_parallel.overlap_ag tensor_parallel.overlap_rs tensor_parallel.overlap_rs_dgrad "
        "tensor_parallel.overlap_rs_method tensor_parallel.bulk_dgrad tensor_parallel.bulk_wgrad loss.fused pipeline.overlap_p2p host.checks_numbers precision.compute "
        "precision.parameter precision.low_precision_parameters precision.router precision.low_precision_head precision.high_precision_first_layers precision.high_precision_last_layers precision.parameter_gather precision.gradient precision.reduce precision.master "
        "precision.moments precision.activation precision.attention precision.moe_dispatch precision.linear "
        "precision.scale_recipe precision.scaling flash_attention attention_kernel unfused fp32_norms dropout "
        "context_parallel moe_capacity_factor moe_dispatcher moe_router_fusion overlap_expert_a2a delay_wgrad overlap_shared_experts cuda_graphs "
        "optimizer adapter_rank adapted expandable_segments task"
    )
)
# of ops.recompute those of DeepSeek and InternEvo
NOT_ITS_MODULES = frozenset({"norm", "dropout_norm"})
UNFUSED = {"rotary": "--no-rope-fusion", "softmax": "--no-masked-softmax-fusion"}


def job_flags(model: ModelSpec, job: JobSpec) -> Flags:
    """Returns the flags that every plan shares. Raises ExportError for a job that Megatron-LM does not run."""
    require(
        not (model.tied_embeddings and job.precision.low_precision_head), "a low-precision head tied to the embedding"
    )
    flags = _formats(job.precision)
    # flash-attn has no sinks (Transformer Engine dot_product_attention/utils.py, get_attention_backend: softmax_type).
    sinks = any(getattr(run.block.mixer, "sinks", False) for run in model.blocks)
    flags["--attention-backend"] = ("fused" if sinks else "flash") if job.flash_attention else "unfused"
    if not job.dropout:
        flags |= {"--attention-dropout": "0.0", "--hidden-dropout": "0.0"}
    flags |= {UNFUSED[name]: None for name in sorted(job.unfused) if name in UNFUSED}
    if job.task == "sft":
        flags["--sft"] = None
    if job.preset.loss.fused:
        flags["--cross-entropy-loss-fusion"] = None
    if not job.preset.host.checks_numbers:
        flags["--no-check-for-nan-in-loss-and-grad"] = None
    if any(run.block.moe for run in model.blocks):
        flags |= _dispatch(job)
    return flags | _graphs(model, job)


def _graphs(model: ModelSpec, job: JobSpec) -> Flags:
    """Flags of CUDA graphs; parts of layers are captured by Transformer Engine (core 0.19 ``transformer_config.py``,
    __post_init__, cuda_graph_impl and cuda_graph_modules)."""
    scopes, routed = job.cuda_graphs, [run.block.moe for run in model.blocks if run.block.moe]
    if not scopes:
        return {}
    if "full_iteration" in scopes:
        require(len(scopes) == 1, "CUDA graphs of a whole iteration and of parts of it")
        checks = "CUDA graphs of a whole iteration that checks for NaN (--job host.checks_numbers=false)"
        require(not job.preset.host.checks_numbers, checks)
        return {"--cuda-graph-impl": "full_iteration"}
    dense = any(run.block.mlp for run in model.blocks)
    require(bool(routed) or not scopes & {"moe_router", "moe_preprocess"}, "CUDA graphs of a router without experts")
    require(dense or "mlp" not in scopes, "CUDA graphs of dense layers in a model of experts")
    require(
        "moe_router" in scopes or "moe_preprocess" not in scopes, "CUDA graphs of moe_preprocess without moe_router"
    )
    capacity = any(job.capacity_factor(moe) is not None for moe in routed) and job.moe_dispatcher == "all_to_all"
    require(not capacity or "moe_preprocess" not in scopes, "CUDA graphs of moe_preprocess beside a capacity")
    biased = any(getattr(run.block.mixer, "qkv_bias", False) for run in model.blocks)
    late = job.delay_wgrad and "attn" in scopes
    require(not late or not biased, "CUDA graphs of attention with biases beside delay_wgrad")
    return {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-modules": " ".join(sorted(scopes))}


def job_keys(job: JobSpec) -> frozenset[str]:
    """The settings that the flags say; without overlap there is one bucket, and samples are packed by the dataset."""
    keys = JOB_KEYS if job.preset.data_parallel.overlap_grad_reduce else JOB_KEYS - BUCKETS
    return keys if job.task == "pretrain" else keys | {"document_tokens"}


def adapter_targets(job: JobSpec) -> list[str]:
    """Returns Megatron-Core's names of the products that have an adapter (JobSpec.adapted)."""
    return [name for adapted, name in RELATIVES["swift"]["targets"].items() if adapted in job.adapted]


def adapter_obstacles(model: ModelSpec, job: JobSpec) -> tuple[str, ...]:
    """Returns what its relatives with adapters (MS-Swift, Megatron-Bridge) have no words for."""
    routed = any(run.block.moe for run in model.blocks)
    return true_notes(
        {
            "adapters of queries, keys and values apart": "q_k_v" in job.adapted,
            "adapters of dense layers beside experts without any": bool(
                job.adapter_rank and routed and {"up", "down"} & job.adapted
            ),
            f"frozen weights in {job.precision.frozen}": bool(job.precision.frozen),
        }
    )


def _absent_modules(model: ModelSpec) -> set[str]:
    """Returns the modules that no layer has, which Megatron-Core refuses to recompute."""
    blocks = [run.block for run in model.blocks]
    routed = [block.moe for block in blocks if block.moe]
    latent = any(getattr(block.mixer, "kind", None) is AttentionKind.MLA for block in blocks)
    absent = set() if routed else {"moe", "moe_act"}
    absent |= set() if any(moe.shared_ffn_hidden for moe in routed) else {"shared_experts"}
    return absent | (set() if latent else {"mla_up_proj"})


def recompute_flags(model: ModelSpec, plan: Plan) -> Flags:
    """Full and block recomputation are one granularity, single modules another."""
    core = {"core_attn"} if plan.recompute is Recompute.SELECTIVE else set()
    modules = sorted(core.union(plan.recompute_modules) - _absent_modules(model))
    for name in sorted(NOT_ITS_MODULES.intersection(modules)):
        require(False, f"recomputed modules {name}")
    if plan.recompute in (Recompute.FULL, Recompute.BLOCK):
        require(not modules, "whole layers beside parts of layers run again")
        block = plan.recompute is Recompute.BLOCK
        return {
            "--recompute-granularity": "full",
            "--recompute-method": "block" if block else "uniform",
            "--recompute-num-layers": plan.num_recompute_layers if block else 1,
        }
    if not modules:
        return {}
    return {"--recompute-granularity": "selective", "--recompute-modules": " ".join(modules)}


def job_omissions(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Clauses for what was priced and no flag sets, and for what the environment has to set."""
    job, cluster = problem.job, problem.cluster
    graphs, nodes = job.cuda_graphs - {"full_iteration"}, cluster.scale_up_ranks // cluster.gpus_per_node
    segmented = cluster.gpus_per_node < cluster.scale_up_ranks < job.world_size
    unfused, kernel = "norm" in job.unfused, job.attention_kernel
    dispatch = job.precision.moe_dispatch
    return true_notes(
        {
            "left out: norms that are not fused, which Transformer Engine has none of": job.fp32_norms or unfused,
            f"left out: the {kernel} kernel, which is the installed flash-attn's": kernel != "flash",
            f"left out: dispatch of tokens in {dispatch}": dispatch != job.precision.compute,
            f"set {EXPANDABLE_SEGMENTS}": job.expandable_segments,
            "set NCCL_GRAPH_REGISTER=0": job.expandable_segments and bool(graphs),
            "set NVTE_CPU_OFFLOAD_V1=1 from Transformer Engine 2.10 on": bool(plan.offload_modules),
            f"have {nodes} nodes of each NVLink domain allocated (Slurm: --segment={nodes})": segmented,
            "set CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell": plan.tp > 1 or plan.cp > 1,
        }
    )


def _formats(precision: Precision) -> Flags:
    compute = precision.compute
    require(compute in FORMATS, f"products in {compute}")
    flags: Flags = {FORMATS[compute]: None}
    stored = {precision.parameter, precision.activation, precision.attention}
    require(stored == {compute}, f"parameters, activations or attention in {stored - {compute}}")
    if precision.linear == "fp4":
        flags |= {"--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"}
    elif precision.linear != compute:
        scaling = scaling_word(precision)
        known = precision.linear == "fp8" and scaling in FP8_RECIPES
        require(
            known, f"{precision.linear} products scaled by {scaling}; it has fp8-delayed, fp8-current, fp8-blockwise"
        )
        recipe, numbers = FP8_RECIPES[scaling]
        flags |= {"--fp8-format": numbers, "--fp8-recipe": recipe}
    gathered = precision.parameter_gather
    require(gathered in (compute, precision.linear), f"gathered parameters in {gathered}")
    narrow = gathered != compute
    # MXFP8 parameters travel in 16 bits, through the gradients' buffer
    lent = precision.low_precision_parameters and precision.scale_recipe == "mx" and not narrow
    require(
        precision.low_precision_parameters <= (narrow or lent), f"parameters held narrow and gathered in {gathered}"
    )
    if narrow or lent:
        flags["--fp8-param-gather"] = None
    if lent:
        flags["--reuse-grad-buf-for-mxfp8-param-ag"] = None
    if precision.low_precision_head:
        require(flags.get("--fp8-recipe") == "mxfp8", "a low-precision head that is not in MXFP8")
        flags["--fp8-output-proj"] = None
    return flags | _wide_layers(precision) | _gradients(precision) | _states(precision)


def _wide_layers(precision: Precision) -> Flags:
    """Layers at both ends that narrow nothing; Megatron-LM's numbers are 1 by default."""
    first, last = precision.high_precision_first_layers, precision.high_precision_last_layers
    if not first and not last:
        return {}
    return {
        "--first-last-layers-bf16": None,
        "--num-layers-at-start-in-bf16": str(first),
        "--num-layers-at-end-in-bf16": str(last),
    }


def scaling_word(precision: Precision) -> str:
    """The key of FP8_RECIPES."""
    if precision.scale_recipe == "mx":
        return "mx"
    return precision.scaling or ("block" if precision.scale_recipe == "block" else "current")


def _gradients(precision: Precision) -> Flags:
    """bf16 gradients are fp32 sums unless --grad-reduce-in-bf16; fp16 ones stay fp16 by default."""
    kinds = {precision.gradient, precision.reduce}
    require(len(kinds) == 1, f"gradients summed in {precision.gradient}, reduced in {precision.reduce}")
    require(kinds <= {"fp32", precision.compute}, f"gradients in {precision.gradient}")
    if precision.compute == "bf16":
        return {} if kinds == {"fp32"} else {"--grad-reduce-in-bf16": None}
    return {"--accumulate-allreduce-grads-in-fp32": None} if kinds == {"fp32"} else {}


def _states(precision: Precision) -> Flags:
    """Other than fp32 states are those of the precision-aware optimizer."""
    flags: Flags = {}
    if precision.moments != "fp32":
        require(precision.moments in ("fp16", "bf16", "fp8"), f"moments in {precision.moments}")
        flags |= {"--exp-avg-dtype": precision.moments, "--exp-avg-sq-dtype": precision.moments}
    if precision.master != "fp32":
        require(precision.master == "fp16", f"master weights in {precision.master or 'no copy'}")
        flags["--main-params-dtype"] = precision.master
    return flags | {"--use-precision-aware-optimizer": None} if flags else flags


def _dispatch(job: JobSpec) -> Flags:
    """Flags of the token dispatcher; DeepEP and HybridEP route in fp32 and are backends of the flex dispatcher. Tokens
    are priced as moved by Transformer Engine's fused kernel, which is off by default."""
    flags: Flags = {"--moe-grouped-gemm": None, "--moe-permute-fusion": None, "--moe-token-dispatcher-type": "alltoall"}
    if job.moe_dispatcher != "all_to_all":
        require(not job.overlap_shared_experts, f"overlapped shared experts beside {job.moe_dispatcher}")
    if job.moe_dispatcher == "all_gather":
        flags["--moe-token-dispatcher-type"] = "allgather"
    if job.sends_tokens_once:
        flags["--moe-token-dispatcher-type"] = "flex"
        deepep = job.moe_dispatcher == "deepep"
        flags |= {"--moe-enable-deepep": None} if deepep else {"--moe-flex-dispatcher-backend": "hybridep"}
    require(not (job.overlap_expert_a2a and job.overlap_shared_experts), "experts and shared experts overlapped")
    if job.sends_tokens_once or job.precision.router:
        flags["--moe-router-dtype"] = "fp32"
    if job.moe_router_fusion:
        flags["--moe-router-fusion"] = None
    if job.overlap_expert_a2a:
        flags["--overlap-moe-expert-parallel-comm"] = None
    if job.delay_wgrad:
        flags["--delay-wgrad-compute"] = None
    if job.overlap_shared_experts:
        flags["--moe-shared-expert-overlap"] = None
    return flags
