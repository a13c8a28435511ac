"""Copies around collectives that join along the first dimension of an array whose sequences are another.

PyTorch's functional collectives (torch/distributed/_functional_collectives.py: all_gather_single,
reduce_scatter_single; DTensor's Shard(1)) gather along dimension 0 and bring parts into order by chunk and
cat, before a reduction likewise. With one sequence parts lie in order. Products that send pieces themselves
(ops.strategies.pipelined; torch/distributed/_symmetric_memory) read and write them where they belong.
"""

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import Comm, Ops
from ops.roles import Identity, Role
from spec.dtypes import dtype_bytes


def in_order(context: LayerContext, whole: Comm) -> Ops:
    """A pass over the array of a gather or a reduction over the sequence, in the collective's own phase."""
    layout = context.layout
    if not context.job.preset.tensor_parallel.copies_sequences or whole.pieces is not None:
        return ()
    several = (layout.micro_batch > 1) & (layout.tp > 1)
    if not several.any():
        return ()
    width = context.model.hidden
    rows = np.ceil(whole.size_bytes / (width * dtype_bytes(whole.dtype))).astype(np.int64) * several
    what = Identity(module=whole.module, role=Role.COPY, serves=whole.serves, name=f"{whole.name}_in_order")
    return (memory_pass(what, whole.phase, "copy", rows, whole.dtype, np.full_like(rows, width)),)


def before(context: LayerContext, reduction: Ops) -> Ops:
    """The pass before a reduction, where that is a collective of its own."""
    return tuple(op for one in reduction if isinstance(one, Comm) for op in in_order(context, one))
