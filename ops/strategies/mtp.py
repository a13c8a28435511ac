"""Megatron tensor parallelism: two all-reduces forward and two backward a layer.

Source: Shoeybi et al. 2019 (arXiv 1909.08053) sec. 3; the backward all-reduce of a column-parallel
linear runs beside its weight gradient (Megatron-LM, LinearWithGradAccumulationAndAsyncCommunication).
"""

from dataclasses import dataclass, replace
from typing import Any

from ops.context import LayerContext
from ops.head_exchange import HeadTensors
from ops.layout import Layout
from ops.op import Axis, Phase, Piece
from ops.roles import OpKey, Role
from ops.strategies.launch import Launch
from ops.strategies.sharding import backward_lane, collective, full_tokens_bytes
from ops.strategies.traits import Traits
from spec.arrays import IntArray
from spec.collectives import Collective

TRAITS = Traits(uncut=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronTensor:
    """Weights cut over tp; every rank sees all tokens."""

    name: str = "mtp"
    traits: Traits = TRAITS

    def weight_shards(self, layout: Layout) -> IntArray:
        """tp."""
        return layout.tp

    def norm_shards(self, layout: Layout) -> IntArray:
        """Norms are repeated on every rank."""
        return layout.constant(1)

    def gemm_shards(self, layout: Layout) -> IntArray:
        """Every rank multiplies all tokens."""
        return layout.constant(1)

    def saved_input_shards(self, layout: Layout) -> IntArray:
        """The whole input is kept."""
        return layout.constant(1)

    def embedding_shards(self, layout: Layout) -> IntArray:
        """The table is cut over the vocabulary."""
        return layout.tp

    def lookup_shards(self, layout: Layout) -> IntArray:
        """Every rank looks up all tokens and finds those of its part."""
        return layout.constant(1)

    def enter(self, context: LayerContext, linear: OpKey, width: int) -> Piece:
        """Nothing forward; the input gradient is summed over the ranks."""
        size = full_tokens_bytes(context, width)
        summed = collective(context, linear.served_by(Role.ENTER), Collective.ALL_REDUCE, Axis.TP, size)
        lane = backward_lane(context, beside=Phase.WEIGHT_GRAD)
        backward = replace(
            summed, phase=Phase.INPUT_GRAD, lane=lane, beside=linear, beside_phase=Phase.WEIGHT_GRAD
        )
        return Piece(backward=(backward,))

    def leave(self, context: LayerContext, linear: OpKey) -> Piece:
        """The partial outputs are summed over the ranks."""
        size = full_tokens_bytes(context)
        summed = collective(context, linear.served_by(Role.LEAVE), Collective.ALL_REDUCE, Axis.TP, size)
        return Piece(forward=(summed,))

    def around_core(self, context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
        """Heads are cut already."""
        return Piece(), Piece()

    def weights(self, context: LayerContext, linear: OpKey, elements: IntArray) -> Piece:
        """Weights stay where they are."""
        return Piece()

    def launch(self, framework: str, tp: int) -> Launch | None:
        """Megatron-LM's, DeepSpeed's AutoTP (runtime/tensor_parallel/config.py), InternEvo's mode,
        accelerate's and torchtitan's degrees (parallelism_config.py; config/configs.py)."""
        settings: dict[str, dict[str, Any]] = {
            "megatron": {"--tensor-model-parallel-size": tp},
            "deepspeed": {"tensor_parallel": {"autotp_size": tp}} if tp > 1 else {},
            "internevo": {"size": tp, "mode": self.name},
            "accelerate": {"parallelism_config_tp_size": tp},
            "torchtitan": {"tensor_parallel_degree": tp, "enable_sequence_parallel": False},
        }
        return Launch(settings=settings[framework]) if framework in settings else None
