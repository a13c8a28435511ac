"""Updated parameters sent by who owns whole ones.

Source: InternEvo, internlm/solver/optimizer/hybrid_zero_optim.py: ``_partition_param_list`` gives every
parameter whole to the rank that has fewest elements so far, and ``_broadcast_params`` leaves out ranks that
got none.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ops.data_parallel.sliced_collectives import num_tensors
from ops.op import Comm, Op, Ops, Owner, Piece
from ops.roles import Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective


def num_owned(piece: Piece, owner: Owner) -> IntArray:
    """Parameters of ``owner`` that a piece has, per row."""
    return num_tensors(Piece(forward=tuple(op for op in piece.forward if op.owner is owner)))


def sent_by_owners(ops: Ops, tensors: Mapping[Owner, IntArray]) -> Ops:
    """``ops`` of a step with no more broadcasts of an owner's parameters than it has ``tensors`` on the rank,
    and all of their bytes. Owners that ``tensors`` leaves out have more of them than ranks (experts, a tensor
    each and product)."""

    def sent(op: Op) -> Op:
        if not isinstance(op, Comm) or op.collective is not Collective.BROADCAST:
            return op
        if op.role is not Role.PARAMETER_GATHER or op.owner not in tensors:
            return op
        shards = np.asarray(op.repeat, dtype=np.int64)
        owners = np.minimum(shards, np.maximum(tensors[op.owner], 1))
        return replace(op, repeat=owners, size_bytes=ceil_div(op.size_bytes * shards, owners))

    return tuple(sent(op) for op in ops)
