"""What every strategy needs to write down a layer: model, job, and the degrees as columns."""

from dataclasses import dataclass, field

from ops.layout import Layout
from ops.strategies.traits import Traits
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ceil_div
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec, NormPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """One model and job under N layouts.

    ``tokens`` of one micro-batch on one rank after the context-parallel split and before any
    tensor-parallel one. ``traits`` are the strategy's, ``norm_place`` that of the block at hand.
    """

    model: ModelSpec
    job: JobSpec
    layout: Layout
    traits: Traits = field(default_factory=Traits)
    norm_place: NormPlace = NormPlace.BEFORE

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
