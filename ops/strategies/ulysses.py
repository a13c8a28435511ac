"""DeepSpeed-Ulysses: the sequence cut over tp ranks, and weights whole on each of them.

Tokens are cut everywhere but in the attention kernel, around which all-to-alls exchange them for heads
(arXiv 2309.14509 sec. 3.1-3.2). Weights are whole, or sharded by ZeRO over data and sequence ranks together, and
gradients are summed over both (sec. 3.3; DeepSpeed, utils/groups.py, _get_sequence_data_parallel_group). It runs
beside neither tensor parallelism nor a pipeline (Megatron-DeepSpeed, core/parallel_state.py,
initialize_model_parallel), and its experts only up to ZeRO stage 2 (deepspeed/runtime/engine.py,
_validate_zero3_moe_compatibility).
"""

from dataclasses import dataclass
from typing import Any

from ops.context import LayerContext
from ops.layout import Layout
from ops.op import Axis, Piece
from ops.roles import OpKey
from ops.strategies.launch import Launch
from ops.strategies.token_shards import TokenShards
from ops.strategies.traits import Traits
from ops.strategies.weight_copies import WeightCopies
from spec.arrays import IntArray

TRAITS = Traits(
    copies=WeightCopies(dense=Axis.SDP, zero_shard=Axis.SDP_SHARD, zero_replicate=Axis.SDP_REPLICATE),
    assembles=(None, None),
    cuts_vocabulary=False,
    exchanges_heads=True,
    repeats_kv_heads=True,
    cuts_experts=False,
    pipelined=False,
    deepest_stage_with_ep=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulysses(TokenShards):
    """Tokens cut over tp, whole weights."""

    name: str = "ulysses"
    traits: Traits = TRAITS

    def embedding_shards(self, layout: Layout) -> IntArray:
        """The table is whole."""
        return layout.constant(1)

    def weights(self, context: LayerContext, linear: OpKey, elements: IntArray) -> Piece:
        """Weights stay where they are, unless ZeRO gathers them (ops.data_parallel.weight_sharding)."""
        return Piece()

    def launch(self, framework: str, tp: int) -> Launch | None:
        """DeepSpeed's key (runtime/config.py), and what its training script does for it (docs/_tutorials/
        ulysses-alst-sequence-parallelism.md)."""
        if framework != "deepspeed":
            return None
        settings: dict[str, Any] = {"sequence_parallel_size": tp}
        return Launch(
            settings=settings,
            in_script=(
                f"mpu = UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size={tp}) before the "
                "model is made, then deepspeed.initialize(..., mpu=mpu); in Megatron-DeepSpeed "
                f"--ds-sequence-parallel-size {tp}",
                "UlyssesSPDataLoaderAdapter(...) around the data loader, and a loss averaged over the sequence group",
            ),
        )
