"""Tokens to their experts and back: permutations and the exchange over ep, by dispatcher.

Source: Megatron-LM core 0.15 ``transformer/moe/token_dispatcher.py``. "all_to_all" permutes a copy of every
token for each of its experts and sends all copies. "all_gather" gives every rank all tokens, to take its own from.
"deepep" and "hybridep" send a token once to each rank, and between domains once to each domain, that holds one of its
experts, and copy it for the experts where it arrives; combining adds up on the way back.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ops.context import LayerContext
from ops.experts.beside_tokens import counts, probabilities, probability_bytes
from ops.experts.load import busiest_share
from ops.experts.routing import Routing, places_visited
from ops.experts.turned_chunks import turned_chunks
from ops.memory_bound import Kernel, kernel
from ops.op import Axis, Comm, Lane, Op, Phase, Piece, RoutedTokens, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.model import MoeSpec


def routed_rows(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> IntArray:
    """Token rows the busiest rank's experts work on: topk copies spread as the job states, or with a
    capacity factor that many times topk, dropped or padded to it (GShard, arXiv 2006.16668 sec. 2.2)."""
    copies: float | FloatArray = moe.topk * busiest_share(context, moe)
    capacity = context.job.capacity_factor(moe)
    if capacity is not None:
        copies = moe.topk * capacity
    rows: IntArray = np.ceil(own_rows * copies).astype(np.int64)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What runs before the experts and what after them; ``rows`` arrive on a rank. ``sort`` and ``unsort`` stand next
    to the experts, inside the gather over etp and the scatter back."""

    rows: IntArray
    dispatch: Piece
    combine: Piece
    sort: Piece = field(default_factory=Piece)
    unsort: Piece = field(default_factory=Piece)


def exchange(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """The two halves of an exchange of ``own_rows`` tokens per rank."""
    if context.job.sends_tokens_once and context.job.capacity_factor(moe) is None:
        return _deduplicated(context, moe, own_rows)
    if context.job.moe_dispatcher == "all_gather":
        return _gathered(context, moe, own_rows)
    rows = routed_rows(context, moe, own_rows)
    layout = context.layout
    several = (moe.num_experts // layout.ep > 1) & (layout.ep * layout.etp > 1)
    sorted_rows = np.where(several, rows * layout.etp, 0)
    # Only this dispatcher overlaps (transformer_config.py: moe_shared_expert_overlap needs alltoall).
    # A latent refuses it in training (moe_layer.py, preprocess).
    hides = context.job.overlap_shared_experts and moe.shared_ffn_hidden > 0 and not moe.latent_hidden
    first, second = [OpKey(Module.SHARED_EXPERTS, role) if hides else None for role in (Role.UP, Role.DOWN)]
    width = moe.routed_hidden(context.model.hidden)
    copies = (rows * width).astype(np.float64)
    padded = context.job.capacity_factor(moe) is not None
    kernel = "" if padded else "all2all"
    into_order = turned_chunks if padded and context.job.preset.layers.turns_chunks else _sorted_rows
    return Exchange(
        rows=rows,
        dispatch=sequence(
            counts(context, moe),
            _counted(context, moe, moved_rows(context, Role.PERMUTE, (own_rows, rows), width)),
            _over_ranks(context, Role.DISPATCH, copies, kernel, beside=first),
            probabilities(context, rows),
        ),
        combine=sequence(
            _over_ranks(context, Role.COMBINE, copies, kernel, beside=second),
            moved_rows(context, Role.UNPERMUTE, (rows, own_rows), width),
        ),
        # Rows that arrive rank by rank, gathered over etp, into the order of this rank's several experts.
        sort=into_order(context, Role.SORT, sorted_rows, width),
        unsort=into_order(context, Role.UNSORT, sorted_rows, width),
    )


def _deduplicated(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """Tokens travel once to each place and are copied for the experts on arrival."""
    rows = routed_rows(context, moe, own_rows)
    busiest = own_rows * busiest_share(context, moe)
    routing = Routing.of(moe, in_turn=context.job.moe_routing == "in_turn")
    visits = places_visited(context.layout.ep, routing)
    arriving: IntArray = np.ceil(busiest * visits).astype(np.int64)
    width = moe.routed_hidden(context.model.hidden)
    elements = (arriving * width).astype(np.float64)
    routed = RoutedTokens(elements=busiest * width, routing=routing)
    sent = _over_ranks(context, Role.DISPATCH, elements, context.job.moe_dispatcher, routed=routed)
    sent = _with_probabilities(context, sent, busiest)
    permuted = moved_rows(context, Role.PERMUTE, (arriving, rows), width)
    # Both dispatches wait for the counts before their tokens travel (HybridEP: executor.cu, dispatch_preprocess).
    finds_routes = context.job.moe_dispatcher == "hybridep"
    return Exchange(
        rows=rows,
        dispatch=sequence(
            _routes(context, moe, own_rows) if finds_routes else Piece(),
            _counted(context, moe, sent),
            permuted,
        ),
        combine=sequence(
            moved_rows(context, Role.UNPERMUTE, (rows, arriving), width),
            _over_ranks(context, Role.COMBINE, elements, context.job.moe_dispatcher, routed=routed),
        ),
    )


def _routes(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Piece:
    """Which experts each token of every rank takes, a byte each, gathered and then read for the places they
    are sent to; forward alone, kept for the way back (HybridEP, ``executor.cu``: allgather_routing_map,
    metadata_preprocess_core)."""
    size_bytes = own_rows * context.layout.ep * moe.num_experts
    gathered = Comm(
        module=Module.MOE,
        role=Role.GATHER,
        serves=Role.DISPATCH,
        name="moe.dispatch.routes",
        phase=Phase.FORWARD,
        collective=Collective.ALL_GATHER,
        axis=Axis.EP,
        size_bytes=size_bytes,
        dtype="fp8",
    )
    read = kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=Role.STATISTICS,
            serves=Role.DISPATCH,
            name="moe.dispatch.places",
            kernel="norm_reduce",
            rows=own_rows * context.layout.ep,
            width=moe.num_experts,
            saved_bytes=np.zeros(len(own_rows)),
            dtype="fp8",
        ),
    )
    return Piece(forward=(gathered, *read.forward))


def _with_probabilities(context: LayerContext, sent: Piece, tokens: FloatArray) -> Piece:
    """A dispatch of ``tokens`` with their probabilities; a rank receives them as if there were one domain."""
    dispatcher = context.job.moe_dispatcher

    def carrying(op: Op, *, back: bool) -> Op:
        if not isinstance(op, Comm) or op.routed is None:
            raise ValueError("a dispatch that is no exchange of routed tokens")
        beside = tokens * probability_bytes(dispatcher, op.routed.routing, back=back)
        routed = replace(op.routed, weight_bytes=beside, weights_of_domain=dispatcher == "hybridep")
        arriving = beside * places_visited(context.layout.ep, routed.routing)
        return replace(op, size_bytes=op.size_bytes + np.ceil(arriving).astype(np.int64), routed=routed)

    return Piece(
        forward=tuple(carrying(op, back=False) for op in sent.forward),
        backward=tuple(carrying(op, back=True) for op in sent.backward),
    )


def _gathered(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """Every rank gets all tokens of its group, copies those of its experts, and gives back partial sums of all."""
    rows = routed_rows(context, moe, own_rows)
    everyone = own_rows * context.layout.ep
    width = moe.routed_hidden(context.model.hidden)
    size = (everyone * width * context.activation_bytes).astype(np.int64)
    into = gather_or_scatter(context, (Role.DISPATCH, Axis.EP), size, gathers=True)
    back = gather_or_scatter(context, (Role.COMBINE, Axis.EP), size, gathers=False)
    permuted = moved_rows(context, Role.PERMUTE, (everyone, rows), width)
    return Exchange(
        rows=rows,
        dispatch=sequence(into, _counted(context, moe, permuted)),
        combine=sequence(moved_rows(context, Role.UNPERMUTE, (rows, everyone), width), back),
    )


def _counted(context: LayerContext, moe: MoeSpec, piece: Piece) -> Piece:
    """Without padding to a capacity the host reads how many tokens each expert gets before it can size what
    follows (Megatron-Core token_dispatcher.py, _maybe_dtoh_and_synchronize; DeepEP's dispatch waits for them)."""
    waits = context.job.capacity_factor(moe) is None
    return Piece(
        forward=tuple(replace(op, synchronises=waits) for op in piece.forward), backward=piece.backward
    )


def _sorted_rows(context: LayerContext, role: Role, rows: IntArray, width: int) -> Piece:
    return moved_rows(context, role, (rows, rows), width)


def moved_rows(
    context: LayerContext, role: Role, rows: tuple[IntArray, IntArray], width: int, name: str = ""
) -> Piece:
    """``rows`` before and after, of ``width`` channels, read and written in another order or number, each once (fused
    permutation, Transformer Engine ``permutation.py``: a row is loaded once and stored for each of its experts).

    The kernel moves its rows in and out, so it is given the mean of both; its backward needs the map alone.
    """
    before, after = rows
    return kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=role,
            name=name,
            kernel="permute",
            rows=(before + after + 1) // 2,
            width=width,
            saved_bytes=8.0 * np.maximum(before, after),
        ),
    )


def _over_ranks(
    context: LayerContext,
    role: Role,
    elements: FloatArray,
    kernel: str,
    beside: OpKey | None = None,
    routed: RoutedTokens | None = None,
) -> Piece:
    """All-to-all of ``elements`` per rank over ep, mirrored in the backward.

    ``beside``: the shared experts' product that may hide it.
    """
    precision = context.job.precision
    lane = Lane.BESIDE if beside else Lane.MAIN

    def one_way(phase: Phase, dtype: str) -> Comm:
        return Comm(
            module=Module.MOE,
            role=role,
            phase=phase,
            lane=Lane.ACROSS if context.job.overlap_expert_a2a else lane,
            beside=beside,
            beside_phase=phase,
            collective=Collective.ALL_TO_ALL,
            axis=Axis.EP,
            size_bytes=(elements * dtype_bytes(dtype)).astype(np.int64),
            dtype=dtype,
            routed=routed,
            kernel=kernel,
            thread_blocks=THREAD_BLOCKS.get(context.job.moe_dispatcher, 0) if routed else 0,
        )

    forward_dtype = precision.moe_dispatch if role is Role.DISPATCH else precision.activation
    return Piece(
        forward=(one_way(Phase.FORWARD, forward_dtype),),
        backward=(one_way(Phase.INPUT_GRAD, precision.activation),),
    )


def fold(context: LayerContext, rows: IntArray, width: int, *, entering: bool) -> Piece:
    """All-gather of rows of ``width`` channels over etp before the experts, reduce-scatter after; mirrored backward."""
    size = (rows * context.layout.etp * width * context.activation_bytes).astype(np.int64)
    role = Role.EXPERT_GATHER if entering else Role.EXPERT_SCATTER
    return gather_or_scatter(context, (role, Axis.ETP), size, gathers=entering)


def gather_or_scatter(
    context: LayerContext, over: tuple[Role, Axis], size_bytes: IntArray, *, gathers: bool
) -> Piece:
    """An all-gather forward and a reduce-scatter backward, or the other way round."""
    role, axis = over

    def collective(kind: Collective, phase: Phase) -> Comm:
        return Comm(
            module=Module.MOE,
            role=role,
            phase=phase,
            collective=kind,
            axis=axis,
            size_bytes=size_bytes,
            dtype=context.job.precision.activation,
        )

    first, second = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    if not gathers:
        first, second = second, first
    return Piece(
        forward=(collective(first, Phase.FORWARD),), backward=(collective(second, Phase.INPUT_GRAD),)
    )


# Multiprocessors that the kernels of a dispatcher take: Megatron-LM core 0.16 transformer_config.py,
# moe_deepep_num_sms and moe_hybridep_num_sms.
THREAD_BLOCKS = {"deepep": 20, "hybridep": 16}
