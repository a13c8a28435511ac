"""The operations of a rank once per optimizer step: gradient reduction, update, parameters back.

Sources: ZeRO (arXiv 1910.02054 sec. 5 and 7: reduce-scatter of gradients, all-gather of parameters);
InternEvo sends updated shards by broadcast, one per owner.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ops.context import LayerContext, keeps_gathered, reduces_once
from ops.embedding_and_head import embedding_elements
from ops.layout import ranks_and_stride
from ops.memory_bound import memory_pass
from ops.op import Axis, Comm, MemoryBound, Op, Ops, Owner, Phase, Update, collective
from ops.roles import Identity, Module, Role
from spec.arrays import BoolArray, FloatArray, IntArray, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes

if TYPE_CHECKING:
    from ops.data_parallel.muon import MatrixCount, MatrixShards

# What runs over gradients and parameters around the optimizer's own pass, once a step.
#
# Mixed precision keeps an fp32 master copy, so gradients are brought to it and the new parameters back
# (Micikevicius et al. 2017, arXiv 1710.03740 sec. 3.1). In the order of Megatron-LM
# (``Float16OptimizerWithFloat16Params.step`` in megatron/optimizer/optimizer.py,
# ``zero_grad_buffer`` and ``allreduce_gradients`` in megatron/model/distributed.py, v2.3 to v3.0; Megatron-Core
# kept the passes): the gradient buffer is zeroed and, among several ranks, divided by their number; the owned part is
# copied to fp32, with fp16 unscaled and checked for infinities, its norm taken, clipped, and after the update
# copied back. DeepSpeed (``step`` of runtime/zero/stage_1_and_2.py: ``unscale_and_clip_grads``) and InternEvo
# (``HybridZeroOptimizer.step``) make the same passes over their shards;
# InternEvo averages inside its all-reduce and copies gradients into a flat bucket before it and back after
# (0.5.2, internlm/solver/optimizer/store.py, ``TensorBucket.flatten`` and ``unflatten_and_copy``; utils.py,
# ``reduce_tensor``), which releases 0.1 and 0.2 divide there first (``tensor_to_reduce.div_(world_size)``).


def optimizer_passes(context: LayerContext, on_rank: IntArray, owned: IntArray) -> tuple[Ops, Ops]:
    """Returns the kernels before and after the update, for ``on_rank`` gradient elements that a rank keeps (a shard at
    stages 2 and 3) and the ``owned`` ones whose state it keeps.

    ``Assumption:`` the norm is above the limit, as in the first steps of a training, so that every gradient is
    scaled down.
    """
    precision, preset, layout = context.job.precision, context.job.preset, context.layout
    gradient, master = precision.gradient, precision.master
    optimizer_dtype = master or gradient
    copies, _ = ranks_and_stride(context.traits.copies.dense, layout)
    whole = np.where(layout.zero_stage < 2, on_rank, 0)
    divided = np.where(copies > 1, whole, 0)
    # (name, kernel of ops.memory_bound, elements, format) of each pass, in the order in which they run
    before: list[tuple[str, str, IntArray, str]] = [("divide_gradients", "copy", divided, gradient)]
    if preset.data_parallel.flattened_buckets:
        flatten = ("flatten_gradients", "copy", divided, gradient)
        divides = before if preset.data_parallel.divides_buckets else []
        before = [flatten, *divides, ("unflatten_gradients", "copy", divided, gradient)]
    else:
        if context.reduce_dtype != precision.reduce:
            # DeepSpeed, runtime/zero/stage_1_and_2.py, allreduce_bucket
            before = [
                ("widen_gradients", "cast", divided, gradient),
                ("divide_gradients", "copy", divided, context.reduce_dtype),
                ("narrow_gradients", "cast", divided, gradient),
            ]
        if preset.host.checks_numbers:
            # megatron/core/distributed/param_and_grad_buffer.py, check_grads; Megatron-FSDP takes check_for_nan_in_grad
            # and never reads it (core 0.15, distributed/fsdp/src/megatron_fsdp)
            before.insert(0, ("check_gradients", "norm_reduce", whole, gradient))
    # Megatron zeroes its gradient buffer; other frameworks set gradients to None and write the first one.
    if preset.data_parallel.contiguous_gradients:
        # of Megatron-FSDP's shard: param_and_grad_buffer.py, zero_grad (main_grad_buffer.data)
        before.append(("zero_gradients", "fill", on_rank, gradient))
    if master and dtype_bytes(gradient) < dtype_bytes(master):
        before.append(("master_gradients", "cast", owned, gradient))
    if precision.compute == "fp16":
        before.append(("unscale_gradients", "copy", owned, optimizer_dtype))
    if preset.data_parallel.clips_gradients:
        before.append(("gradient_norm", "norm_reduce", owned, optimizer_dtype))
        before.append(("clip_gradients", "copy", owned, optimizer_dtype))
    if not master and dtype_bytes(gradient) > dtype_bytes(precision.parameter):
        # torch takes no gradient of another format than its parameter's (Picotron
        # picotron/data_parallel/data_parallel.py, _post_backward: p.grad = p.main_grad.to(p.dtype))
        before.append(("parameter_gradients", "cast", owned, precision.parameter))
    after: list[tuple[str, str, IntArray, str]] = []
    if master and precision.parameter != master:
        after.append(("model_parameters", "cast", owned, precision.parameter))
    if precision.low_precision_parameters and precision.gathers_low_precision:
        from ops.low_precision import finds_scale_first

        # TransformerEngine tensor/utils.py, _cast_master_weights_to_fp8_current_scaling: maxima of the master's shards
        if finds_scale_first(precision):
            after.insert(0, ("parameter_maxima", "norm_reduce", owned, optimizer_dtype))
    gradients = tuple(_pass(Role.GRADIENT_PASS, *one) for one in before)
    return gradients, tuple(_pass(Role.PARAMETER_PASS, *one) for one in after)


# torch/optim/adamw.py, _multi_tensor_adamw of PyTorch 2.1: the operations mul_, lerp_, mul_, addcmul_, sqrt,
# div_, add_ and addcdiv_ read 12 tensors and write 8 (_single_tensor_adamw of 1.13 one more each); a fused
# update reads parameters, gradients and both moments and writes all but gradients.
FURTHER_READS, FURTHER_WRITES = 12 - 4, 8 - 3


def update_passes(context: LayerContext, elements: IntArray) -> Ops:
    """Returns the passes of an update in elementwise operations, one after another, over ``elements`` beyond one in one
    kernel."""
    dtype = context.job.precision.moments
    copied = _pass(Role.PARAMETER_PASS, "update_copies", "copy", elements, dtype)
    read = _pass(Role.PARAMETER_PASS, "update_reads", "norm_reduce", elements, dtype)
    return replace(copied, repeat=FURTHER_WRITES), replace(read, repeat=FURTHER_READS - FURTHER_WRITES)


def _pass(role: Role, name: str, kernel: str, elements: IntArray, dtype: str) -> MemoryBound:
    """Returns one kernel of ops.memory_bound over ``elements``, once a step."""
    what = Identity(module=Module.STEP, role=role, name=f"{Module.STEP}.{name}")
    return memory_pass(what, Phase.STEP, kernel, elements, dtype)


# Updated parameters sent by who owns whole ones.
#
# Source: InternEvo, internlm/solver/optimizer/hybrid_zero_optim.py: ``_partition_param_list`` gives every
# parameter whole to the rank that has fewest elements so far, and ``_broadcast_params`` leaves out ranks that
# got none.


def broadcast_by_owners(ops: Ops, tensors: Mapping[Owner, IntArray]) -> Ops:
    """Returns ``ops`` of a step with no more broadcasts of an owner's parameters than it has ``tensors`` on the rank,
    and all of their bytes. Owners that ``tensors`` leaves out have more of them than ranks (experts, a tensor
    each and product)."""
    sent: list[Op] = []
    for op in ops:
        if not isinstance(op, Comm) or op.collective is not Collective.BROADCAST or op.owner not in tensors:
            sent.append(op)
            continue
        shards = np.asarray(op.repeat, dtype=np.int64)
        owners = np.minimum(shards, np.maximum(tensors[op.owner], 1))
        sent.append(replace(op, repeat=owners, size_bytes=ceil_div(op.size_bytes * shards, owners)))
    return tuple(sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """Trained elements on one rank by owner, one entry per row, those among them that Muon updates, and those that
    products of 8 bits or fewer read (``low_precision``, of the same owners; None: none)."""

    dense: IntArray
    weight: IntArray
    expert: IntArray
    matrices: "tuple[MatrixCount, ...]" = ()
    low_precision: "RankParameters | None" = None

    @staticmethod
    def by_owner(
        count: Callable[[Owner], IntArray], low_precision: Callable[[Owner], IntArray] | None = None
    ) -> "RankParameters":
        """Returns as many of each owner as ``count`` says, ``low_precision`` of them read by low-precision products."""
        return RankParameters(
            dense=count(Owner.DENSE),
            weight=count(Owner.WEIGHT),
            expert=count(Owner.EXPERT),
            low_precision=None if low_precision is None else RankParameters.by_owner(low_precision),
        )

    @property
    def total(self) -> IntArray:
        """Returns the elements of all owners."""
        return self.dense + self.weight + self.expert

    def take(self, rows: IntArray) -> "RankParameters":
        """Returns these rows."""
        return RankParameters(
            dense=self.dense[rows],
            weight=self.weight[rows],
            expert=self.expert[rows],
            matrices=tuple(count.take(rows) for count in self.matrices),
            low_precision=None if self.low_precision is None else self.low_precision.take(rows),
        )

    def of(self, owner: Owner) -> IntArray:
        """Returns the elements of one owner."""
        return {Owner.DENSE: self.dense, Owner.WEIGHT: self.weight, Owner.EXPERT: self.expert}[owner]

    @property
    def low_precision_total(self) -> IntArray:
        """Returns all elements that products of 8 bits or fewer read."""
        return np.zeros_like(self.total) if self.low_precision is None else self.low_precision.total

    def low_precision_of(self, owner: Owner) -> IntArray:
        """Returns the elements of one owner that products of 8 bits or fewer read."""
        return np.zeros_like(self.of(owner)) if self.low_precision is None else self.low_precision.of(owner)


def shards(context: LayerContext, owner: Owner) -> IntArray:
    """Returns the parts that the optimizer state of ``owner``'s parameters is cut into.

    Dense ones by zero_size; experts by as much of it as their own data-parallel group has; isp's
    weights, already cut by wp, by zero_size / (wp / tp) and at least 1.
    """
    layout = context.layout
    if owner is Owner.DENSE:
        return layout.zero_size
    if owner is Owner.EXPERT:
        return np.gcd(layout.zero_size, layout.edp)
    # gcd: a shard group is cut by as much of zero_size as divides the ranks that hold the same weights
    return np.gcd(layout.zero_size, layout.wdp)


def muon_shards(context: LayerContext, on_rank: RankParameters, owner: Owner) -> "MatrixShards":
    """Returns the matrices of ``owner`` among its shards."""
    from ops.data_parallel.muon import shard_matrices

    return shard_matrices(on_rank.matrices, owner, shards(context, owner))


def muon_elements(context: LayerContext, on_rank: RankParameters, owner: Owner) -> IntArray:
    """Returns the elements of the matrices of ``owner`` that the busiest rank updates: its slice of each."""
    slices = context.layout.etp if owner is Owner.EXPERT else context.layout.tp
    return np.ceil(muon_shards(context, on_rank, owner).elements / slices).astype(np.int64)


def shard_elements(context: LayerContext, on_rank: RankParameters, owner: Owner) -> IntArray:
    """Returns the elements of ``owner`` in the largest shard: an equal part of what AdamW updates, and Muon's whole
    matrices."""
    parts = shards(context, owner)
    if not on_rank.matrices:
        return ceil_div(on_rank.of(owner), parts)
    layout = context.layout
    slices = layout.etp if owner is Owner.EXPERT else layout.tp
    whole = sum(one.count * one.matrix.elements for one in on_rank.matrices if one.matrix.owner is owner)
    rest = np.maximum(on_rank.of(owner) - whole // slices, 0)
    return ceil_div(rest, parts) + muon_elements(context, on_rank, owner)


def owned_elements(context: LayerContext, on_rank: RankParameters) -> IntArray:
    """Returns the elements whose optimizer state this rank keeps and updates."""
    return sum((shard_elements(context, on_rank, owner) for owner in Owner), 0 * on_rank.dense)


def owned_by_muon(context: LayerContext, on_rank: RankParameters) -> IntArray:
    """Returns those of them that have one moment."""
    if not on_rank.matrices:
        return 0 * on_rank.dense
    return sum((muon_elements(context, on_rank, owner) for owner in Owner), 0 * on_rank.dense)


def step_ops(context: LayerContext, on_rank: RankParameters, tied: BoolArray, *, mirrored: bool = False) -> Ops:
    """Returns reduction, norm, update and return of the parameters for every row.

    Embedding or head of ``tied`` rows are shared with another stage, and their gradients summed between the two
    (Megatron-LM's embedding group). ``mirrored``: another stage holds the same parameters (DualPipe, arXiv 2412.19437
    sec. 3.2.1). Assumption: both update all they hold, and sum gradients of their shards.

    Where the optimizer is not sharded (zero_size 1) gradients are all-reduced, every copy updates
    everything and nothing returns.
    """
    ops: list[Op] = []
    summed = Collective.ALL_REDUCE
    # Beside adapters both are frozen, and have no gradients to sum.
    if tied.any() and not context.job.adapter_rank:
        dtype: str = context.job.precision.gradient
        tied_bytes = np.where(tied, embedding_elements(context), 0) * dtype_bytes(dtype)
        ops.append(_reduction("tied_gradient", summed, Axis.EMBEDDING, tied_bytes, dtype))
    present = tuple(owner for owner in Owner if on_rank.of(owner).any())
    for owner in present:
        ops += _reductions(context, owner, on_rank)
    if mirrored:
        dtype = context.reduce_dtype
        size = owned_elements(context, on_rank) * dtype_bytes(dtype)
        ops.append(_reduction("mirrored_gradient", summed, Axis.EMBEDDING, size, dtype))
    ops += _update(context, on_rank)
    ops.extend(_return(context, owner, on_rank) for owner in present)
    return tuple(ops)


def _reduction(
    name: str, kind: Collective, axis: Axis, size_bytes: IntArray | FloatArray, dtype: str, owner: Owner = Owner.DENSE
) -> Comm:
    """Returns a collective of the step over gradients of the parameters of ``owner``."""
    what = Identity(module=Module.STEP, role=Role.GRADIENT_REDUCTION, name=f"{Module.STEP}.{name}")
    return replace(collective(what, Phase.STEP, kind, axis, size_bytes, dtype), owner=owner)


def _reductions(context: LayerContext, owner: Owner, on_rank: RankParameters) -> list[Op]:
    """Returns gradients summed over the copies; hybrid sharding sums the shards over the replicas after."""
    layout, job, copies = context.layout, context.job, context.traits.copies
    dtype, axis = context.reduce_dtype, copies.axes(owner)[0]
    # From stage 2 on gradients were reduced as the backward made them (ops.data_parallel.weight_sharding), or once a
    # step, in the last backward.
    here = layout.zero_stage < 2
    if not here.all():
        here = here | reduces_once(job, layout)
    whole = np.where(here, on_rank.of(owner), 0) * dtype_bytes(dtype)
    name = f"{owner.value}_gradient"
    if job.preset.data_parallel.gradient_sync == "all_reduce":
        return [_reduction(name, Collective.ALL_REDUCE, axis, whole, dtype, owner)]
    parts = shards(context, owner)
    padded = np.where(here, shard_elements(context, on_rank, owner), 0) * parts * dtype_bytes(dtype)
    scattered = np.where(parts > 1, padded, 0)
    ops: list[Op] = [
        _reduction(name, Collective.ALL_REDUCE, axis, np.where(parts == 1, whole, 0), dtype, owner),
        _reduction(name, Collective.REDUCE_SCATTER, copies.axes(owner)[1], scattered, dtype, owner),
    ]
    if owner is Owner.DENSE:
        replicas, _ = ranks_and_stride(copies.zero_replicate, layout)
        shard = np.where((parts > 1) & (replicas > 1), padded.astype(np.int64) // parts, 0)
        ops.append(_reduction(f"{name}_replicas", Collective.ALL_REDUCE, copies.zero_replicate, shard, dtype))
    return ops


def _update(context: LayerContext, on_rank: RankParameters) -> list[Op]:
    """Returns the passes over gradients and parameters around the optimizer's own, on the device and on the host."""
    owned = owned_elements(context, on_rank)
    here, to_host, on_host = owned, list[Op](), list[Op]()
    if context.layout.optimizer_offload.any():
        from ops.data_parallel.offload import gradients_to_host, host_elements, host_updates

        here = owned - host_elements(context, owned)
        to_host, on_host = gradients_to_host(context, owned), host_updates(context, owned)
    gradient_elements = np.where(context.layout.zero_stage < 2, on_rank.total, owned)
    before, after = optimizer_passes(context, gradient_elements, here)
    by_adam = here - owned_by_muon(context, on_rank) if on_rank.matrices else here
    updates: list[Op] = [Update(module=Module.STEP, role=Role.UPDATE, phase=Phase.STEP, elements=by_adam)]
    if context.job.preset.data_parallel.update_copies:
        updates += update_passes(context, by_adam)
    if on_rank.matrices:
        from ops.data_parallel.muon import update_ops

        for owner in dict.fromkeys(one.matrix.owner for one in on_rank.matrices):
            updates += update_ops(context, muon_shards(context, on_rank, owner), owner)
    return [*to_host, *before, *updates, *on_host, *after]


def _return(context: LayerContext, owner: Owner, on_rank: RankParameters) -> Op:
    """Returns the updated parameters' way back to every copy: one all-gather, or one broadcast after another, each from
    the owner of a shard (InternEvo). What travels in low precision and what does not lie in buffers of their own
    (Megatron-LM param_and_grad_buffer.py: one a format); the two are shown as one collective."""
    layout, job = context.layout, context.job
    dtype, parts = job.precision.parameter_gather, shards(context, owner)
    width: float | FloatArray = dtype_bytes(dtype)
    if job.precision.low_precision_linear and job.precision.gathers_low_precision:
        low, whole = on_rank.low_precision_of(owner), on_rank.of(owner)
        share = np.divide(low, whole, out=np.zeros(len(whole)), where=whole > 0)
        high_precision_bytes = dtype_bytes(job.precision.high_precision_gather)
        dtype = dtype if low.any() else job.precision.high_precision_gather
        width = high_precision_bytes - (high_precision_bytes - dtype_bytes(dtype)) * share
    here = parts > 1
    if (layout.zero_stage >= 2).any():
        every_forward = (layout.zero_stage == 2) & job.preset.data_parallel.gathers_every_forward
        # Stage 3 and SHARD_GRAD_OP gather again before the next forward (ops.data_parallel.weight_sharding), so
        # nothing returns at the end of the step.
        later = (layout.zero_stage >= 3) | every_forward
        here = here & (~later | keeps_gathered(job, layout))
    size = np.where(here, np.ceil(shard_elements(context, on_rank, owner) * parts * width), 0)
    label = f"{Module.STEP}.{owner.value}_parameters"
    what = Identity(module=Module.STEP, role=Role.PARAMETER_GATHER, name=label)
    axis = context.traits.copies.axes(owner)[1]
    gathered = collective(what, Phase.STEP, Collective.ALL_GATHER, axis, size, dtype)
    if job.preset.data_parallel.parameter_sync == "all_gather":
        return replace(gathered, owner=owner)
    # InternEvo: as many broadcasts as shards, one from each owner.
    each = gathered.size_bytes // parts
    return replace(gathered, owner=owner, collective=Collective.BROADCAST, size_bytes=each, repeat=parts)
