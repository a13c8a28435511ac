"""What every operation of a layer is written from: model, job, the degrees as columns, and the strategy that cuts them."""

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
        """True where weights are cut over wp; elsewhere wp is 1."""
        return self.linear_owner is Owner.WEIGHT

    @property
    def over_sequence(self) -> bool:
        """True where ranks that hold parts of one sequence over tp hold the same DENSE weights."""
        return self.dense is Axis.SDP

    def copy_axis(self, owner: Owner) -> Axis:
        """Ranks over which gradients of ``owner``'s weights are summed."""
        return {Owner.DENSE: self.dense, Owner.WEIGHT: Axis.WDP, Owner.EXPERT: Axis.EDP}[owner]

    def shard_axis(self, owner: Owner) -> Axis:
        """Ranks over which ZeRO cuts what belongs to ``owner``'s weights."""
        return {Owner.DENSE: self.zero_shard, Owner.WEIGHT: Axis.WDP, Owner.EXPERT: Axis.EDP}[owner]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is true of a strategy whatever its degrees are; the defaults are Megatron-LM's tensor parallelism."""

    cuts_matrices: bool = True
    """Matrices are cut over tp, and multiply the tokens of all tp ranks; else whole ones a rank's own tokens."""
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
    """Tokens are exchanged for heads around the attention kernel."""
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
    """What goes ``into`` the part of a mixer that needs the whole sequence of some heads, and comes ``out``;
    ``module`` is the mixer's."""

    module: Module
    into: tuple[HeadTensor, ...]
    out: tuple[HeadTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How one strategy cuts weights and tokens, and what it communicates: nothing, unless it says so.

    Its ``name`` stands in plans, files and reports; code reads its ``traits`` and never its name.
    """

    name: str = ""
    traits: Traits = field(default_factory=Traits)

    def norm_shards(self, layout: Layout) -> IntArray:
        """Parts the tokens are cut into between the linears (norms, residual stream)."""
        return _cut(layout, self.traits.cuts_tokens)

    def weight_shards(self, layout: Layout) -> IntArray:
        """Parts a matrix is cut into for computing."""
        return _cut(layout, self.traits.cuts_matrices)

    def gemm_shards(self, layout: Layout) -> IntArray:
        """Parts the tokens are cut into inside the linears, and where a rank looks them up in its table."""
        return _cut(layout, not self.traits.cuts_matrices)

    def saved_input_shards(self, layout: Layout) -> IntArray:
        """Parts the saved input of a column-parallel linear is cut into."""
        return _cut(layout, self.traits.saves_shards)

    def embedding_shards(self, layout: Layout) -> IntArray:
        """Parts the embedding's table is cut into."""
        return _cut(layout, self.traits.cuts_embedding)

    def column_parallel_input(self, context: "LayerContext", linear: OpKey, width: int) -> Pass:
        """Communication before the column-parallel ``linear`` of ``width`` inputs."""
        return Pass()

    def row_parallel_output(self, context: "LayerContext", linear: OpKey) -> Pass:
        """Communication after the row-parallel ``linear``."""
        return Pass()

    def around_attention(self, context: "LayerContext", tensors: HeadTensors) -> tuple[Pass, Pass]:
        """Communication just before and just after the core of what mixes tokens."""
        return Pass(), Pass()

    def weights(self, context: "LayerContext", linear: OpKey, elements: IntArray) -> Pass:
        """Gathers of the weights of ``linear`` and reductions of their gradient."""
        return Pass()


def _cut(layout: Layout, over_tp: bool) -> IntArray:
    return layout.tp if over_tp else layout.constant(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """One model and job under N layouts.

    ``tokens`` of one micro-batch on one rank after the context-parallel split and before any
    tensor-parallel one. ``sharding`` is the strategy, ``norm_place`` that of the block at hand.
    """

    model: ModelSpec
    job: JobSpec
    layout: Layout
    sharding: Sharding = field(default_factory=Sharding)
    norm_place: NormPlace = NormPlace.BEFORE

    @property
    def traits(self) -> Traits:
        """What the strategy does whatever its degrees are."""
        return self.sharding.traits

    @property
    def norm_rows(self) -> IntArray:
        """Tokens of one micro-batch on one rank between the linears."""
        return ceil_div(self.tokens, self.sharding.norm_shards(self.layout))

    @property
    def gemm_rows(self) -> IntArray:
        """Tokens of one micro-batch that a rank's linears multiply."""
        return ceil_div(self.tokens, self.sharding.gemm_shards(self.layout))

    @property
    def saved_rows(self) -> IntArray:
        """Tokens of one micro-batch of which a rank saves the input of a column-parallel linear."""
        return ceil_div(self.tokens, self.sharding.saved_input_shards(self.layout))

    @property
    def exchanges_heads(self) -> BoolArray:
        """Rows whose tokens are exchanged for heads over tp around the core of what mixes them."""
        return bools((self.layout.tp > 1) & self.traits.exchanges_heads)

    @property
    def exchanges_context(self) -> bool:
        """Whether context parallelism exchanges tokens for heads; else keys and values travel a ring."""
        return self.job.context_parallel == "all_to_all"

    @property
    def reduce_dtype(self) -> str:
        """Format in which gradients of dense weights and of experts travel."""
        over_sequence = self.job.preset.data_parallel.sequence_gradient_dtype
        return (
            over_sequence if self.traits.copies.over_sequence and over_sequence else self.job.precision.reduce
        )

    @property
    def widens_gradients(self) -> bool:
        """Whether gradients are cast to another format only to travel, and back."""
        return self.reduce_dtype != self.job.precision.reduce

    @property
    def keeps_gathered(self) -> BoolArray:
        """keeps_gathered of its job and layouts."""
        return keeps_gathered(self.job, self.layout)

    @property
    def reduces_once(self) -> BoolArray:
        """reduces_once of its job and layouts."""
        return reduces_once(self.job, self.layout)

    @property
    def num_micro(self) -> IntArray:
        """Micro-batches of a step."""
        return num_micro(self.job, self.layout)

    @property
    def sequence(self) -> IntArray:
        """Tokens of one sequence on one rank: seq_len / cp."""
        return ceil_div(self.layout.constant(self.job.seq_len), self.layout.cp)

    @property
    def tokens(self) -> IntArray:
        """micro_batch * seq_len / cp."""
        return self.layout.micro_batch * self.sequence

    @property
    def activation_bytes(self) -> float:
        """Bytes of one activation element."""
        return dtype_bytes(self.job.precision.activation)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of one parameter element as it is computed with."""
        return dtype_bytes(self.job.precision.parameter)

    def activations(self, rows: IntArray, width: IntArray | int) -> FloatArray:
        """Bytes of a rows x width activation."""
        return self.activation_bytes * rows * width


def keeps_gathered(job: JobSpec, layout: Layout) -> BoolArray:
    """Rows whose stages gather sharded parameters in the first forward of a step and keep them, add up whole
    gradients and reduce them in the last backward (FSDP on stages: torch/distributed/pipelining/stage.py,
    backward_maybe_with_nosync)."""
    return bools((layout.pp > 1) & (layout.zero_stage >= 2) & job.preset.pipeline.keeps_gathered)


def reduces_once(job: JobSpec, layout: Layout) -> BoolArray:
    """Rows that add up whole gradients of their micro-batches and reduce them in the last backward: those that keep
    what they gathered, and others of several micro-batches where the preset says so (accelerate ``accelerator.py``,
    no_sync; Lightning ``fabric/strategies/fsdp.py``, _FSDPBackwardSyncControl)."""
    waits = (layout.zero_stage >= 2) & (num_micro(job, layout) > 1) & job.preset.data_parallel.reduces_once
    return bools(keeps_gathered(job, layout) | waits)


def has_separate_ends(job: JobSpec, model: ModelSpec) -> bool:
    """Whether embedding and head are units of their own (torchtitan ``distributed/fsdp.py``, since July 2025; OLMo-core
    ``nn/transformer/model.py``, apply_fsdp)."""
    return job.preset.data_parallel.separate_ends and not model.tied_embeddings


def num_micro(job: JobSpec, layout: Layout) -> IntArray:
    """Micro-batches of a step."""
    return job.global_batch_sequences // (layout.dp * layout.micro_batch)


def padded_to_ranks(elements: IntArray, ranks: IntArray, element_bytes: float) -> IntArray:
    """Bytes of ``elements`` rounded up so that every rank holds a whole number of them."""
    return (ceil_div(elements, ranks) * ranks * element_bytes).astype("int64")
