"""What a framework decides about training: the choices that change bytes and seconds but not the plan.

A preset is a file under configs/frameworks, with a source beside each value (configs/frameworks/legacy has what only
published runs of the past need):

    base = "megatron"

    [pipeline]
    schedules = ["1f1b", "zb-h1"]  # megatron/core/pipeline_parallel

Values that a file leaves out are those of the preset named ``base``, or else the defaults below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from spec.errors import ConfigError
from spec.files import CONFIGS, read_toml, shipped_folder
from spec.names import known_name
from spec.program.kinds import Several, Text, Whole, Word
from spec.settings.setting import section_values, settings_of

STRATEGIES = ("mtp", "fsp", "msp", "isp", "ulysses")
"""Tensor-parallel modes that a plan may name (ops.strategies)."""

RecomputedPart = Literal["moe_act", "layernorm", "norm", "dropout_norm", "mla_up_proj", "mlp", "shared_experts", "moe"]
OffloadedPart = Literal[
    "layer_input",
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
    "fused_group_mlp",
]
MAX_PADDING = 2**20  # of a vocabulary, many times the multiples in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The cross-entropy of the vocabulary's logits: its kernels and copies."""

    fused: bool = False
    """The loss kernel works on one copy of the logits, without an additional fp32 copy."""
    plain: bool = False
    """If not fused: PyTorch's own cross-entropy on an fp32 copy of the logits."""
    low_precision: bool = False
    """PyTorch's own cross-entropy reads and writes 16-bit logits, without an fp32 copy."""
    upcasts: bool = False
    """A fused loss reads an fp32 copy of the logits, made by a cast kernel, and copies it once more without the
    last token; the gradient takes that copy's place."""
    chunked: bool = False
    """Fused with the head, one chunk of tokens at a time: no logits are saved."""
    keeps_fp32_logits: bool = False
    """If not fused: the caller keeps its fp32 logits while the loss makes a softmax of its own."""
    gathers_logits: bool = False
    """Every tensor rank gathers the logits of the whole vocabulary and computes the whole loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """Partition of a layer, the vocabulary and the sequence over ranks, and what is communicated during which products."""

    strategies: Annotated[tuple[str, ...], Several(Text(means="names of ops.strategies"), least=1)] = ("mtp",)
    """Tensor-parallel strategies that it supports."""
    default_strategy: Annotated[str, Word(STRATEGIES)] = "mtp"
    """Strategy of a plan with tensor parallelism that names none."""
    axes: frozenset[Literal["tp", "cp", "pp", "ep"]] = frozenset({"tp", "cp", "pp", "ep"})
    """Axes that can split a model: matrices of layers (tp), sequences (cp), layers (pp), experts (ep)."""
    context_parallel: frozenset[Literal["ring", "all_gather", "all_to_all"]] = frozenset(
        {"ring", "all_gather", "all_to_all"}
    )
    """Kinds of context parallelism."""
    partial_attention: Literal["fused", "torch"] = "fused"
    """With cp, what merges partial attention results: Transformer Engine's fused kernels, or PyTorch's
    context_parallel in fp32, one elementwise kernel after another (ops.mixers.context_parallel)."""
    exchange_copies: Literal["reordered", "lists", "permuted"] = "reordered"
    """Copies around all-to-alls that exchange tokens for heads: Transformer Engine's packing and reordering of
    blocks, lists of tensors (InternEvo, XTuner), or one permutation (DeepSpeed; ops.head_exchange)."""
    kv_replication: bool = False
    """Key and value heads are replicated if they are fewer than tp; otherwise such plans are rejected."""
    vocab_pad_multiple: Annotated[int, Whole(most=MAX_PADDING)] = 128
    """The vocabulary is padded to a multiple of this on each tensor rank."""
    overlap: bool = False
    """With sequence parallelism, collectives inside one NVLink domain overlap with the GEMM that produces or
    consumes their array (Megatron-LM tp_comm_overlap; torchtitan's asynchronous tensor parallelism); the next
    six keys say how."""
    overlap_ag: bool = True
    """All-gathers overlap in pieces with the GEMM that reads them (tp_comm_overlap_ag; ops.tp_overlap)."""
    overlap_rs: bool = True
    """Reduce-scatters overlap in pieces with the forward GEMM that produces them (tp_comm_overlap_rs)."""
    overlap_rs_dgrad: bool = False
    """Reduce-scatters of input gradients overlap in pieces, too (tp_comm_overlap_rs_dgrad)."""
    overlap_rs_method: Literal["pipeline", "ring_exchange"] = "pipeline"
    """Pieces of a reduce-scatter: four, reduced on multiprocessors, or one per rank, sent by copy engines
    (Transformer Engine's ub_cfgs)."""
    bulk_dgrad: bool = True
    """The input is gathered again as a whole, overlapped with the GEMM of its gradient (tp_comm_bulk_dgrad).
    """
    bulk_wgrad: bool = True
    """The input gradient is reduced as a whole, overlapped with the GEMM of the weight gradient
    (tp_comm_bulk_wgrad)."""
    dtensor: bool = False
    """Layers are split as DTensors: linears that share an input reduce the sum of its gradients once, others
    reduce one each; gathers and reductions over several sequences copy the whole array (ops.tp_overlap)."""
    reduces_halves: bool = False
    """Blocks with parallel halves add up the partial outputs of both before one all-reduce (GPT-NeoX)."""
    overlap_backward: bool = True
    """Even without `overlap`, collectives of the backward overlap with the GEMM of the other gradient (arXiv
    2205.05198 sec. 4.2.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Partition of layers over stages, order of their passes, and messages between them."""

    schedules: Annotated[tuple[str, ...], Several(Text(means="names of solver.plans.schedules"), least=1)] = ("1f1b",)
    """Pipeline schedules that it supports (solver.plans.schedules)."""
    searched: bool = True
    """A search tries several stages by itself; where it does not, constraints and plans may specify them."""
    interleaves: bool = False
    """A stage may have several virtual chunks."""
    shards_weights: bool = True
    """ZeRO stages 2 and 3 work with pipeline stages."""
    partition: Literal["uniform", "with_embedding", "first_last", "by_cost"] = "uniform"
    """How layers are partitioned over stages: evenly ("uniform"), with embedding, final norm and head counted as
    a layer each ("with_embedding"), the embedding, and norm and head together ("first_last"), or by the cost
    of layers and head ("by_cost", solver.pipeline.stages)."""
    uneven_chunks: Literal["", "ends", "layout"] = ""
    """Partition of layers that do not divide over virtual chunks: unsupported (""), embedding and loss counted
    as a layer each ("ends"), or stage by stage as stated ("layout")."""
    fills_pipeline: bool = False
    """A step needs at least pp micro-batches."""
    keeps_gathered: bool = False
    """A stage gathers sharded parameters once per step, and accumulates whole gradients before it reduces them.
    """
    scattered_p2p: bool = False
    """Each tp rank sends a slice to the next stage, which gathers them (arXiv 2104.04473 sec. 4.1)."""
    partitioned_tensors: bool = False
    """Slices are gathered into zeroed buffers and copied out; a stage's own outputs are gathered again for its
    backward (DeepSpeed)."""
    overlap_p2p: bool = True
    """Interleaved stages compute while messages travel (Megatron-LM overlap_p2p_comm, its default where they
    exist)."""
    post_validation: bool = False
    """With a split backward, a stage updates and begins its next step before the others are done (arXiv
    2401.10241 sec. 4)."""
    keeps_stage_outputs: bool = False
    """A stage's output is resident from its forward to its backward; logits of the last stage until the next
    ones replace them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """Forwards that can run again in the backward."""

    selective: Literal["core_attn", "every_second_product", ""] = "core_attn"
    """What selective recomputation repeats: the attention core, every second product (ops.recompute) or nothing
    ("")."""
    layers: bool = True
    """Whole layers can be recomputed."""
    partial: bool = True
    """Some layers of a stage may be recomputed and others not."""
    modules: tuple[RecomputedPart, ...] = ()
    """Parts of layers that can be recomputed by name, without a whole layer."""
    recomputes_ends: bool = False
    """Full recomputation covers embedding and head, too."""
    keeps_frozen_inputs: bool = False
    """Inputs of fully frozen layers and their gradients are resident until the end of the backward (FSDP1,
    reentrant checkpoints)."""
    stops_early: bool = False
    """Recomputation of a layer ends as soon as the backward has what it needs, before the last product (PyTorch
    2.1, torch.utils.checkpoint with early_stop, not reentrant)."""
    keeps: frozenset[Literal["qkv", "context", "out", "up"]] = frozenset()
    """What full recomputation saves nevertheless: attention's inputs, its result, its output product, or gate
    and up (MaxText, remat_policy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layout of a layer's matrices and activations."""

    transformer_engine: bool = False
    """Layers are Megatron-Core's with Transformer Engine: its buffers and workspaces, weights stored in the
    format of the products, hooks for parameter gathers."""
    fused_activation: bool = True
    """A gated activation saves only its two inputs."""
    fused_limits: bool = False
    """Clamps inside a gated activation (gpt-oss) are part of its kernel (compiled)."""
    joined_gate: bool = True
    """Gate and up are one matrix."""
    joined_qkv: bool = True
    """Queries, keys and values are one matrix."""
    fused_casts: bool = False
    """Casts with scales of earlier steps run inside the kernel that produces their input (XLA)."""
    recasts_operands: bool = False
    """MXFP8 products save their inputs in 16 bits and cast them again in the backward, weights also in every
    forward (torchao)."""
    fused_sums: bool = False
    """Input gradients of several matrices are added up by the next kernel instead of one after another
    (compiled)."""
    grouped_kernel: bool = False
    """The product of all experts of a rank is one kernel that reads row counts on the device
    (torch._grouped_mm)."""
    looped_experts: bool = False
    """Experts run one after another on the tokens that chose them (transformers before version 5)."""
    keeps_joined_qkv: bool = False
    """Attention saves values as a view of the joined product, so the whole product is resident next to the
    rotated queries and keys."""
    transposes_chunks: bool = False
    """Experts padded to a capacity get their rows by copying a transposed view (PyTorch's strided kernel)."""
    sends_probabilities: bool = False
    """Routing probabilities follow the tokens in an all-to-all of their own."""
    copies_heads: bool = False
    """Queries, keys and values are copied out of their product, keys and values twice more into one tensor,
    gradients back."""
    splits_joined_qkv: bool = False
    """With rotary embeddings and a flash kernel, views of the joined product become tensors of their own, and a
    copy joins their gradients."""
    repeats_keys: bool = False
    """Keys and values are repeated for all query heads before a flash kernel (PyTorch's models before
    enable_gqa)."""
    norm_kernel: Literal["fused", "apex", "torch"] = "fused"
    """Whose norms run, where they are not written out: "fused" ones read a row once (Transformer Engine, a compiler), apex's
    twice and in the backward three times, and torch's own do not reach the rate of HBM."""
    shares_saved_inputs: bool = False
    """Low-precision products save no copy of an input that attention or the router saves in full, unless scales
    come from earlier steps (Transformer Engine's save_original_input)."""
    saved_attention: Literal["", "e5m6"] = ""
    """Format in which attention and the low-precision product after it save their shared tensor; "" for that of
    activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Work of the Python process for the device."""

    code: Literal["modules", "torch", "nanotron", "picotron", "compiled"] = "modules"
    """How its layers are written, a key of ops.cpu_overhead.CALLS: "modules" of many Python layers
    (Megatron-Core, Transformer Engine), plain "torch" modules, nanotron's or Picotron's own, or "compiled"
    code."""
    checks_numbers: bool = False
    """The CPU reads each loss before its backward, and gradients are read once more before their reduction, to
    detect NaN."""
    hooks_modules: bool = False
    """Stages 2 and 3 hook every gradient, stage 3 also every module, from Python (DeepSpeed)."""
    reads_positions: bool = False
    """The CPU reads the largest token position before every rotary embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """State that may live in the host's memory."""

    optimizer: Literal["backward", "step", ""] = ""
    """When gradients are sent to an optimizer on the host: "backward" (as they are produced), "step" (after the
    last one, with the device's part of the update at the same time), or "" if unsupported."""
    activations: bool = False
    """Saved activations of layers may be offloaded to the host."""
    modules: tuple[OffloadedPart, ...] = ()
    """Parts of layers whose saved activations may be offloaded, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """Accumulation and reduction of gradients, and sharding of parameters, optimizer and gradients."""

    zero_stages: Annotated[tuple[int, ...], Several(Whole(least=0, most=3), least=1)] = (0, 1)
    """ZeRO stages that it supports."""
    default_zero_stage: Annotated[int, Whole(least=0, most=3)] = 0
    """ZeRO stage of a plan that names neither a stage nor a size."""
    replicates_shards: bool = True
    """Ranks may hold the same shard of tp or cp: without ZeRO, or with shards over cp alone."""
    shards_over_cp: bool = False
    """A ZeRO group holds whole cp groups."""
    shards_around_ep: bool = False
    """Ranks of ep are ranks of tp and of one ZeRO group."""
    hybrid_zero: bool = True
    """zero_size may be smaller than the data-parallel group."""
    fp32_gradients: bool = False
    """Gradients are accumulated and reduced in fp32 instead of the format of the products."""
    reduction: Literal["gradient", "compute", "fp32"] = "gradient"
    """Format in which gradients are reduced: that of their accumulation, that of the products, or fp32 (FSDP2's
    MixedPrecisionPolicy, reduce_dtype)."""
    keeps_micro_gradients: bool = False
    """Gradients of one micro-batch, in the format of the products, are resident next to the accumulated ones.
    """
    sequence_gradient_dtype: Literal["fp32", ""] = ""
    """Format in which gradients are reduced over the parts of a sequence as well (ulysses); "" for that of all
    others."""
    bucket_elements: Annotated[int, Whole(least=0)] = 0
    """Elements of one gradient bucket; 0 for one reduction per layer."""
    bucket_elements_per_rank: Annotated[int, Whole(least=0)] = 0
    """Least elements of a bucket per data-parallel rank."""
    gradient_sync: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """How gradients of a sharded optimizer are reduced: "reduce_scatter" or "all_reduce"."""
    parameter_sync: Literal["all_gather", "broadcast"] = "all_gather"
    """How updated shards are distributed: "all_gather" or "broadcast"."""
    gathers_every_forward: bool = False
    """Stage 2 gathers parameters in every forward instead of once per step."""
    overlap_grad_reduce: bool = True
    """Gradient reduction overlaps with the last backward, at stage 2 with every one (at stage 3 always)."""
    overlap_param_gather: bool = True
    """The gather of updated parameters overlaps with the first forward."""
    separate_ends: bool = False
    """Untied embedding and head are units of their own, not part of FSDP's outermost one."""
    reduces_once: bool = False
    """Sharded gradients of a step's micro-batches are accumulated whole and reduced in the last backward (FSDP
    under no_sync or set_requires_gradient_sync)."""
    overlap_weights: bool = True
    """Sharded weights are prefetched."""
    contiguous_gradients: bool = False
    """Gradients are reduced from one contiguous buffer instead of through a bucket."""
    flattened_buckets: bool = False
    """Gradients are copied into a bucket and back, and averaged on the way, not in a pass of their own."""
    clips_gradients: bool = True
    """The gradient norm is computed before the update, and gradients are clipped."""
    divides_buckets: bool = False
    """Flattened buckets are divided by the number of ranks in a pass of their own."""
    sliced_collectives: bool = False
    """Sharded parameters and gradients are communicated one by one, as lists of slices that the CPU copies
    (sliced_collectives)."""
    lists_of_slices: bool = False
    """Updated shards return in one all-gather of lists of slices: into a flat buffer, from there into one per
    rank, and into the parameters."""
    fsdp_version: Annotated[int, Whole(least=0, most=2)] = 0
    """PyTorch's FSDP: 1 gathers into a flat parameter, and joins, casts and divides gradients before their
    reduction; 2 copies parameters out of a gather and gradients into a reduction; 0: another framework."""
    shards_master: bool = False
    """The optimizer's own copy of parameters is what is sharded and gathered, and gradients are kept in its
    format (FSDP's MixedPrecision, FSDP2's MixedPrecisionPolicy)."""
    keeps_buckets: bool = False
    """Buckets are flat copies of all gradients in the parameters' format and stay resident (torch's
    DistributedDataParallel without gradient_as_bucket_view)."""
    keeps_dummy_wgrad: bool = False
    """Products that accumulate weight gradients themselves return a dummy gradient to autograd, one per shape
    stays (Transformer Engine 2.3 and later, ``module/base.py``, get_dummy_wgrad)."""
    fresh_gradients: bool = False
    """Gradients are freed after the update and allocated again in the next backward (torch's zero_grad)."""
    gathered_layers: Annotated[int, Whole(least=1, most=8)] = 2
    """Layers whose gathered weights are resident at once, prefetched ones included."""
    live_elements: Annotated[int, Whole(least=0)] = 0
    """Elements that stage 3 gathers ahead at most; 0 if it counts layers instead."""
    low_precision_weights: frozenset[Literal["tensor", "mx"]] = frozenset()
    """Scale recipes whose weights are stored in low precision only; with one scale per tensor they are gathered
    so, too (fp8_param_gather)."""
    casts_shards: bool = False
    """Weights of products with one scale per tensor are cast before they are gathered (XLA)."""
    update_copies: bool = False
    """The update is elementwise operations, which write square roots of the second moments (torch's AdamW, not
    fused)."""
    accumulation: Literal["accumulate_fp32", "accumulate_16bit", "accumulate_wide", "accumulate", ""] = (
        "accumulate_fp32"
    )
    """The kernel of ops.memory_bound that accumulates the weight gradients of micro-batches; "" where sharded
    gradients are added in small pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConvention:
    """FLOPs of a step as the framework's own log counts them (solver.problem.model_flops)."""

    attention: Literal["whole", "half", ""] = ""
    """Which part of a causal attention matrix its log counts: "whole" or "half"; "" if no source says."""
    repeats: Literal["layers", "all", ""] = ""
    """What of a recomputed forward its log counts: "layers", "all" (head and selectively recomputed attention
    included) or nothing ("")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPreset:
    """One framework's choices, by what they are about; what is left out holds for most frameworks."""

    name: str
    data_parallel: DataParallel = field(default_factory=DataParallel)
    tensor_parallel: TensorParallel = field(default_factory=TensorParallel)
    loss: Loss = field(default_factory=Loss)
    pipeline: Pipeline = field(default_factory=Pipeline)
    recomputation: Recomputation = field(default_factory=Recomputation)
    layers: Layers = field(default_factory=Layers)
    host: Host = field(default_factory=Host)
    offload: Offload = field(default_factory=Offload)
    log: LogConvention = field(default_factory=LogConvention)

    def changed(self, choices: Mapping[str, Any]) -> "FrameworkPreset":
        """The same framework with other choices, by names such as ``pipeline.interleaves``.

        Raises TypeError or AttributeError for a choice that does not exist.
        """
        preset = self
        for name, value in choices.items():
            group, _, choice = name.partition(".")
            preset = replace(preset, **{group: replace(getattr(preset, group), **{choice: value})})
        return preset


def framework_names(*, legacy: bool = False) -> tuple[str, ...]:
    """Returns the names of the presets under configs/frameworks, sorted; with ``legacy`` those of the past as well."""
    return tuple(sorted(_files(legacy=legacy)))


ALIASES = {
    "megatron-lm": "megatron",
    "megatron-core": "megatron",
    "mcore": "megatron",
    "fsdp2": "fsdp",
    "pytorch": "fsdp",
    "transformers": "hf-trainer",
}
"""What people call a framework -> its preset."""


@cache
def framework_preset(name: str) -> FrameworkPreset:
    """Returns the preset of a framework, legacy ones too, by the name of its file.

    Raises ConfigError for an unknown name, and for a file with an unknown key or a value that a key does not take.
    """
    files = _files(legacy=True)
    file = files.get(name) or files.get(known_name(name, framework_names(), ALIASES) or "")
    if file is None:
        allowed = f"one of {', '.join(framework_names())}"
        raise ConfigError(where="--framework", key="framework", value=name, allowed=allowed)
    top = read_toml(file)
    choices = section_values(top, settings_of(FrameworkPreset))
    # Bases are presets themselves, and may have bases.
    base = framework_preset(top.text("base")) if top.has("base") else FrameworkPreset(name=file.stem)
    top.close()
    return replace(base, name=file.stem).changed(choices)


def _files(*, legacy: bool) -> dict[str, Path]:
    folder = shipped_folder() / CONFIGS / "frameworks"
    return {file.stem: file for file in (*folder.glob("*.toml"), *(folder.glob("legacy/*.toml") if legacy else ()))}
