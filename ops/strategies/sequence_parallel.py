"""Tensor with sequence parallelism, in its two forms.

Between the linears every rank holds 1/tp of the tokens: an all-gather enters a block, a
reduce-scatter leaves it (Korthikanti et al. 2022, arXiv 2205.05198 sec. 4.2). *msp* (InternEvo) keeps
the gathered input for the weight gradient; *fsp* keeps the shard and gathers it again in the backward
beside the input-gradient GEMM (ibid. sec. 4.2.2), which is what Megatron-LM does.
"""

from dataclasses import dataclass, replace
from typing import Any

from ops.context import LayerContext
from ops.head_exchange import HeadTensors
from ops.layout import Layout
from ops.op import Axis, Phase, Piece
from ops.roles import OpKey, Role
from ops.strategies.launch import Launch
from ops.strategies.narrow_gather import agreed_scale, narrowed, other_order
from ops.strategies.pipelined import gathered_into, in_bulk, scattered_from
from ops.strategies.sequence_copies import before, in_order
from ops.strategies.sharding import backward_lane, collective, full_tokens_bytes
from ops.strategies.traits import Traits
from spec.arrays import IntArray
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParallel:
    """Weights cut over tp; tokens cut over tp between the linears.

    ``regather`` False is msp, True is fsp.
    """

    regather: bool

    @property
    def name(self) -> str:
        """fsp gathers again, msp does not."""
        return "fsp" if self.regather else "msp"

    @property
    def traits(self) -> Traits:
        """The embedding's partial outputs are summed and scattered at once."""
        return Traits(
            assembles=(Collective.REDUCE_SCATTER, Collective.ALL_GATHER),
            shares_gathered_input=not self.regather,
        )

    def weight_shards(self, layout: Layout) -> IntArray:
        """tp."""
        return layout.tp

    def norm_shards(self, layout: Layout) -> IntArray:
        """tp."""
        return layout.tp

    def gemm_shards(self, layout: Layout) -> IntArray:
        """The gathered tokens are multiplied."""
        return layout.constant(1)

    def saved_input_shards(self, layout: Layout) -> IntArray:
        """The gathered input (msp) or the shard (fsp) is kept."""
        return layout.tp if self.regather else layout.constant(1)

    def embedding_shards(self, layout: Layout) -> IntArray:
        """The table is cut over the vocabulary."""
        return layout.tp

    def lookup_shards(self, layout: Layout) -> IntArray:
        """Every rank looks up all tokens and finds those of its part."""
        return layout.constant(1)

    def enter(self, context: LayerContext, linear: OpKey, width: int) -> Piece:
        """All-gather in; backward: reduce-scatter of the input gradient beside the weight gradient
        and, for fsp, the gather again beside the input gradient."""
        size = full_tokens_bytes(context, width)
        entering, again = linear.served_by(Role.ENTER), linear.served_by(Role.REGATHER)
        gather = narrowed(
            context, collective(context, entering, Collective.ALL_GATHER, Axis.TP, size), linear
        )
        scatter = collective(context, entering, Collective.REDUCE_SCATTER, Axis.TP, size)
        whole = replace(
            scatter,
            phase=Phase.INPUT_GRAD,
            lane=backward_lane(context, beside=Phase.WEIGHT_GRAD),
            beside=linear,
            beside_phase=Phase.WEIGHT_GRAD,
        )
        reduced = scattered_from(context, in_bulk(context, whole, linear), linear)
        backward = [*before(context, reduced), *reduced]
        if self.regather:
            regather = replace(
                narrowed(context, collective(context, again, Collective.ALL_GATHER, Axis.TP, size), linear),
                phase=Phase.WEIGHT_GRAD,
                lane=backward_lane(context, beside=Phase.INPUT_GRAD),
                beside=linear,
                beside_phase=Phase.INPUT_GRAD,
            )
            regathered = in_bulk(context, regather, linear)
            backward = [regathered, *in_order(context, regathered), *backward]
        agreed = agreed_scale(context, linear, Phase.FORWARD)
        gathered = gathered_into(context, gather, linear)
        return Piece(forward=(*agreed, gathered, *in_order(context, gathered)), backward=tuple(backward))

    def leave(self, context: LayerContext, linear: OpKey) -> Piece:
        """Reduce-scatter out; backward: all-gather of the output gradient."""
        size = full_tokens_bytes(context)
        leaving = linear.served_by(Role.LEAVE)
        scatter = collective(context, leaving, Collective.REDUCE_SCATTER, Axis.TP, size)
        gather = collective(context, leaving, Collective.ALL_GATHER, Axis.TP, size)
        gather = narrowed(context, replace(gather, phase=Phase.INPUT_GRAD), linear)
        rows = gathered_into(context, gather, linear)
        agreed = agreed_scale(context, linear, Phase.INPUT_GRAD)
        backward = (*agreed, rows, *in_order(context, rows), *other_order(context, rows, linear))
        reduced = scattered_from(context, scatter, linear)
        return Piece(forward=(*before(context, reduced), *reduced), backward=backward)

    def around_core(self, context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
        """Heads are cut already."""
        return Piece(), Piece()

    def weights(self, context: LayerContext, linear: OpKey, elements: IntArray) -> Piece:
        """Weights stay where they are."""
        return Piece()

    def launch(self, framework: str, tp: int) -> Launch | None:
        """InternEvo has a mode for each; Megatron-LM's and torchtitan's is fsp."""
        settings: dict[str, dict[str, Any]] = {"internevo": {"size": tp, "mode": self.name}}
        if self.regather:
            cut: dict[str, Any] = {"--sequence-parallel": None} if tp > 1 else {}
            settings["megatron"] = {"--tensor-model-parallel-size": tp} | cut
            settings["torchtitan"] = {"tensor_parallel_degree": tp, "enable_sequence_parallel": tp > 1}
        return Launch(settings=settings[framework]) if framework in settings else None
