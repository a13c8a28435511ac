"""How a layer is cut over the tensor-parallel ranks: the strategies that a plan can name, and the only list of them."""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import HeadTensors, LayerContext, Sharding, Traits, WeightCopies, padded_to_ranks
from ops.op import Axis, Comm, Lane, Ops, Owner, Pass, Phase, collective
from ops.roles import Identity, OpKey, Role
from spec.arrays import IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.errors import ConfigError
from spec.frameworks import TensorParallel


def tp_collective(context: LayerContext, what: Identity, phase: Phase, kind: Collective, size_bytes: IntArray) -> Comm:
    """Returns a collective of activations over tp that the rank waits for."""
    return collective(what, phase, kind, Axis.TP, size_bytes, context.job.precision.activation)


def tp_gather(context: LayerContext, what: Identity, phase: Phase, size_bytes: IntArray, linear: OpKey) -> Comm:
    """Returns the all-gather of the input, or of the output gradient, of ``linear``, in the precision it travels in."""
    gather = tp_collective(context, what, phase, Collective.ALL_GATHER, size_bytes)
    if not context.job.precision.low_precision_linear:
        return gather
    from ops.low_precision import low_precision_gather

    return low_precision_gather(context, gather, linear)


def full_tokens_bytes(context: LayerContext, width: int = 0) -> IntArray:
    """Returns the bytes of ``width`` channels (the hidden size when 0) of a rank's whole micro-batch, rounded up to
    whole shards."""
    layout = context.layout
    # a reduce-scatter or all-gather moves equal shards: short ones are padded
    tokens = -(-context.tokens // layout.tp) * layout.tp
    return (tokens * (width or context.model.hidden) * context.activation_bytes).astype(np.int64)


def backward_collective(context: LayerContext, comm: Comm, linear: OpKey, phase: Phase) -> Comm:
    """Returns a collective of the backward as it runs beside the other gradient's GEMM of ``linear`` (before it where
    the framework overlaps nothing): beside its INPUT_GRAD the input gathered again, beside its WEIGHT_GRAD the input
    gradient reduced."""
    choices = context.job.preset.tensor_parallel
    # A collective hides behind the product that does not depend on it: the weight gradient does not read the reduced
    # input gradient, and the input gradient does not read the gathered input.
    lane = Lane.OVERLAP if choices.overlap_backward or _in_bulk(choices, phase) else Lane.MAIN
    return replace(comm, lane=lane, overlaps=linear, overlap_phase=phase)


def _in_bulk(choices: TensorParallel, phase: Phase) -> bool:
    """Returns whether user buffers run a whole collective beside the GEMM of ``phase``."""
    return choices.overlap and (choices.bulk_dgrad if phase is Phase.INPUT_GRAD else choices.bulk_wgrad)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronTensor(Sharding):
    """Megatron tensor parallelism (*mtp*): weights cut over tp, every rank sees all tokens; two all-reduces forward and
    two backward a layer.

    Source: Shoeybi et al. 2019 (arXiv 1909.08053) sec. 3; the backward all-reduce of a column-parallel linear runs
    beside its weight gradient (Megatron-LM, LinearWithGradAccumulationAndAsyncCommunication).
    """

    def column_parallel_input(self, context: LayerContext, linear: OpKey, width: int) -> Pass:
        """Returns the sum of the input gradient over the ranks beside the weight gradient; nothing forward."""
        # The conjugate pair f and g of Megatron: f is the identity forward and an all-reduce backward, g the reverse.
        size = full_tokens_bytes(context, width)
        enter = linear.served_by(Role.ENTER)
        summed = tp_collective(context, enter, Phase.INPUT_GRAD, Collective.ALL_REDUCE, size)
        return Pass(backward=(backward_collective(context, summed, linear, Phase.WEIGHT_GRAD),))

    def row_parallel_output(self, context: LayerContext, linear: OpKey) -> Pass:
        """Returns the sum of the partial outputs over the ranks."""
        leave, size = linear.served_by(Role.LEAVE), full_tokens_bytes(context)
        return Pass(forward=(tp_collective(context, leave, Phase.FORWARD, Collective.ALL_REDUCE, size),))


CUT_TOKENS = Traits(cuts_tokens=True, assembles=(Collective.REDUCE_SCATTER, Collective.ALL_GATHER))


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParallel(Sharding):
    """Tensor with sequence parallelism: weights cut over tp, and tokens between the linears. An all-gather enters a
    block, a reduce-scatter leaves it (Korthikanti et al. 2022, arXiv 2205.05198 sec. 4.2).

    *msp* (InternEvo) keeps the gathered input for the weight gradient; *fsp* (``regather``) keeps the shard and gathers
    it again in the backward beside the input-gradient GEMM (ibid. sec. 4.2.2), which is what Megatron-LM does.
    """

    regather: bool

    def column_parallel_input(self, context: LayerContext, linear: OpKey, width: int) -> Pass:
        """Returns the all-gather in; backward: reduce-scatter of the input gradient beside the weight gradient
        and, for fsp, the gather again beside the input gradient."""
        size = full_tokens_bytes(context, width)
        enter, again = linear.served_by(Role.ENTER), linear.served_by(Role.REGATHER)
        gather = tp_gather(context, enter, Phase.FORWARD, size, linear)
        scatter = tp_collective(context, enter, Phase.INPUT_GRAD, Collective.REDUCE_SCATTER, size)
        # the input gradient is scattered while the weight gradient, which does not need it, is computed
        backward = _scatter(context, _with_buffers(context, scatter, linear, Phase.WEIGHT_GRAD), linear)
        # fsp saved the shard alone: the weight gradient needs the whole input again
        if self.regather:
            regather = tp_gather(context, again, Phase.WEIGHT_GRAD, size, linear)
            regather = _with_buffers(context, regather, linear, Phase.INPUT_GRAD)
            backward = (regather, *_in_order(context, regather), *backward)
        return Pass(forward=_gather(context, gather, linear), backward=backward)

    def row_parallel_output(self, context: LayerContext, linear: OpKey) -> Pass:
        """Returns the reduce-scatter out; backward: all-gather of the output gradient."""
        size, leave = full_tokens_bytes(context), linear.served_by(Role.LEAVE)
        scatter = tp_collective(context, leave, Phase.FORWARD, Collective.REDUCE_SCATTER, size)
        gather = tp_gather(context, leave, Phase.INPUT_GRAD, size, linear)
        return Pass(forward=_scatter(context, scatter, linear), backward=_gather(context, gather, linear))


def _with_buffers(context: LayerContext, comm: Comm, linear: OpKey, phase: Phase) -> Comm:
    """Returns a backward_collective of cut tokens, which user buffers may run in bulk."""
    comm = backward_collective(context, comm, linear, phase)
    if not _in_bulk(context.job.preset.tensor_parallel, phase):
        return comm
    from ops.tp_overlap import in_bulk

    return in_bulk(context, comm, linear)


def _gather(context: LayerContext, gather: Comm, linear: OpKey) -> Ops:
    """Returns an all-gather whose tokens ``linear`` multiplies, with what runs around it."""
    if context.job.preset.tensor_parallel.overlap:
        from ops.tp_overlap import gather_into

        gather = gather_into(context, gather, linear)
    ops: Ops = (gather, *_in_order(context, gather))
    if not context.job.precision.low_precision_linear:
        return ops
    from ops.low_precision import agreed_scale, other_order

    # An output gradient is read along rows by one product and along columns by the other.
    behind = other_order(context, gather, linear) if gather.phase is Phase.INPUT_GRAD else ()
    return (*agreed_scale(context, linear, gather.phase), *ops, *behind)


def _scatter(context: LayerContext, scatter: Comm, linear: OpKey) -> Ops:
    """Returns a reduce-scatter of what ``linear`` makes, with what runs around it."""
    reduced: Ops = (scatter,)
    if context.job.preset.tensor_parallel.overlap:
        from ops.tp_overlap import scatter_from

        reduced = scatter_from(context, scatter, linear)
    return (*(op for one in reduced if isinstance(one, Comm) for op in _in_order(context, one)), *reduced)


def _in_order(context: LayerContext, comm: Comm) -> Ops:
    if not context.job.preset.tensor_parallel.dtensor:
        return ()
    from ops.tp_overlap import in_order

    return in_order(context, comm)


OWN_TOKENS = Traits(
    cuts_matrices=False,
    cuts_tokens=True,
    saves_shards=True,
    assembles=(Collective.ALL_TO_ALL, Collective.ALL_TO_ALL),
    cuts_vocabulary=False,
    exchanges_heads=True,
    repeats_kv_heads=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShards(Sharding):
    """Tokens cut over tp everywhere but in the attention kernel; each rank multiplies its own by whole matrices.

    All-to-alls around attention exchange tokens for heads (DeepSpeed-Ulysses, arXiv 2309.14509 sec. 3.1-3.2).
    """

    def around_attention(self, context: LayerContext, tensors: HeadTensors) -> tuple[Pass, Pass]:
        """Returns the exchange of token shards for head shards, and back: four all-to-alls in each pass."""
        from ops.head_exchange import exchange_heads, over_tp

        return exchange_heads(context, tensors, over_tp(context))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeights(TokenShards):
    """InternEvo's *isp*: tokens cut over tp, weights over wp. These are gathered per linear in the forward and again in
    the backward, one layer ahead; their gradient is reduce-scattered (arXiv 2401.09149 sec. 3). The embedding's table
    is cut over the hidden size."""

    def weights(self, context: LayerContext, linear: OpKey, elements: IntArray) -> Pass:
        """Returns the all-gather in both passes and the reduce-scatter of the gradient, all one layer ahead or
        behind."""
        precision = context.job.precision
        wp = context.layout.wp

        # elements are those of one rank's matrix whole: an all-gather's output, a reduce-scatter's input
        def weight_collective(role: Role, kind: Collective, dtype: str, phase: Phase) -> Comm:
            return replace(
                collective(
                    OpKey(linear.module, role, linear.role).named(f"{linear.module}.{linear.role}.weight"),
                    phase,
                    kind,
                    Axis.WP,
                    padded_to_ranks(elements, wp, dtype_bytes(dtype)),
                    dtype,
                ),
                lane=Lane.PREFETCH if context.job.preset.data_parallel.overlap_weights else Lane.MAIN,
            )

        gather = weight_collective(Role.WEIGHT_GATHER, Collective.ALL_GATHER, precision.parameter_gather, Phase.FORWARD)
        scatter = weight_collective(
            Role.GRADIENT_REDUCTION, Collective.REDUCE_SCATTER, precision.reduce, Phase.WEIGHT_GRAD
        )
        return Pass(forward=(gather,), backward=(replace(gather, phase=Phase.INPUT_GRAD), scatter))


ULYSSES = TokenShards(
    name="ulysses",
    traits=replace(
        OWN_TOKENS,
        cuts_embedding=False,
        copies=WeightCopies(dense=Axis.SDP, zero_shard=Axis.SDP_SHARD, zero_replicate=Axis.SDP_REPLICATE),
        assembles=(None, None),
        cuts_experts=False,
        pipelined=False,
        deepest_stage_with_ep=2,
    ),
)
"""DeepSpeed-Ulysses: the sequence cut over tp ranks, and weights whole on each of them, or sharded by ZeRO over data
and sequence ranks together; gradients are summed over both (arXiv 2309.14509 sec. 3.3; DeepSpeed, utils/groups.py,
_get_sequence_data_parallel_group). It runs beside neither tensor parallelism nor a pipeline (Megatron-DeepSpeed,
core/parallel_state.py, initialize_model_parallel), and its experts only up to ZeRO stage 2
(deepspeed/runtime/engine.py, _validate_zero3_moe_compatibility)."""

ISP = replace(OWN_TOKENS, copies=WeightCopies(linear_owner=Owner.WEIGHT), gathers_weights=True)

# The order is the one in which help texts and refusals list them.
ALL: tuple[Sharding, ...] = (
    MegatronTensor(name="mtp", traits=Traits(uncut=True)),
    SequenceParallel(name="msp", regather=False, traits=replace(CUT_TOKENS, shares_gathered_input=True)),
    SequenceParallel(name="fsp", regather=True, traits=replace(CUT_TOKENS, saves_shards=True)),
    ShardedWeights(name="isp", traits=ISP),
    ULYSSES,
)
STRATEGIES: dict[str, Sharding] = {one.name: one for one in ALL}


def strategy_named(name: str, *, where: str) -> Sharding:
    """Returns the strategy of that name; raises ConfigError naming the known ones."""
    if name not in STRATEGIES:
        raise ConfigError(where=where, key="strategy", value=name, allowed=f"one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
