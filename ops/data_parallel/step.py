"""What a rank runs once per optimizer step: gradient reduction, update, parameters back.

Sources: ZeRO (arXiv 1910.02054 sec. 5 and 7: reduce-scatter of gradients, all-gather of parameters);
InternEvo sends updated shards by broadcast, one per owner.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext, padded_to_ranks
from ops.data_parallel.offload import gradients_to_host, host_updates, offloaded_elements
from ops.data_parallel.optimizer_passes import optimizer_passes
from ops.groups import ranks_and_stride
from ops.op import Axis, Comm, Op, Ops, Owner, Phase, Update
from ops.roles import Identity, Module, Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """Trained elements on one rank by owner, one entry per row."""

    dense: IntArray
    weight: IntArray
    expert: IntArray

    @property
    def total(self) -> IntArray:
        """All of them."""
        return self.dense + self.weight + self.expert

    def take(self, rows: IntArray) -> "RankParameters":
        """The rows asked for."""
        return RankParameters(dense=self.dense[rows], weight=self.weight[rows], expert=self.expert[rows])

    def of(self, owner: Owner) -> IntArray:
        """The elements of one owner."""
        return {Owner.DENSE: self.dense, Owner.WEIGHT: self.weight, Owner.EXPERT: self.expert}[owner]


def shards(context: LayerContext, owner: Owner) -> IntArray:
    """Parts the optimizer state of ``owner``'s parameters is cut into.

    Dense ones by zero_size; experts by as much of it as their own data-parallel group has; isp's
    weights, already cut by wp, by zero_size / (wp / tp) and at least 1.
    """
    layout = context.layout
    if owner is Owner.DENSE:
        return layout.zero_size
    if owner is Owner.EXPERT:
        return np.gcd(layout.zero_size, layout.edp)
    return np.gcd(layout.zero_size, layout.wdp)


def owned_elements(context: LayerContext, on_rank: RankParameters) -> IntArray:
    """Elements whose optimizer state this rank keeps and updates."""
    parts = [ceil_div(on_rank.of(owner), shards(context, owner)) for owner in Owner]
    return np.asarray(np.sum(parts, axis=0), dtype=np.int64)


def step_ops(context: LayerContext, on_rank: RankParameters, tied: IntArray) -> Ops:
    """Reduction, norm, update and return of the parameters for every row.

    ``tied`` elements of a row's embedding or head are shared with another stage and their gradients
    are summed between the two (Megatron-LM's embedding group).

    Where the optimizer is not sharded (zero_size 1) gradients are all-reduced, every copy updates
    everything and nothing returns.
    """
    ops: list[Op] = []
    if tied.any():
        dtype = context.job.precision.gradient
        size = (tied * dtype_bytes(dtype)).astype(np.int64)
        ops.append(_comm(_reduced("tied_gradient"), Collective.ALL_REDUCE, Axis.EMBEDDING, size, dtype))
    present = [owner for owner in Owner if on_rank.of(owner).any()]
    for owner in present:
        ops += _reduction(context, owner, on_rank.of(owner))
    ops += gradients_to_host(context, owned_elements(context, on_rank))
    ops += _update(context, on_rank)
    ops += [_return(context, owner, on_rank.of(owner)) for owner in present]
    return tuple(ops)


def _reduced(name: str) -> Identity:
    return Identity(module=Module.STEP, role=Role.GRADIENT_REDUCTION, name=f"{Module.STEP}.{name}")


def _comm(what: Identity, kind: Collective, axis: Axis, size_bytes: IntArray, dtype: str) -> Comm:
    return Comm(
        module=what.module,
        role=what.role,
        name=what.name,
        phase=Phase.STEP,
        collective=kind,
        axis=axis,
        size_bytes=size_bytes,
        dtype=dtype,
    )


def _reduction(context: LayerContext, owner: Owner, elements: IntArray) -> list[Op]:
    """Gradients summed over the copies; hybrid sharding sums the shards over the replicas after."""
    layout, preset = context.layout, context.job.preset
    dtype = context.job.precision.reduce
    width = dtype_bytes(dtype)
    axis = context.traits.copies.copy_axis(owner)
    name = f"{owner.value}_gradient"
    # From stage 2 on gradients were reduced as the backward made them (ops.data_parallel.weight_sharding).
    elements = np.where(layout.zero_stage >= 2, 0, elements)
    whole = (elements * width).astype(np.int64)
    if preset.data_parallel.gradient_sync == "all_reduce":
        return [_comm(_reduced(name), Collective.ALL_REDUCE, axis, whole, dtype)]
    parts = shards(context, owner)
    padded = padded_to_ranks(elements, parts, width)
    shard_axis = context.traits.copies.shard_axis(owner)
    ops: list[Op] = [
        _comm(_reduced(name), Collective.ALL_REDUCE, axis, np.where(parts == 1, whole, 0), dtype),
        _comm(_reduced(name), Collective.REDUCE_SCATTER, shard_axis, np.where(parts > 1, padded, 0), dtype),
    ]
    if owner is Owner.DENSE:
        replicate_axis = context.traits.copies.zero_replicate
        replicas, _ = ranks_and_stride(replicate_axis, layout)
        shard = np.where((parts > 1) & (replicas > 1), padded // parts, 0)
        replicated = _reduced(f"{name}_replicas")
        ops.append(_comm(replicated, Collective.ALL_REDUCE, replicate_axis, shard, dtype))
    return ops


def _update(context: LayerContext, on_rank: RankParameters) -> list[Op]:
    """The passes over gradients and parameters around the optimizer's own (ops.data_parallel.optimizer_passes)."""
    owned = owned_elements(context, on_rank)
    here = owned - offloaded_elements(context, owned)
    before, after = optimizer_passes(context, on_rank.total, here)
    update = Update(module=Module.STEP, role=Role.UPDATE, phase=Phase.STEP, elements=here)
    return [*before, update, *host_updates(context, owned), *after]


def _return(context: LayerContext, owner: Owner, elements: IntArray) -> Op:
    """Updated parameters back to every copy: one all-gather, or one broadcast after another, each from the
    owner of a shard (InternEvo)."""
    layout = context.layout
    parts = shards(context, owner)
    dtype = context.job.precision.parameter_gather
    gathered_later = (layout.zero_stage >= 3) | (
        (layout.zero_stage == 2) & context.job.preset.data_parallel.gathers_every_forward
    )
    size = padded_to_ranks(elements, parts, dtype_bytes(dtype))
    size = np.where((parts > 1) & ~gathered_later, size, 0)
    label = f"{Module.STEP}.{owner.value}_parameters"
    what = Identity(module=Module.STEP, role=Role.PARAMETER_GATHER, name=label)
    axis = context.traits.copies.shard_axis(owner)
    gathered = _comm(what, Collective.ALL_GATHER, axis, size, dtype)
    if context.job.preset.data_parallel.parameter_sync == "all_gather":
        return gathered
    return replace(gathered, collective=Collective.BROADCAST, size_bytes=size // parts, repeat=parts)
