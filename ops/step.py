"""What a rank runs once per optimizer step: gradient reduction, update, parameters back.

Sources: ZeRO (arXiv 1910.02054 sec. 5 and 7: reduce-scatter of gradients, all-gather of parameters);
InternEvo sends updated shards by broadcast, one per owner.
"""

from dataclasses import dataclass

import numpy as np

from ops.context import LayerContext, padded_to_ranks
from ops.op import Axis, Comm, MemoryBound, Op, Ops, Owner, Phase, Position, Update
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Trained elements on one rank by owner, one entry per row."""

    dense: IntArray
    weight: IntArray
    expert: IntArray

    @property
    def total(self) -> IntArray:
        """All of them."""
        return self.dense + self.weight + self.expert

    def of(self, owner: Owner) -> IntArray:
        """The elements of one owner."""
        return {Owner.DENSE: self.dense, Owner.WEIGHT: self.weight, Owner.EXPERT: self.expert}[owner]


COPY_AXIS: dict[Owner, Axis] = {Owner.DENSE: Axis.DP_CP, Owner.WEIGHT: Axis.WDP, Owner.EXPERT: Axis.EDP}


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


def step_ops(context: LayerContext, held: HeldParameters, sharded: bool) -> Ops:
    """Reduction, norm and clipping, update and return of the parameters for every row.

    ``sharded`` False (ZeRO-0): gradients are all-reduced and every copy updates everything.
    """
    ops: list[Op] = []
    for owner in Owner:
        elements = held.of(owner)
        if elements.any():
            ops += _reduction(context, owner, elements, sharded)
    ops += _update(context, held, sharded)
    if sharded:
        for owner in Owner:
            if held.of(owner).any():
                ops.append(_return(context, owner, held.of(owner)))
    return tuple(ops)


def _comm(name: str, kind: Collective, axis: Axis, size_bytes: IntArray, dtype: str) -> Comm:
    return Comm(
        name=name,
        phase=Phase.STEP,
        position=Position.BLOCK,
        collective=kind,
        axis=axis,
        size_bytes=size_bytes,
        dtype=dtype,
    )


def _reduction(context: LayerContext, owner: Owner, elements: IntArray, sharded: bool) -> list[Op]:
    """Gradients summed over the copies; hybrid sharding sums the shards over the replicas after."""
    layout, preset = context.layout, context.job.preset
    dtype = context.job.precision.reduce
    width = dtype_bytes(dtype)
    axis = COPY_AXIS[owner]
    copies = layout.dp * layout.cp
    name = f"step.{owner.value}_gradient"
    if not sharded or preset.gradient_sync == "all_reduce":
        size = (elements * width).astype(np.int64)
        return [_comm(name, Collective.ALL_REDUCE, axis, size, dtype)]
    whole = padded_to_ranks(elements, copies, width)
    if owner is not Owner.DENSE:
        return [_comm(name, Collective.REDUCE_SCATTER, axis, whole, dtype)]
    replicas = copies // layout.zero_size
    scattered = _comm(name, Collective.REDUCE_SCATTER, Axis.ZERO_SHARD, whole, dtype)
    part = np.where(replicas > 1, whole // layout.zero_size, 0)
    summed = _comm(f"{name}_replicas", Collective.ALL_REDUCE, Axis.ZERO_REPLICATE, part, dtype)
    return [scattered, summed]


def _update(context: LayerContext, held: HeldParameters, sharded: bool) -> list[Op]:
    """Gradient norm (one pass over the gradients) and the optimizer's own pass over its shard."""
    owned = sum(
        (ceil_div(held.of(owner), shards(context, owner)) if sharded else held.of(owner) for owner in Owner),
        start=np.zeros_like(held.dense),
    )
    norm = MemoryBound(
        name="step.gradient_norm",
        phase=Phase.STEP,
        kernel="norm_reduce",
        rows=owned,
        width=np.ones_like(owned),
        dtype=context.job.precision.gradient,
    )
    return [norm, Update(name="step.update", phase=Phase.STEP, elements=owned)]


def _return(context: LayerContext, owner: Owner, elements: IntArray) -> Op:
    """Updated parameters back to every copy: one all-gather, or broadcasts of every owner's shard that
    follow each other without waiting, so that together they move the array once."""
    parts = shards(context, owner)
    dtype = context.job.precision.parameter_gather
    size = np.where(parts > 1, padded_to_ranks(elements, parts, dtype_bytes(dtype)), 0)
    axis = Axis.ZERO_SHARD if owner is Owner.DENSE else COPY_AXIS[owner]
    broadcast = context.job.preset.parameter_sync == "broadcast"
    kind = Collective.BROADCAST if broadcast else Collective.ALL_GATHER
    return _comm(f"step.{owner.value}_parameters", kind, axis, size, dtype)
