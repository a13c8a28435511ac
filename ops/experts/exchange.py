"""Tokens to their experts and back: permutations and the exchange over ep, as Megatron-Core's all-to-all dispatcher.

Source: Megatron-LM core 0.15 ``transformer/moe/token_dispatcher.py``: "all_to_all" permutes a copy of every
token for each of its experts and sends all copies. The other dispatchers are in ops.experts.dispatchers.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel
from ops.op import Axis, Comm, Lane, Pass, Phase, collective, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray, expected_largest
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.model import MoeSpec


def busiest_share(context: LayerContext, moe: MoeSpec) -> FloatArray:
    """Returns the expected tokens of the busiest expert-parallel rank over those of the average one, for N layouts.

    Experts' loads are a population of ``n`` with a standard deviation of ``moe_expert_spread`` of their mean. A rank
    holds m = n / ep of them, drawn without replacement, so its own load has the variance s^2 / m (n - m) / (n - 1)
    (Cochran, Sampling Techniques, 1977, sec. 2.6). Two ranks' loads are correlated by -1 / (ep - 1), as they sum to a
    constant; the largest of ep such normal numbers is sqrt(ep / (ep - 1)) times that of independent ones. All is
    times the stated ``moe_imbalance``.
    """
    job, ep = context.job, context.layout.ep
    experts = moe.num_experts
    local = np.maximum(experts // ep, 1)
    spread = job.moe_expert_spread * np.sqrt((experts - local) / max(experts - 1, 1) / local)
    ranks = np.unique(ep)
    # Expectation of the largest of ep standard normal numbers, once for each degree that occurs.
    largest = np.asarray([expected_largest(int(count)) for count in ranks])[np.searchsorted(ranks, ep)]
    together = np.sqrt(ep / np.maximum(ep - 1, 1))
    return np.asarray(job.moe_imbalance * (1.0 + spread * together * largest), dtype=np.float64)


def routed_rows(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> IntArray:
    """Returns the token rows that the busiest rank's experts work on: topk copies spread as the job states, or with a
    capacity factor that many times topk, dropped or padded to it (GShard, arXiv 2006.16668 sec. 2.2)."""
    copies: float | FloatArray = moe.topk * busiest_share(context, moe)
    capacity = context.job.capacity_factor(moe)
    if capacity is not None:
        copies = moe.topk * capacity
    rows: IntArray = np.ceil(own_rows * copies).astype(np.int64)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The operations before the experts and after them; ``rows`` arrive on a rank. ``sort`` and ``unsort`` stand next
    to the experts, inside the gather over etp and the scatter back."""

    rows: IntArray
    dispatch: Pass
    combine: Pass
    sort: Pass = field(default_factory=Pass)
    unsort: Pass = field(default_factory=Pass)


def all_to_all(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """Returns the two halves of an exchange of ``own_rows`` tokens per rank."""
    job, layout = context.job, context.layout
    rows = routed_rows(context, moe, own_rows)
    # One expert a rank, or one rank: what arrives is in the experts' order already.
    several = (moe.num_experts // layout.ep > 1) & (layout.ep * layout.etp > 1)
    sorted_rows = np.where(several, rows * layout.etp, 0)
    # Only this dispatcher overlaps (transformer_config.py: moe_shared_expert_overlap needs alltoall).
    # A latent refuses it in training (moe_layer.py, preprocess).
    hides = job.overlap_shared_experts and moe.shared_ffn_hidden > 0 and not moe.latent_hidden
    first, second = [OpKey(Module.SHARED_EXPERTS, role) if hides else None for role in (Role.UP, Role.DOWN)]
    width = moe.routed_hidden(context.model.hidden)
    copies = (rows * width).astype(np.float64)
    padded = job.capacity_factor(moe) is not None
    # ``Assumption:`` none where another micro-batch runs beside the exchange, whose compute hides them too.
    sends_probabilities = job.preset.layers.sends_probabilities and not job.overlap_expert_a2a

    def exchange(role: Role, overlaps: OpKey | None) -> Pass:
        return expert_all_to_all(context, role, copies, kernel="" if padded else "all2all", overlaps=overlaps)

    def into_order(role: Role) -> Pass:
        if padded and job.preset.layers.transposes_chunks:
            return _transpose_chunks(context, role, sorted_rows, width)
        return move_rows(context, role, (sorted_rows, sorted_rows), width)

    return Exchange(
        rows=rows,
        dispatch=sequence(
            Pass() if padded else _counts(context, moe),
            wait_for_counts(context, moe, move_rows(context, Role.PERMUTE, (own_rows, rows), width)),
            exchange(Role.DISPATCH, first),
            _probabilities(context, rows) if sends_probabilities else Pass(),
        ),
        combine=sequence(exchange(Role.COMBINE, second), move_rows(context, Role.UNPERMUTE, (rows, own_rows), width)),
        # Rows that arrive rank by rank, gathered over etp, into the order of this rank's several experts.
        sort=into_order(Role.SORT),
        unsort=into_order(Role.UNSORT),
    )


COUNT_BYTES = 8  # routing_map.sum(dim=0).long()


def _counts(context: LayerContext, moe: MoeSpec) -> Pass:
    """Returns the gather over ep of every rank's tokens for each expert (``Assumption:`` not over the experts' tp),
    which sizes what follows; forward alone.

    Megatron-LM core 0.13, token_dispatcher.py, MoEAlltoAllTokenDispatcher.preprocess:
    gather_from_sequence_parallel_region of num_local_tokens_per_expert; torchtitan exchanges counts by an all-to-all
    (``models/moe/moe.py``), priced as the gather, which is as short.
    """
    what = OpKey(Module.MOE, Role.GATHER, Role.DISPATCH).named("moe.dispatch.counts")
    size = context.layout.ep * moe.num_experts * COUNT_BYTES
    return Pass(forward=(collective(what, Phase.FORWARD, Collective.ALL_GATHER, Axis.EP, size, "fp32"),))


def _probabilities(context: LayerContext, rows: IntArray) -> Pass:
    """Returns the all-to-all of one probability for each of ``rows``, and of its gradient back, in the router's
    format. Megatron-LM core 0.13, token_dispatch: global_probs; releases before and other frameworks multiply by
    probabilities where tokens come from."""
    dtype = context.job.precision.router or context.job.precision.compute
    what = OpKey(Module.MOE, Role.DISPATCH, Role.DISPATCH).named("moe.dispatch.probabilities")
    size = np.ceil(rows * dtype_bytes(dtype))
    sent = collective(what, Phase.FORWARD, Collective.ALL_TO_ALL, Axis.EP, size, dtype)
    return Pass(forward=(sent,), backward=(replace(sent, phase=Phase.INPUT_GRAD),))


def wait_for_counts(context: LayerContext, moe: MoeSpec, piece: Pass) -> Pass:
    """Returns ``piece`` for which, without padding to a capacity, the host reads how many tokens each expert gets
    before it can size what follows (Megatron-Core token_dispatcher.py, _maybe_dtoh_and_synchronize; DeepEP's dispatch
    waits for them)."""
    waits = context.job.capacity_factor(moe) is None
    return replace(piece, forward=tuple(replace(op, synchronises=waits) for op in piece.forward))


def _transpose_chunks(context: LayerContext, role: Role, rows: IntArray, width: int) -> Pass:
    """Returns the copy of ``rows`` of ``width`` channels, padded to one capacity a chunk: ranks x experts is viewed
    as experts x ranks and copied by PyTorch's kernel for strides, and so are the gradients (Megatron-LM core 0.11 to
    0.15, ``token_dispatcher.py``, drop_and_pad: view, transpose, contiguous; nothing is saved)."""
    return kernel(context, Kernel(OpKey(Module.MOE, role), "strided_copy", rows, width))


def move_rows(context: LayerContext, role: Role, rows: tuple[IntArray, IntArray], width: int, name: str = "") -> Pass:
    """Returns ``rows`` before and after, of ``width`` channels, read and written in another order or number, each once
    (fused permutation, Transformer Engine ``permutation.py``: a row is loaded once and stored for each of its experts).

    The kernel moves its rows in and out, so it is given the mean of both; its backward needs the map alone.
    """
    before, after = rows
    what, map_bytes = OpKey(Module.MOE, role).named(name), 8.0 * np.maximum(before, after)
    return kernel(context, Kernel(what, "permute", (before + after + 1) // 2, width, saved_bytes=map_bytes))


def expert_all_to_all(
    context: LayerContext, role: Role, elements: FloatArray, *, kernel: str, overlaps: OpKey | None = None
) -> Pass:
    """Returns the all-to-all of ``elements`` per rank over ep, mirrored in the backward; ``overlaps`` the shared experts'
    product that may hide it."""
    precision = context.job.precision
    lane = Lane.OVERLAP if overlaps else Lane.MAIN

    def one_way(phase: Phase, dtype: str) -> Comm:
        size = elements * dtype_bytes(dtype)
        return replace(
            collective(OpKey(Module.MOE, role), phase, Collective.ALL_TO_ALL, Axis.EP, size, dtype),
            lane=Lane.ACROSS if context.job.overlap_expert_a2a else lane,
            overlaps=overlaps,
            overlap_phase=phase,
            kernel=kernel,
        )

    # Tokens may travel in fp8 to the experts (DeepSeek-V3); sums and gradients travel as activations do.
    forward_dtype = precision.moe_dispatch if role is Role.DISPATCH else precision.activation
    return Pass(
        forward=(one_way(Phase.FORWARD, forward_dtype),), backward=(one_way(Phase.INPUT_GRAD, precision.activation),)
    )


def fold(context: LayerContext, rows: IntArray, width: int, *, entering: bool) -> Pass:
    """Returns the all-gather of rows of ``width`` channels over etp before the experts, or the reduce-scatter after;
    mirrored backward."""
    size = (rows * context.layout.etp * width * context.activation_bytes).astype(np.int64)
    role = Role.EXPERT_GATHER if entering else Role.EXPERT_SCATTER
    return gather_or_scatter(context, (role, Axis.ETP), size, gathers=entering)


def gather_or_scatter(context: LayerContext, over: tuple[Role, Axis], size_bytes: IntArray, *, gathers: bool) -> Pass:
    """Returns an all-gather forward and a reduce-scatter backward, or the other way round."""
    (role, axis), dtype = over, context.job.precision.activation
    first, second = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    if not gathers:
        first, second = second, first
    what = OpKey(Module.MOE, role)
    return Pass(
        forward=(collective(what, Phase.FORWARD, first, axis, size_bytes, dtype),),
        backward=(collective(what, Phase.INPUT_GRAD, second, axis, size_bytes, dtype),),
    )
