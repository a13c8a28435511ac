"""InternEvo's sequence parallelism with sharded weights.

Tokens are cut over tp ranks everywhere; all-to-alls around the attention kernel exchange tokens for
heads (Ulysses, arXiv 2309.14509 sec. 3). Weights are cut over wp ranks and gathered per linear in
the forward and again in the backward, one layer ahead; their gradient is reduce-scattered
(InternEvo, arXiv 2401.09149 sec. 3).
"""

from dataclasses import dataclass, replace

from ops.context import LayerContext, padded_to_ranks
from ops.layout import Layout
from ops.op import Axis, Comm, Lane, Owner, Phase, Piece
from ops.roles import OpKey, Role
from ops.strategies.launch import Launch
from ops.strategies.token_shards import TokenShards
from ops.strategies.traits import Traits
from ops.strategies.weight_copies import WeightCopies
from spec.arrays import IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes

TRAITS = Traits(
    copies=WeightCopies(linear_owner=Owner.WEIGHT),
    assembles=(Collective.ALL_TO_ALL, Collective.ALL_TO_ALL),
    cuts_vocabulary=False,
    exchanges_heads=True,
    repeats_kv_heads=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeights(TokenShards):
    """Tokens cut over tp, whole weights gathered from wp ranks."""

    name: str = "isp"
    traits: Traits = TRAITS

    def embedding_shards(self, layout: Layout) -> IntArray:
        """The table is cut over the hidden size."""
        return layout.tp

    def weights(self, context: LayerContext, linear: OpKey, elements: IntArray) -> Piece:
        """All-gather in both passes, reduce-scatter of the gradient, all one layer ahead or behind."""
        precision = context.job.precision
        wp = context.layout.wp

        def moved(role: Role, kind: Collective, dtype: str, phase: Phase) -> Comm:
            return Comm(
                module=linear.module,
                role=role,
                serves=linear.role,
                name=f"{linear.module}.{linear.role}.weight",
                phase=phase,
                lane=Lane.PREFETCH if context.job.preset.data_parallel.overlap_weights else Lane.MAIN,
                collective=kind,
                axis=Axis.WP,
                size_bytes=padded_to_ranks(elements, wp, dtype_bytes(dtype)),
                dtype=dtype,
            )

        gather = moved(Role.WEIGHT_GATHER, Collective.ALL_GATHER, precision.parameter_gather, Phase.FORWARD)
        scatter = moved(
            Role.GRADIENT_REDUCTION, Collective.REDUCE_SCATTER, precision.reduce, Phase.WEIGHT_GRAD
        )
        return Piece(
            forward=(gather,),
            backward=(replace(gather, phase=Phase.INPUT_GRAD), scatter),
        )

    def launch(self, framework: str, tp: int) -> Launch | None:
        """InternEvo's mode; wp stands in its own section."""
        own = framework == "internevo"
        return Launch(settings={"size": tp, "mode": self.name}) if own else None
