"""Dispatchers that send no copy of a token for each of its experts.

Source: Megatron-LM core 0.15 ``transformer/moe/token_dispatcher.py``. "deepep" and "hybridep" send a token once to each
rank, and between domains once to each domain, that holds one of its experts, and copy it for the experts where it
arrives; combining adds up on the way back. "all_gather" gives every rank all tokens, to take its own from.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.experts.exchange import (
    Exchange,
    busiest_share,
    expert_all_to_all,
    gather_or_scatter,
    move_rows,
    routed_rows,
    wait_for_counts,
)
from ops.experts.routing import Routing, places_visited
from ops.memory_bound import Kernel, kernel
from ops.op import Axis, Comm, Op, Ops, Pass, Phase, RoutedTokens, collective, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.model import MoeSpec

# Multiprocessors that the kernels of a dispatcher take: Megatron-LM core 0.16 transformer_config.py,
# moe_deepep_num_sms and moe_hybridep_num_sms.
THREAD_BLOCKS = {"deepep": 20, "hybridep": 16}


def send_tokens_once(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """Returns an exchange in which tokens travel once to each place and are copied for the experts on arrival."""
    rows = routed_rows(context, moe, own_rows)
    busiest = own_rows * busiest_share(context, moe)
    routing = Routing.of(moe, in_turn=context.job.moe_routing == "in_turn")
    # topk experts of a token may lie on one rank: it then receives the token once and copies it
    visits = places_visited(context.layout.ep, routing)
    arriving: IntArray = np.ceil(busiest * visits).astype(np.int64)
    width = moe.routed_hidden(context.model.hidden)
    routed = RoutedTokens(elements=busiest * width, routing=routing)
    dispatcher = context.job.moe_dispatcher

    def exchange(role: Role) -> Pass:
        elements = (arriving * width).astype(np.float64)
        piece = expert_all_to_all(context, role, elements, kernel=dispatcher)
        blocks = THREAD_BLOCKS.get(dispatcher, 0)

        def routing_of(ops: Ops) -> Ops:
            messages = [op for op in ops if isinstance(op, Comm)]
            return tuple(replace(op, routed=routed, thread_blocks=blocks) for op in messages)

        return Pass(forward=routing_of(piece.forward), backward=routing_of(piece.backward))

    # Both dispatches wait for the counts before their tokens travel (HybridEP: executor.cu, dispatch_preprocess).
    return Exchange(
        rows=rows,
        dispatch=sequence(
            _routes(context, moe, own_rows) if dispatcher == "hybridep" else Pass(),
            wait_for_counts(context, moe, _with_probabilities(context, exchange(Role.DISPATCH), busiest)),
            move_rows(context, Role.PERMUTE, (arriving, rows), width),
        ),
        combine=sequence(move_rows(context, Role.UNPERMUTE, (rows, arriving), width), exchange(Role.COMBINE)),
    )


def _routes(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Pass:
    """Returns the gather of the experts that each token of every rank takes, a byte each, gathered and then read for
    the places they are sent to; forward alone, and saved for combine (HybridEP, ``executor.cu``:
    allgather_routing_map, metadata_preprocess_core)."""
    rows = own_rows * context.layout.ep
    what = OpKey(Module.MOE, Role.GATHER, Role.DISPATCH).named("moe.dispatch.routes")
    places = OpKey(Module.MOE, Role.STATISTICS, Role.DISPATCH).named("moe.dispatch.places")
    read = kernel(context, Kernel(places, "norm_reduce", rows, moe.num_experts, dtype="fp8"))
    size = rows * moe.num_experts
    routes = collective(what, Phase.FORWARD, Collective.ALL_GATHER, Axis.EP, size, "fp8")
    return Pass(forward=(routes, *read.forward))


def _with_probabilities(context: LayerContext, sent: Pass, tokens: FloatArray) -> Pass:
    """Returns a dispatch of ``tokens`` with their probabilities; a rank receives them as if there were one domain."""
    dispatcher = context.job.moe_dispatcher

    def carrying(op: Op, *, back: bool) -> Op:
        if not isinstance(op, Comm) or op.routed is None:
            raise ValueError("a dispatch that is no exchange of routed tokens")
        probabilities = tokens * probability_bytes(dispatcher, op.routed.routing, back=back)
        routed = replace(op.routed, weight_bytes=probabilities, weights_of_domain=dispatcher == "hybridep")
        arriving = probabilities * places_visited(context.layout.ep, routed.routing)
        return replace(op, size_bytes=op.size_bytes + np.ceil(arriving).astype(np.int64), routed=routed)

    return Pass(
        forward=tuple(carrying(op, back=False) for op in sent.forward),
        backward=tuple(carrying(op, back=True) for op in sent.backward),
    )


def gather_tokens(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """Returns an exchange in which every rank gets all tokens of its group, copies those of its experts, and gives
    back partial sums of all."""
    rows = routed_rows(context, moe, own_rows)
    everyone = own_rows * context.layout.ep
    width = moe.routed_hidden(context.model.hidden)
    size = (everyone * width * context.activation_bytes).astype(np.int64)
    into = gather_or_scatter(context, (Role.DISPATCH, Axis.EP), size, gathers=True)
    back = gather_or_scatter(context, (Role.COMBINE, Axis.EP), size, gathers=False)
    permuted = move_rows(context, Role.PERMUTE, (everyone, rows), width)
    return Exchange(
        rows=rows,
        dispatch=sequence(into, wait_for_counts(context, moe, permuted)),
        combine=sequence(move_rows(context, Role.UNPERMUTE, (rows, everyone), width), back),
    )


def probability_bytes(dispatcher: str, routing: Routing, *, back: bool = False) -> int:
    """Returns the bytes of probabilities that travel with each token of a dispatch; ``back``, of their gradients in
    its backward.

    HybridEP sends fp32 ones of all experts of the domain a token visits (hybrid_ep_backend.cuh, prob_per_token:
    NUM_OF_EXPERTS_PER_RANK * NUM_OF_RANKS_PER_NODE; as if there were one domain), DeepEP those of its topk with their
    64-bit indices, which do not come back (intranode.cu, channel_topk_idx_buffers and channel_topk_weights_buffers).
    """
    if dispatcher == "hybridep":
        return 4 * routing.num_experts
    # 4 bytes of probability and 8 of index; only the probability has a gradient
    return (4 if back else 12) * routing.topk
