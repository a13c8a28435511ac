"""The context of a layer's operations: model, job, the degrees as columns, and the strategy that cuts them."""

from dataclasses import dataclass, field

from ops.layout import Layout
from ops.op import Axis, Owner, Pass
from ops.roles import Module, OpKey
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec, NormPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCopies:
    """Groups of ranks that hold copies of each owner's weights: over them gradients are summed and ZeRO shards.

    ``linear_owner`` owns the linears' weights; norms, embedding and head's norm are DENSE. ``dense`` is the
    group that holds the same DENSE weights; ZeRO cuts over ``zero_shard``, a part of it, and repeats over
    ``zero_replicate``.
    """

    linear_owner: Owner = Owner.DENSE
    dense: Axis = Axis.DP_CP
    zero_shard: Axis = Axis.ZERO_SHARD
    zero_replicate: Axis = Axis.ZERO_REPLICATE

    @property
    def has_weight_groups(self) -> bool:
        """Returns whether weights are cut over wp; elsewhere wp is 1."""
        return self.linear_owner is Owner.WEIGHT

    def axes(self, owner: Owner) -> tuple[Axis, Axis]:
        """Returns the ranks over which gradients of ``owner``'s weights are summed, and those over which ZeRO cuts what
        belongs to them."""
        if owner is Owner.DENSE:
            return self.dense, self.zero_shard
        axis = Axis.WDP if owner is Owner.WEIGHT else Axis.EDP
        return axis, axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The facts of a strategy that hold for all degrees; the defaults are Megatron-LM's tensor parallelism."""

    cuts_matrices: bool = True
    """Matrices are cut over tp, and multiply the tokens of all tp ranks; else whole ones a rank's own tokens, which it
    also looks up in its table."""
    cuts_tokens: bool = False
    """Tokens are cut over tp between the linears (norms, residual stream)."""
    saves_shards: bool = False
    """The saved input of a column-parallel linear is a rank's own part of the tokens."""
    cuts_embedding: bool = True
    """The embedding's table is cut over tp."""
    copies: WeightCopies = field(default_factory=WeightCopies)
    """Who owns its weights, and over which ranks gradients are summed and ZeRO shards."""
    uncut: bool = False
    """Plans that cut nothing are listed as this strategy's; of all strategies one says so."""
    assembles: tuple[Collective | None, Collective | None] = (Collective.ALL_REDUCE, None)
    """What brings the embedding's output together forward, and its gradient backward."""
    cuts_vocabulary: bool = True
    """The head's columns, and so the logits, are cut over tp."""
    exchanges_heads: bool = False
    """Tokens are exchanged for heads around the attention kernel (Sharding.around_attention)."""
    gathers_weights: bool = False
    """Weights are gathered around each linear, and their gradients reduced (Sharding.weights)."""
    repeats_kv_heads: bool = False
    """Key and value heads fewer than tp are repeated, whatever the framework."""
    cuts_experts: bool = True
    """Matrices of experts may be cut over etp."""
    pipelined: bool = True
    """It runs in several pipeline stages."""
    deepest_stage_with_ep: int = 3
    """The deepest ZeRO stage that experts cut over ep run beside."""
    shares_gathered_input: bool = False
    """Two linears that read one gathered input keep it as one tensor, whose gradient is reduced once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensor:
    """An activation of ``dim`` channels for each of a layer's ``heads``; ``repeats``: fewer heads than ranks are
    repeated, also where others of the layer suffice."""

    name: str
    heads: int
    dim: int
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTensors:
    """Activations that go ``into`` the part of a mixer that needs the whole sequence of some heads, and come ``out``;
    ``module`` is the mixer's."""

    module: Module
    into: tuple[HeadTensor, ...]
    out: tuple[HeadTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How one strategy cuts weights and tokens, and what it communicates: nothing, unless a method says so.

    Its ``name`` stands in plans, files and reports; code reads its ``traits`` and never its name.
    """

    name: str = ""
    traits: Traits = field(default_factory=Traits)

    def column_parallel_input(self, context: "LayerContext", linear: OpKey, width: int) -> Pass:
        """Returns the communication before the column-parallel ``linear`` of ``width`` inputs."""
        return Pass()

    def row_parallel_output(self, context: "LayerContext", linear: OpKey) -> Pass:
        """Returns the communication after the row-parallel ``linear``."""
        return Pass()

    def around_attention(self, context: "LayerContext", tensors: HeadTensors) -> tuple[Pass, Pass]:
        """Returns the communication just before and just after the core of what mixes tokens."""
        return Pass(), Pass()

    def weights(self, context: "LayerContext", linear: OpKey, elements: IntArray) -> Pass:
        """Returns the gathers of the weights of ``linear`` and the reductions of their gradient."""
        return Pass()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """One model and job under N layouts, cut by the strategy ``sharding``; ``norm_place`` is that of the block at
    hand.

    Tokens of one micro-batch on one rank: ``tokens`` after the context-parallel split and before any tensor-parallel
    one, ``sequence`` of them from each sequence, of which a mixer's core holds ``core_sequence`` at a time;
    ``norm_rows`` between the linears, ``gemm_rows`` that linears multiply, ``saved_rows`` of which a column-parallel
    linear saves its input. ``activation_bytes`` are those of one element.

    Gradients of dense weights and of experts travel in ``reduce_dtype``: the preset's own where ranks that hold parts
    of one sequence hold the same weights, else the job's. Context parallelism ``exchanges_context``, tokens for
    heads; else keys and values travel a ring.
    """

    model: ModelSpec
    job: JobSpec
    layout: Layout
    sharding: Sharding = field(default_factory=Sharding)
    norm_place: NormPlace = NormPlace.BEFORE
    traits: Traits = field(init=False, repr=False, compare=False)
    activation_bytes: float = field(init=False, repr=False, compare=False)
    reduce_dtype: str = field(init=False, repr=False, compare=False)
    exchanges_context: bool = field(init=False, repr=False, compare=False)
    sequence: IntArray = field(init=False, repr=False, compare=False)
    core_sequence: IntArray = field(init=False, repr=False, compare=False)
    tokens: IntArray = field(init=False, repr=False, compare=False)
    norm_rows: IntArray = field(init=False, repr=False, compare=False)
    gemm_rows: IntArray = field(init=False, repr=False, compare=False)
    saved_rows: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The columns are computed once: every operation of every layer reads them, and N may be a million.
        layout, sharding = self.layout, self.sharding
        whole = layout.constant(self.job.seq_len)
        sequence = ceil_div(whole, layout.cp)
        exchanges = self.job.context_parallel == "all_to_all"
        tokens = layout.micro_batch * sequence
        reduce_dtype: str = self.job.precision.reduce
        # Ulysses: ranks that hold parts of one sequence hold the same weights, so gradients are summed over sequence
        # ranks as well, in a format that some frameworks set apart.
        if sharding.traits.copies.dense is Axis.SDP:
            reduce_dtype = self.job.preset.data_parallel.sequence_gradient_dtype or reduce_dtype
        columns = {
            "traits": sharding.traits,
            "activation_bytes": dtype_bytes(self.job.precision.activation),
            "reduce_dtype": reduce_dtype,
            "exchanges_context": exchanges,
            "sequence": sequence,
            # All-to-all gives a rank whole sequences of fewer heads; a ring leaves it its part of the tokens.
            "core_sequence": whole if exchanges else sequence,
            "tokens": tokens,
            "norm_rows": ceil_div(tokens, layout.tp_if(sharding.traits.cuts_tokens)),
            "gemm_rows": ceil_div(tokens, layout.tp_if(not sharding.traits.cuts_matrices)),
            "saved_rows": ceil_div(tokens, layout.tp_if(sharding.traits.saves_shards)),
        }
        for name, column in columns.items():
            # the dataclass is frozen; these fields are derived, not given
            object.__setattr__(self, name, column)

    @property
    def parameter_bytes(self) -> float:
        """Returns the bytes of one parameter element as it is computed with."""
        return dtype_bytes(self.job.precision.parameter)

    def activations(self, rows: IntArray, width: IntArray | int) -> FloatArray:
        """Returns the bytes of a rows x width activation."""
        return self.activation_bytes * rows * width


def keeps_gathered(job: JobSpec, layout: Layout) -> BoolArray:
    """Returns the rows whose stages gather sharded parameters in the first forward of a step and keep them, add up
    whole gradients, and reduce them in the last backward (FSDP on stages: torch/distributed/pipelining/stage.py,
    backward_maybe_with_nosync)."""
    return bools((layout.pp > 1) & (layout.zero_stage >= 2) & job.preset.pipeline.keeps_gathered)


def reduces_once(job: JobSpec, layout: Layout) -> BoolArray:
    """Returns the rows that add up whole gradients of their micro-batches and reduce them in the last backward: those
    that keep gathered parameters, and others of several micro-batches where the preset says so (accelerate
    ``accelerator.py``, no_sync; Lightning ``fabric/strategies/fsdp.py``, _FSDPBackwardSyncControl)."""
    waits = (layout.zero_stage >= 2) & (num_micro(job, layout) > 1) & job.preset.data_parallel.reduces_once
    return bools(keeps_gathered(job, layout) | waits)


def has_separate_ends(job: JobSpec, model: ModelSpec) -> bool:
    """Returns whether embedding and head are units of their own (torchtitan ``distributed/fsdp.py``, since July 2025;
    OLMo-core ``nn/transformer/model.py``, apply_fsdp)."""
    return job.preset.data_parallel.separate_ends and not model.tied_embeddings


def num_micro(job: JobSpec, layout: Layout) -> IntArray:
    """Returns the micro-batches of a step."""
    return job.global_batch_sequences // (layout.dp * layout.micro_batch)


def padded_to_ranks(elements: IntArray, ranks: IntArray, element_bytes: float) -> IntArray:
    """Returns the bytes of ``elements`` rounded up so that every rank holds a whole number of them."""
    return (ceil_div(elements, ranks) * ranks * element_bytes).astype("int64")
