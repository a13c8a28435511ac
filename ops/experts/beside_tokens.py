"""What dispatchers send besides tokens: an all-to-all counts of tokens before them and each one's probability
behind them, others probabilities among them.

Source: Megatron-LM core 0.13, ``megatron/core/transformer/moe/token_dispatcher.py``, MoEAlltoAllTokenDispatcher
(``preprocess``: gather_from_sequence_parallel_region of num_local_tokens_per_expert; ``token_dispatch``:
global_probs); torchtitan exchanges counts by an all-to-all (``models/moe/moe.py``), told as the gather, which is as
short. Both are small, so each costs little but a collective's latency over ep. Releases before 0.13 and other
frameworks multiply by probabilities where tokens come from.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.experts.routing import Routing
from ops.op import Axis, Comm, Phase, Piece
from ops.roles import Module, Role
from spec.arrays import IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.model import MoeSpec

COUNT_BYTES = 8  # routing_map.sum(dim=0).long()


def counts(context: LayerContext, moe: MoeSpec) -> Piece:
    """Every rank's tokens for each expert, gathered over ep (``Assumption:`` not over the experts' tp) to
    size what follows; forward alone, and nothing where a capacity sizes it."""
    if context.job.capacity_factor(moe) is not None:
        return Piece()
    gathered = Comm(
        module=Module.MOE,
        role=Role.GATHER,
        serves=Role.DISPATCH,
        name="moe.dispatch.counts",
        phase=Phase.FORWARD,
        collective=Collective.ALL_GATHER,
        axis=Axis.EP,
        size_bytes=context.layout.ep * moe.num_experts * COUNT_BYTES,
        dtype="fp32",
    )
    return Piece(forward=(gathered,))


def probabilities(context: LayerContext, rows: IntArray) -> Piece:
    """One probability for each of ``rows``, by an all-to-all of its own, and its gradient back; in the router's format.
    ``Assumption:`` none where another micro-batch runs beside the exchange, whose compute hides it too."""
    if not context.job.preset.layers.sends_probabilities or context.job.overlap_expert_a2a:
        return Piece()
    precision = context.job.precision
    dtype = precision.router or precision.compute
    sent = Comm(
        module=Module.MOE,
        role=Role.DISPATCH,
        serves=Role.DISPATCH,
        name="moe.dispatch.probabilities",
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=Axis.EP,
        size_bytes=np.ceil(rows * dtype_bytes(dtype)).astype(np.int64),
        dtype=dtype,
    )
    return Piece(forward=(sent,), backward=(replace(sent, phase=Phase.INPUT_GRAD),))


def probability_bytes(dispatcher: str, routing: Routing, *, back: bool = False) -> int:
    """Bytes of probabilities beside each token of a dispatch; ``back``, of their gradients in its backward.

    HybridEP sends fp32 ones of all experts of the domain a token visits (hybrid_ep_backend.cuh,
    prob_per_token: NUM_OF_EXPERTS_PER_RANK * NUM_OF_RANKS_PER_NODE; as if there were one domain), DeepEP
    those of its topk with their 64-bit indices, which do not come back (intranode.cu,
    channel_topk_idx_buffers and channel_topk_weights_buffers).
    """
    if dispatcher == "hybridep":
        return 4 * routing.num_experts
    return (4 if back else 12) * routing.topk
