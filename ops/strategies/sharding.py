"""What a strategy must say; blocks are written once against it."""

from typing import Protocol

import numpy as np

from ops.context import LayerContext
from ops.head_exchange import HeadTensors
from ops.layout import Layout
from ops.op import Axis, Comm, Lane, Phase, Piece
from ops.roles import Identity, OpKey
from ops.strategies.launch import Launch
from ops.strategies.traits import Traits
from spec.arrays import IntArray
from spec.collectives import Collective
from spec.job import JobSpec
from spec.model import ModelSpec


class Sharding(Protocol):
    """How one strategy cuts weights and tokens, and what it communicates.

    Nobody asks a strategy for its name to know what it does: what is asked stands here or in its ``traits``.
    """

    @property
    def name(self) -> str:
        """Its name in plans, files and reports."""
        ...

    @property
    def traits(self) -> Traits:
        """What does not depend on the degrees."""
        ...

    def weight_shards(self, layout: Layout) -> IntArray:
        """Parts a matrix is cut into for computing."""
        ...

    def norm_shards(self, layout: Layout) -> IntArray:
        """Parts the tokens are cut into between the linears (norms, residual stream)."""
        ...

    def gemm_shards(self, layout: Layout) -> IntArray:
        """Parts the tokens are cut into inside the linears."""
        ...

    def saved_input_shards(self, layout: Layout) -> IntArray:
        """Parts the saved input of an entering linear is cut into."""
        ...

    def embedding_shards(self, layout: Layout) -> IntArray:
        """Parts the embedding's table is cut into."""
        ...

    def lookup_shards(self, layout: Layout) -> IntArray:
        """Parts the tokens are cut into that a rank looks up in its table."""
        ...

    def enter(self, context: LayerContext, linear: OpKey, width: int) -> Piece:
        """Communication before the column-parallel ``linear`` of ``width`` inputs."""
        ...

    def leave(self, context: LayerContext, linear: OpKey) -> Piece:
        """Communication after the row-parallel ``linear``."""
        ...

    def around_core(self, context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
        """Communication just before and just after the core of what mixes tokens."""
        ...

    def weights(self, context: LayerContext, linear: OpKey, elements: IntArray) -> Piece:
        """Gathering the weights of ``linear`` and reducing their gradient."""
        ...

    def launch(self, framework: str, tp: int) -> Launch | None:
        """What ``framework`` (a preset's name, or a launcher's: accelerate, torchtitan) is told to run it
        over ``tp`` ranks; None where it cannot.
        """
        ...


def layer_context(sharding: Sharding, model: ModelSpec, job: JobSpec, layout: Layout) -> LayerContext:
    """What a layer under the strategy is written from."""
    return LayerContext(model=model, job=job, layout=layout, traits=sharding.traits)


def collective(
    context: LayerContext, what: Identity, kind: Collective, axis: Axis, size_bytes: IntArray
) -> Comm:
    """A forward collective of activations on the main lane."""
    return Comm(
        module=what.module,
        role=what.role,
        serves=what.serves,
        name=what.name,
        phase=Phase.FORWARD,
        collective=kind,
        axis=axis,
        size_bytes=np.asarray(size_bytes, dtype=np.int64),
        dtype=context.job.precision.activation,
    )


def full_tokens_bytes(context: LayerContext, width: int = 0) -> IntArray:
    """Bytes of ``width`` channels (the hidden size when 0) of a rank's whole micro-batch, rounded up to
    whole shards."""
    layout = context.layout
    tokens = -(-context.tokens // layout.tp) * layout.tp
    return (tokens * (width or context.model.hidden) * context.activation_bytes).astype(np.int64)


def backward_lane(context: LayerContext, *, beside: Phase) -> Lane:
    """Whether a whole tp collective of the backward runs beside the other gradient's GEMM: of the input gradient
    (the input gathered again) or of the weight gradient (the input gradient reduced)."""
    choices = context.job.preset.tensor_parallel
    bulk = choices.bulk_dgrad if beside is Phase.INPUT_GRAD else choices.bulk_wgrad
    return Lane.BESIDE if choices.overlap_backward or (choices.overlap and bulk) else Lane.MAIN
