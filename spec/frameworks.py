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
from spec.program.kinds import Several, Text, Whole
from spec.settings.setting import Settings, section_values, settings_of

STRATEGIES = ("mtp", "fsp", "msp", "isp", "ulysses")
"""Tensor-parallel modes that a plan may name (ops.strategies)."""

RecomputedPart = Literal[
    "moe_act", "layernorm", "norm", "dropout_norm", "mla_up_proj", "mlp", "shared_experts", "moe"
]
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
    """How the cross-entropy of the vocabulary's logits is computed."""

    fused: bool = False
    """One copy of the logits instead of an fp32 copy beside them."""
    plain: bool = False
    """Unfused, it is PyTorch's own cross-entropy on an fp32 copy of the logits."""
    narrow: bool = False
    """PyTorch's own cross-entropy reads and makes the logits' own 16 bits, without an fp32 copy."""
    upcasts: bool = False
    """A fused loss reads an fp32 copy of the logits, made by a kernel of its own, and of it another one without the
    last token, whose place its gradient takes."""
    chunked: bool = False
    """Fused with the head, a chunk of tokens after another: no logits are kept."""
    holds_logits: bool = False
    """Unfused, whoever calls the loss holds its fp32 logits while it makes a softmax of its own beside them."""
    gathers_logits: bool = False
    """Every tensor rank gathers the whole vocabulary's logits and computes the whole loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """How a layer, the vocabulary and the sequence are cut over ranks, and what is communicated beside what."""

    strategies: Annotated[tuple[str, ...], Several(Text(means="names of ops.strategies"), least=1)] = ("mtp",)
    """Tensor-parallel modes it can run."""
    axes: frozenset[Literal["tp", "cp", "pp", "ep"]] = frozenset({"tp", "cp", "pp", "ep"})
    """Axes over which it can cut a model: matrices of layers (tp), sequences (cp), layers (pp) and experts (ep)."""
    partial_attention: Literal["fused", "torch"] = "fused"
    """Where sequences are cut over cp, what merges attention to their parts: Transformer Engine's fused
    kernels, or PyTorch's context_parallel in fp32, one elementwise kernel after another
    (ops.mixers.context_parallel)."""
    exchange_copies: Literal["reordered", "lists", "permuted"] = "reordered"
    """What all-to-alls that exchange tokens for heads copy beside: Transformer Engine's packing and order of
    blocks, lists of tensors (InternEvo, XTuner), or one permutation (DeepSpeed; ops.head_exchange)."""
    kv_replication: bool = False
    """Key and value heads fewer than tp are replicated instead of refused."""
    vocab_pad_multiple: Annotated[int, Whole(most=MAX_PADDING)] = 128
    """The vocabulary is padded to a multiple of this on each tensor rank."""
    overlap: bool = False
    """Under sequence parallelism collectives overlap the GEMM that makes or uses their array, inside one NVLink domain
    (Megatron-LM tp_comm_overlap; torchtitan's asynchronous tensor parallelism); how, the next six say."""
    overlap_ag: bool = True
    """All-gathers in pieces as a GEMM reads them (tp_comm_overlap_ag; ops.tp_overlap)."""
    overlap_rs: bool = True
    """Reduce-scatters in pieces as the forward's GEMM makes them (tp_comm_overlap_rs)."""
    overlap_rs_dgrad: bool = False
    """The same of input gradients (tp_comm_overlap_rs_dgrad)."""
    overlap_rs_method: Literal["pipeline", "ring_exchange"] = "pipeline"
    """In which pieces: four reduced on multiprocessors, or one a rank sent by copy engines (Transformer
    Engine's ub_cfgs).
    """
    bulk_dgrad: bool = True
    """The input gathered again, whole, beside the GEMM of its gradient (tp_comm_bulk_dgrad)."""
    bulk_wgrad: bool = True
    """The input gradient reduced, whole, beside the weight gradient's GEMM (tp_comm_bulk_wgrad)."""
    dtensor: bool = False
    """Layers are cut as DTensors: linears that share an input add up its gradients and reduce the sum once, else each
    reduces its own, and gathers and reductions over several sequences of a micro-batch copy the whole array, which
    they join along its first dimension (ops.tp_overlap)."""
    reduces_halves: bool = False
    """Blocks whose halves stand side by side add up both halves' partial outputs before these are reduced,
    once (GPT-NeoX).
    """
    overlap_backward: bool = True
    """Without overlap too, collectives of the backward run beside the other gradient's GEMM (arXiv 2205.05198
    sec. 4.2.2).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How layers are partitioned over stages, in which order stages compute and how they hand on."""

    schedules: Annotated[tuple[str, ...], Several(Text(means="names of solver.plans.schedules"), least=1)] = (
        "1f1b",
    )
    """Schedules it can run, by solver.plans.schedules' names."""
    interleaves: bool = False
    """A stage may hold several virtual chunks."""
    shards_weights: bool = True
    """Gradients and parameters of stages may be sharded (ZeRO stages 2 and 3)."""
    partition: Literal["uniform", "with_embedding", "first_last", "by_cost"] = "uniform"
    """How layers are partitioned over stages: equally many ("uniform"), with embedding, final norm and head counted
    as a layer each ("with_embedding"), the embedding, and norm and head together ("first_last"), or by the cost of
    layers and head ("by_cost", solver.pipeline.stages)."""
    uneven_chunks: Literal["", "ends", "layout"] = ""
    """How layers are partitioned that do not divide over virtual chunks: not at all (""), embedding and loss counted as
    a layer each ("ends"), or stage by stage as written ("layout")."""
    fills_pipeline: bool = False
    """At least pp micro-batches are wanted."""
    keeps_gathered: bool = False
    """A stage gathers sharded parameters once a step, and adds up whole gradients before it reduces them."""
    scattered_p2p: bool = False
    """tp ranks send a slice each to the next stage and gather there (arXiv 2104.04473 sec. 4.1)."""
    partitioned_tensors: bool = False
    """Slices are gathered into zeros and copied out, and a stage's own outputs again for its backward (DeepSpeed)."""
    overlap_p2p: bool = True
    """Interleaved stages compute beside their messages (Megatron-LM overlap_p2p_comm, its default where they exist)."""
    post_validation: bool = False
    """A stage whose backwards are split updates, and begins its next step, before all are done (arXiv
    2401.10241 sec. 4).
    """
    keeps_stage_outputs: bool = False
    """A stage's output stays from its forward to its backward, the last one's logits until the next take
    their place.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """Which forwards can run again in the backward."""

    selective: Literal["core_attn", "every_second_product", ""] = "core_attn"
    """What selective recomputation repeats: the attention core, every second product (ops.recompute) or ""
    (nothing).
    """
    layers: bool = True
    """Whole layers can run again."""
    partial: bool = True
    """Some layers of a stage may be recomputed and others not."""
    modules: tuple[RecomputedPart, ...] = ()
    """Parts of layers that can run again by name, beside no whole layer."""
    recomputes_ends: bool = False
    """Full recomputation repeats embedding and head as it does layers."""
    keeps_frozen_inputs: bool = False
    """Inputs of wholly frozen layers and their gradients stay to the backward's end (FSDP1, reentrant checkpoints)."""
    stops_early: bool = False
    """Recomputation of layers ends once everything the backward needs is back, before the layer's last product
    (PyTorch 2.1, torch.utils.checkpoint with early_stop, not reentrant)."""
    keeps: frozenset[Literal["qkv", "context", "out", "up"]] = frozenset()
    """What attention reads or makes, its output product, or gate and up: kept by full recomputation and not
    made again (MaxText, remat_policy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """How a layer's matrices and activations are laid out."""

    transformer_engine: bool = False
    """Layers are Megatron-Core's with Transformer Engine's products: their buffers and workspaces, weights held in the
    products' format, hooks of parameters' gathers."""
    fused_activation: bool = True
    """A gated activation keeps only its two inputs."""
    fused_limits: bool = False
    """Limits on what a gated activation takes (gpt-oss) are part of its kernel (compiled)."""
    joined_gate: bool = True
    """Gate and up are one matrix."""
    joined_qkv: bool = True
    """Queries, keys and values are one matrix."""
    fused_casts: bool = False
    """Casts by scales of earlier steps run inside the kernel that makes what they read (XLA)."""
    casts_again: bool = False
    """Products with MXFP8's scales keep what they read in 16 bits and cast it again in the backward, weights
    too in every forward (torchao)."""
    fused_sums: bool = False
    """Input gradients of several matrices are added up by the kernel that follows instead of one after
    another (compiled).
    """
    grouped_kernel: bool = False
    """A product of all experts of a rank is one kernel, which reads their rows on the device (torch._grouped_mm)."""
    keeps_joined_qkv: bool = False
    """Attention keeps values as a view of the joined product, all of which so stays beside the rotated
    queries and keys.
    """
    turns_chunks: bool = False
    """Experts padded to a capacity get their rows by a copy of a transposed view, by PyTorch's kernel for strides."""
    sends_probabilities: bool = False
    """Behind the tokens of an all-to-all travel their probabilities, by an all-to-all of their own."""
    copies_heads: bool = False
    """Queries, keys and values are copied out of their product, keys and values twice more into one tensor,
    gradients back.
    """
    splits_joined_qkv: bool = False
    """With rotary embeddings and a flash kernel, views of the joined product of queries, keys and values become
    tensors of their own (values, queries that share keys), and their gradients are put together by a copy."""
    repeats_keys: bool = False
    """Keys and values are copied to as many heads as queries have before a flash kernel (PyTorch's models
    before enable_gqa).
    """
    two_pass_norms: bool = False
    """Fused norms are apex's: they read a row twice, and three times backward, where persistent kernels keep it."""
    shares_kept_inputs: bool = False
    """Narrow products keep no copy of an input that attention or the router keep whole, unless scales come
    from earlier steps (Transformer Engine's save_original_input)."""
    kept_attention: Literal["", "e5m6"] = ""
    """Format of what attention and the narrow product after it keep once; "" as activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the Python process does for the device."""

    code: Literal["modules", "torch", "nanotron", "picotron", "compiled"] = "modules"
    """How its layers are written, a key of ops.cpu_overhead.CALLS: "modules" of many Python layers
    (Megatron-Core, Transformer Engine), plain "torch" modules, nanotron's or Picotron's own, or "compiled" code."""
    checks_numbers: bool = False
    """The host reads each loss before its backward, gradients are read again before they are reduced: to find
    what is no number.
    """
    hooks_modules: bool = False
    """Stages 2 and 3 hook every gradient, stage 3 also every module, from Python (DeepSpeed)."""
    reads_positions: bool = False
    """The host reads the largest position of the tokens before every layer's rotary embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What may live in the host's memory."""

    optimizer: Literal["backward", "step", ""] = ""
    """When gradients leave for an optimizer on the host: "backward" (as they are made), "step" (after the last,
    the device's own part of the update beside the host's), or "" where there is none."""
    activations: bool = False
    """Layers may keep what they save on the host."""
    modules: tuple[OffloadedPart, ...] = ()
    """Parts of layers that may keep there what they save, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How gradients are added up and reduced, and parameters, optimizer and gradients sharded."""

    zero_stages: Annotated[tuple[int, ...], Several(Whole(least=0, most=3), least=1)] = (0, 1)
    """Sharding stages it can run."""
    hybrid_zero: bool = True
    """zero_size may be smaller than the data-parallel group."""
    fp32_gradients: bool = False
    """Gradients accumulate and travel in fp32 instead of the format of the products."""
    reduction: Literal["gradient", "compute", "fp32"] = "gradient"
    """Format in which gradients travel: that in which they accumulate, that of the products, or fp32 (FSDP2's
    MixedPrecisionPolicy, reduce_dtype)."""
    keeps_micro_gradients: bool = False
    """Gradients of one micro-batch, in the format of the products, stay beside those that accumulate."""
    sequence_gradient_dtype: Literal["fp32", ""] = ""
    """Format in which gradients travel that are summed over the parts of a sequence as well (ulysses), "" for that of
    all others."""
    bucket_elements: Annotated[int, Whole(least=0)] = 0
    """Elements of one gradient reduction, 0 for one reduction a layer."""
    bucket_elements_per_rank: Annotated[int, Whole(least=0)] = 0
    """A bucket holds at least so many elements for each data-parallel rank."""
    gradient_sync: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """How gradients of a sharded optimizer are reduced: "reduce_scatter" or "all_reduce"."""
    parameter_sync: Literal["all_gather", "broadcast"] = "all_gather"
    """How updated shards return: "all_gather" or "broadcast"."""
    gathers_every_forward: bool = False
    """Stage 2 gathers parameters in every forward instead of once a step."""
    overlap_grad_reduce: bool = True
    """Gradients are reduced beside the last backward, at stage 2 beside every one (at stage 3 always)."""
    overlap_param_gather: bool = True
    """Updated parameters return beside the first forward."""
    separate_ends: bool = False
    """Embedding and head that share no weights are units of their own beside the layers, not FSDP's outermost one."""
    reduces_once: bool = False
    """Sharded gradients of a step's micro-batches are added up whole and reduced in the last backward (FSDP under
    no_sync or set_requires_gradient_sync)."""
    overlap_weights: bool = True
    """Sharded weights are gathered ahead."""
    contiguous_gradients: bool = False
    """Gradients lie in one buffer and travel from there instead of through a bucket."""
    flattened_buckets: bool = False
    """Gradients are copied into a bucket to travel and back, and averaged on the way, not by a pass of their own."""
    clips_gradients: bool = True
    """The norm of gradients is taken before the update, and they are scaled to a limit."""
    divides_buckets: bool = False
    """Flattened buckets are divided by the number of ranks in a pass of their own before they travel."""
    sliced_collectives: bool = False
    """Sharded parameters and gradients travel one by one, as lists of slices that the host copies
    (sliced_collectives).
    """
    lists_of_slices: bool = False
    """Updated shards return as one all-gather of lists, a slice of every parameter from every rank: into a flat
    buffer, out of it into one a rank, and from there into the parameters."""
    fsdp_version: Annotated[int, Whole(least=0, most=2)] = 0
    """PyTorch's FSDP: 1 gathers parameters into the flat one that they are views of, and joins, casts and divides
    gradients before it reduces them; 2 copies parameters out of a gather and gradients into a reduction; 0: another."""
    shards_master: bool = False
    """What is sharded is the optimizer's own copy of parameters, of which layers gather theirs, and gradients are kept
    in its format (FSDP's MixedPrecision, FSDP2's MixedPrecisionPolicy)."""
    keeps_buckets: bool = False
    """Buckets that leave in the backward are flat copies of all gradients in the parameters' format and stay (torch's
    DistributedDataParallel without gradient_as_bucket_view)."""
    keeps_stand_ins: bool = False
    """Products that add up weight gradients themselves hand an empty one to autograd, of which one of each
    shape stays (Transformer Engine 2.3 and later, ``module/base.py``, get_dummy_wgrad)."""
    fresh_gradients: bool = False
    """Gradients are let go of after the update and made anew in the next backward (torch's zero_grad)."""
    gathered_layers: Annotated[int, Whole(least=1, most=8)] = 2
    """Layers whose gathered weights live at once: those in use and those coming."""
    live_elements: Annotated[int, Whole(least=0)] = 0
    """Elements that are gathered ahead at stage 3 until so many are whole at once, 0 where layers are counted
    instead.
    """
    held_narrow: frozenset[Literal["tensor", "mx"]] = frozenset()
    """Scales of formats whose weights are held narrow alone, and with a scale of the whole tensor gathered so
    (fp8_param_gather).
    """
    casts_shards: bool = False
    """Weights that products with a scale of the whole tensor read are cast before they are gathered (XLA)."""
    update_copies: bool = False
    """The update runs in elementwise operations, which make square roots of the second moments beside them
    (torch's AdamW, not fused).
    """
    accumulation: Literal["accumulate_fp32", "accumulate_16bit", "accumulate_wide", "accumulate", ""] = (
        "accumulate_fp32"
    )
    """The kernel of ops.memory_bound that adds a micro-batch's weight gradients to the sum; "" where sharded
    gradients are added in small pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the framework's own log counts as a step's FLOPs (solver.problem.result)."""

    attention: Literal["whole", "half", ""] = ""
    """Of a causal attention matrix its log counts the "whole" or "half"; "": no source says."""
    repeats: Literal["layers", "all", ""] = ""
    """Of a recomputed forward its log counts the "layers", "all" (the head too, and selectively recomputed
    attention) or nothing ("")."""


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
    log: Log = field(default_factory=Log)

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


@cache
def framework_preset(name: str) -> FrameworkPreset:
    """Returns the preset of a framework, legacy ones too, by the name of its file.

    Raises ConfigError for an unknown name, and for a file with an unknown key or a value that a key does not take.
    """
    file = _files(legacy=True).get(name)
    if file is None:
        allowed = f"one of {', '.join(framework_names())}"
        raise ConfigError(where="--framework", key="framework", value=name, allowed=allowed)
    top = read_toml(file)
    choices = section_values(top, _settings())
    base = framework_preset(top.text("base")) if top.has("base") else FrameworkPreset(name=name)
    top.close()
    return replace(base, name=name).changed(choices)


@cache
def _settings() -> Settings:
    return settings_of(FrameworkPreset)


def _files(*, legacy: bool) -> dict[str, Path]:
    folder = shipped_folder() / CONFIGS / "frameworks"
    return {
        file.stem: file
        for file in (*folder.glob("*.toml"), *(folder.glob("legacy/*.toml") if legacy else ()))
    }
