"""Parameters and gradients cut over data-parallel ranks: ZeRO-2, ZeRO-3 and FSDP.

Source: ZeRO (arXiv 1910.02054 sec. 5.2-5.3 and 7.2): a stage-3 layer is gathered before its forward and
again before its backward, and its gradient is reduce-scattered after it; FSDP (arXiv 2304.11277
sec. 3.2-3.3) does so per unit, the next unit's gather beside this one's compute. FSDP's SHARD_GRAD_OP
gathers once and keeps the parameters until the backward. FSDP2 keeps every parameter a tensor of its own, so
collectives are copied out of and into (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). FSDP1's parameters
are views of one flat tensor: gathers need no copy, but autograd joins their gradients into a flat one (the
backward of torch.split), which is cast where it travels in fp32 and divided in place before it is reduced
(torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook and _reduce_grad).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext, keeps_gathered, padded_to_ranks, reduces_once
from ops.data_parallel.sliced_collectives import slice_overhead
from ops.layout import ranks_and_stride
from ops.low_precision import one_copy, recipe_of
from ops.memory_bound import bytes_moved_per_element, memory_pass
from ops.op import Axis, Comm, Lane, MemoryBound, Op, Owner, Pass, Phase, collective, multiplies_low_precision
from ops.roles import Identity, Module, Role
from spec.arrays import BoolArray, FloatArray, IntArray, ceil_div, floats
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


def shard_over_data(context: LayerContext, piece: Pass, module: Module, name: str = "") -> Pass:
    """Returns ``piece`` with the gathers of its parameters and the reduction of its gradients, all of ``module`` and
    labelled with ``name`` (the module's).

    Nothing is added where no row is at stage 2 or above; rows below it move 0 bytes.
    """
    layout = context.layout
    if not np.any(layout.zero_stage >= 2):
        return piece
    # FSDP's outermost unit is not let go of before its backward (reshard_after_forward is False for the root).
    data_parallel = context.job.preset.data_parallel
    stays = data_parallel.gathers_every_forward and module in (Module.EMBEDDING, Module.HEAD)
    # These rows gather, and these reduce, once a step (ops.data_parallel.step).
    job = context.job
    once, summed = keeps_gathered(job, layout), reduces_once(job, layout)
    forward: list[Op] = []
    backward: list[Op] = []
    for owner in (Owner.DENSE, Owner.EXPERT):
        shard_axis = context.traits.copies.axes(owner)[1]
        elements = _elements(piece, owner, len(layout))
        stored = elements + _elements(piece, owner, len(layout), lambda op: op.frozen)
        if not stored.any():
            continue
        ranks, _ = ranks_and_stride(shard_axis, layout)
        every_forward = (layout.zero_stage == 2) & data_parallel.gathers_every_forward
        # Stage 3 gathers before every forward and every backward. Stage 2 holds whole parameters; only SHARD_GRAD_OP
        # gathers them before the forward, and keeps them until the backward.
        gathers = ((layout.zero_stage >= 3) | every_forward) & ~once
        label = f"{name or module}.{owner}"
        what = Identity(module=module, role=Role.PARAMETER_GATHER, name=f"{label}_parameters")
        low_precision = _elements(piece, owner, len(layout), _low_precision_elements(context))
        weights = WeightGather(
            axis=shard_axis, ranks=ranks, high_precision=stored - low_precision, low_precision=low_precision
        )
        gather = _gather(context, what, weights.where(gathers), Phase.FORWARD)
        shard = _cast_shard(context, what, weights.where(gathers), Phase.FORWARD)
        backward_weights = weights.where((layout.zero_stage >= 3) & (not stays) & ~once)
        again = _gather(context, what, backward_weights, Phase.INPUT_GRAD)
        shard_again = _cast_shard(context, what, backward_weights, Phase.INPUT_GRAD)
        reduction = Identity(module=module, role=Role.GRADIENT_REDUCTION, name=f"{label}_gradient")
        forward += [*shard, gather, *_copy_out(context, gather)]
        reduced = _reduce(context, reduction, owner, np.where(summed, 0, elements)) if elements.any() else []
        backward += [*shard_again, again, *_copy_out(context, again), *reduced]
        if summed.any():
            backward += _add_up(context, reduction, np.where(summed, elements, 0))
    before, behind = slice_overhead(context, piece, module, _elements(piece, Owner.DENSE, len(layout)))
    return Pass(forward=(*forward, *before, *piece.forward), backward=(*piece.backward, *backward, *behind))


def _add_up(context: LayerContext, reduction: Identity, elements: IntArray) -> list[Op]:
    """Returns the addition of this micro-batch's gradients to those of earlier ones, whole and in the format they
    will travel in (_fsdp_param.py, accumulate_unsharded_grad_if_needed). FSDP1 joins those of each micro-batch and
    adds them up in the format of the products (_runtime_utils.py, _post_backward_hook without _sync_gradients).
    Assumption: of the first micro-batch too, which is only cast."""
    joins = context.job.preset.data_parallel.fsdp_version == 1
    kernel = "accumulate_wide" if context.reduce_dtype == "fp32" and not joins else "accumulate"
    what = reduction.key.served_by(Role.ACCUMULATE, f"{reduction.name}_sum")
    added = memory_pass(what, Phase.WEIGHT_GRAD, kernel, elements, context.job.precision.activation)
    if not joins:
        return [added]
    join = reduction.key.served_by(Role.COPY, f"{reduction.name}_join")
    return [_pass(context, join, "copy", Phase.WEIGHT_GRAD, floats(elements)), added]


def _elements(
    piece: Pass, owner: Owner, rows: int, count: Callable[[Op], IntArray] = lambda op: op.parameters
) -> IntArray:
    total = np.zeros(rows, dtype=np.int64)
    for op in piece.forward:
        if op.owner is owner:
            total = total + count(op)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGather:
    """Elements that ``ranks`` of an axis hold parts of: those that travel in the format of low-precision products,
    and others."""

    axis: Axis
    ranks: IntArray
    high_precision: IntArray
    low_precision: IntArray

    def where(self, gathers: BoolArray) -> "WeightGather":
        """Returns the same with nothing in the other rows."""
        return replace(
            self,
            high_precision=np.where(gathers, self.high_precision, 0),
            low_precision=np.where(gathers, self.low_precision, 0),
        )


def _low_precision_elements(context: LayerContext) -> Callable[[Op], IntArray]:
    """Returns what counts the elements of an operation's weights that travel in the format in which its product reads
    them."""
    here = context.job.precision.gathers_low_precision
    return lambda op: (op.parameters + op.frozen) * int(here and multiplies_low_precision(op))


def _cast_shard(context: LayerContext, what: Identity, weights: WeightGather, phase: Phase) -> list[Op]:
    """Returns the cast of a rank's shard before the gather, where weights are stored in 16 bits and travel in 8, as
    the job's recipe casts weights: torchao (``float8/fsdp_utils.py``,
    WeightWithDynamicFloat8CastTensor.fsdp_pre_all_gather), XLA (collective_quantizer.cc: what is cast behind
    a gather is cast before it)."""
    recipe, precision = recipe_of(context), context.job.precision
    if recipe is None or precision.low_precision_parameters or not weights.low_precision.any():
        return []
    passes = one_copy(recipe.weight)
    moved = passes.bytes_per_element(dtype_bytes(precision.activation), dtype_bytes(precision.linear))
    copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
    rows = np.ceil(ceil_div(weights.low_precision, weights.ranks) * moved / copied).astype(np.int64)
    cast = what.key.served_by(Role.CAST, f"{what.name}_cast")
    return [memory_pass(cast, phase, "copy", rows, precision.activation)]


def _gather(context: LayerContext, what: Identity, weights: WeightGather, phase: Phase) -> Comm:
    precision, ranks = context.job.precision, weights.ranks
    dtype = precision.parameter_gather if weights.low_precision.any() else precision.high_precision_gather
    # Two buffers, one a format, gathered one after the other and shown as one collective of their bytes.
    size = padded_to_ranks(weights.high_precision, ranks, dtype_bytes(precision.high_precision_gather))
    if weights.low_precision.any():
        size = size + padded_to_ranks(weights.low_precision, ranks, dtype_bytes(precision.parameter_gather))
    return replace(
        collective(what, phase, Collective.ALL_GATHER, weights.axis, size, dtype),
        lane=Lane.PREFETCH if context.job.preset.data_parallel.overlap_weights else Lane.MAIN,
    )


def _copy_out(context: LayerContext, gather: Comm) -> list[Op]:
    """Returns the copy of what a gather brought to each parameter, where the preset keeps them apart
    (PyTorch's ``foreach_all_gather_copy_out``, on the stream that computes)."""
    if context.job.preset.data_parallel.fsdp_version != 2:
        return []
    width = dtype_bytes(context.job.precision.high_precision_gather)
    copied = gather.key.served_by(Role.COPY, f"{gather.name}_copy")
    return [_pass(context, copied, "copy", gather.phase, gather.size_bytes / width)]


def _join_gradients(context: LayerContext, reduction: Identity, elements: FloatArray) -> list[Op]:
    """Returns the passes of FSDP1 over a unit's gradient before its reduce-scatter. ``Assumption:`` the cast and the
    division, on a stream of their own, slow the products beside them by what they take alone."""
    reduce = context.reduce_dtype

    def kernel_pass(role: Role, way: str, kernel: str) -> MemoryBound:
        what = reduction.key.served_by(role, f"{reduction.name}_{way}")
        return _pass(context, what, kernel, Phase.WEIGHT_GRAD, elements)

    ops: list[Op] = [kernel_pass(Role.COPY, "join", "copy")]
    if reduce == "fp32":
        ops.append(kernel_pass(Role.CAST, "cast", "cast"))
    ops.append(replace(kernel_pass(Role.COPY, "divide", "copy"), dtype=reduce))
    return ops


def _pass(context: LayerContext, what: Identity, kernel: str, phase: Phase, elements: FloatArray) -> MemoryBound:
    rows = np.ceil(elements).astype(np.int64)
    return memory_pass(what, phase, kernel, rows, context.job.precision.high_precision_gather)


def _reduce(context: LayerContext, what: Identity, owner: Owner, elements: IntArray) -> list[Op]:
    """Returns the reduction over the shards, then for hybrid sharding an all-reduce over the replicas. At stage 2 it
    is as the preset reduces gradients of a sharded optimizer, all-reduced or not, beside the backward or in its way
    (DeepSpeed runtime/zero/stage_1_and_2.py, average_tensor: overlap_comm, use_multi_rank_bucket_allreduce)."""
    layout = context.layout
    dtype = context.reduce_dtype
    axis = context.traits.copies.axes(owner)[1]
    ranks, _ = ranks_and_stride(axis, layout)
    sharded = np.where(layout.zero_stage >= 2, elements, 0)
    whole = padded_to_ranks(sharded, ranks, dtype_bytes(dtype))

    def reduction(kind: Collective, over: Axis, size: IntArray, lane: Lane = Lane.PREFETCH) -> Comm:
        return replace(collective(what, Phase.WEIGHT_GRAD, kind, over, size, dtype), lane=lane)

    ops: list[Op] = []
    if context.job.preset.data_parallel.fsdp_version == 2:
        # foreach_reduce_scatter_copy_in, which also brings gradients to the format they travel in
        kernel = "cast" if dtype == "fp32" else "copy"
        copied = what.key.served_by(Role.COPY, f"{what.name}_copy")
        ops.append(_pass(context, copied, kernel, Phase.WEIGHT_GRAD, whole / dtype_bytes(dtype)))
    if context.job.preset.data_parallel.fsdp_version == 1:
        ops.extend(_join_gradients(context, what, whole / dtype_bytes(dtype)))
    if dtype != context.job.precision.reduce:
        # DeepSpeed, runtime/zero/stage_1_and_2.py, allreduce_bucket; stage3.py, __avg_scatter_contiguous_grads
        for way in ("widen", "narrow"):
            cast = what.key.served_by(Role.CAST, f"{what.name}_{way}")
            ops.append(_pass(context, cast, "cast", Phase.WEIGHT_GRAD, whole / dtype_bytes(dtype)))
    choices = context.job.preset.data_parallel
    kind = Collective.ALL_REDUCE if choices.gradient_sync == "all_reduce" else Collective.REDUCE_SCATTER
    lane = Lane.PREFETCH if choices.overlap_grad_reduce else Lane.MAIN
    # One column holds rows of both stages: each collective moves 0 bytes in the rows of the other.
    second = np.where(layout.zero_stage == 2, whole, 0)
    ops += [reduction(kind, axis, second, lane), reduction(Collective.REDUCE_SCATTER, axis, whole - second)]
    if owner is Owner.DENSE:
        replicas, _ = ranks_and_stride(context.traits.copies.zero_replicate, layout)
        shard = np.where(replicas > 1, whole // ranks, 0)
        ops.append(reduction(Collective.ALL_REDUCE, context.traits.copies.zero_replicate, shard))
    return ops
