"""A linear and its tensor-parallel collective cut into pieces that overtake each other.

Source: Transformer Engine, ``pytorch/module/base.py`` initialize_ub (which product runs how, by default) and
``common/comm_gemm_overlap/comm_gemm_overlap.cpp``:

- "ring_exchange" all-gather (CommOverlapP2PBase::split_overlap_ag): tp pieces of the input travel a ring by copy
  engines; the rank's own is there from the start, and each is multiplied as it arrives;
- "ring_exchange" reduce-scatter (split_overlap_rs): tp pieces of the output, each sent to its owner while the next is
  multiplied, the own one last; then one kernel adds up what has come (reduce_bf16);
- "pipeline" reduce-scatter (CommOverlapBase::split_overlap_rs): 4 pieces, each reduced on 16 multiprocessors
  while the next is multiplied, so that the last is waited for;
- "bulk": whole, beside the other gradient's product (ops.strategies.backward_collective).

PyTorch's asynchronous tensor parallelism (``distributed/_symmetric_memory``, _pipelined_all_gather_and_consume and
_pipelined_produce_and_all2all) is the ring exchange both ways, also for input gradients, and has no bulk.

``Assumption:`` pieces run on several streams (three in Transformer Engine), so that one fills the multiprocessors that
the last one leaves idle, and together they take what the whole product takes.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import Comm, Lane, MemoryBound, Ops, Phase, Pieces
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes

PIPELINE_PIECES = 4  # num_splits
PIPELINE_BLOCKS = 16  # num_sm

# What Transformer Engine has buffers for: qkv, proj, fc1, fc2; a Mamba layer's linears are fc1 and fc2.
INTO = frozenset(
    {
        OpKey(Module.ATTENTION, Role.QKV),
        OpKey(Module.MAMBA2, Role.PROJECTION),
        OpKey(Module.GATED_DELTA, Role.PROJECTION),
        OpKey(Module.MLP, Role.GATE),
        OpKey(Module.MLP, Role.UP),
    }
)
OUT_OF = frozenset(
    {
        OpKey(Module.ATTENTION, Role.OUT),
        OpKey(Module.MAMBA2, Role.OUT),
        OpKey(Module.GATED_DELTA, Role.OUT),
        OpKey(Module.MLP, Role.DOWN),
    }
)


def gather_into(context: LayerContext, gather: Comm, product: OpKey) -> Comm:
    """Returns an all-gather whose pieces ``product`` multiplies as they arrive, in the gather's own phase."""
    choices = context.job.preset.tensor_parallel
    if not choices.overlap_ag or product not in INTO | OUT_OF:
        return gather
    return _in_pieces(gather, product, _ring(context))


def scatter_from(context: LayerContext, scatter: Comm, product: OpKey) -> Ops:
    """Returns a reduce-scatter whose pieces leave as ``product`` makes them, in the scatter's own phase, and the sum
    of what a ring exchange brought."""
    choices = context.job.preset.tensor_parallel
    into = product in INTO
    wanted = choices.overlap_rs_dgrad if into else choices.overlap_rs
    if not wanted or product not in INTO | OUT_OF:
        return (scatter,)
    if choices.overlap_rs_method == "pipeline":
        count = context.layout.constant(PIPELINE_PIECES)
        pieces = Pieces(count=count, last_waits=True, thread_blocks=PIPELINE_BLOCKS)
        return (_in_pieces(scatter, product, pieces),)
    return (_in_pieces(scatter, product, _ring(context)), _sum_pieces(context, scatter, product))


def in_bulk(context: LayerContext, comm: Comm, product: OpKey) -> Comm:
    """Returns a whole collective of the backward beside the other gradient of ``product``, as user buffers run it: on
    multiprocessors that they keep the product off."""
    if product not in INTO:
        return comm
    whole = Pieces(count=context.layout.constant(1), last_waits=True, thread_blocks=PIPELINE_BLOCKS)
    return replace(comm, pieces=whole)


def _ring(context: LayerContext) -> Pieces:
    # one piece a rank; copy engines carry them, so they take no multiprocessor from the product
    return Pieces(count=context.layout.tp, last_waits=False, thread_blocks=0)


def _in_pieces(comm: Comm, product: OpKey, pieces: Pieces) -> Comm:
    return replace(comm, lane=Lane.PIECES, overlaps=product, overlap_phase=comm.phase, pieces=pieces)


def _sum_pieces(context: LayerContext, scatter: Comm, product: OpKey) -> MemoryBound:
    """Returns the kernel that reads the pieces of all ranks and writes one: as many bytes as a copy of half of them
    and of one."""
    tp = context.layout.tp
    elements = scatter.size_bytes / context.activation_bytes
    rows: IntArray = np.where(tp > 1, np.ceil(elements * (1.0 + 1.0 / tp) / 2.0), 0.0).astype(np.int64)
    what = product.served_by(Role.REDUCE)
    phase = Phase.FORWARD if scatter.phase is Phase.FORWARD else Phase.INPUT_GRAD
    return memory_pass(what, phase, "copy", rows, context.job.precision.activation)


# Copies around collectives that join along the first dimension of an array whose sequences are another.
#
# PyTorch's functional collectives (torch/distributed/_functional_collectives.py: all_gather_single,
# reduce_scatter_single; DTensor's Shard(1)) gather along dimension 0 and bring parts into order by chunk and
# cat, before a reduction likewise. With one sequence parts lie in order. Products that send pieces themselves
# (ops.tp_overlap; torch/distributed/_symmetric_memory) read and write them where they belong.


def in_order(context: LayerContext, whole: Comm) -> Ops:
    """Returns a pass over the array of a gather or a reduction over the sequence, in the collective's own phase."""
    layout = context.layout
    # pieces are read and written where they belong: nothing to reorder
    if whole.pieces is not None:
        return ()
    # with one sequence dimension 0 is the sequence, and gathered parts lie in order
    several = (layout.micro_batch > 1) & (layout.tp > 1)
    if not several.any():
        return ()
    width = context.model.hidden
    rows = np.ceil(whole.size_bytes / (width * dtype_bytes(whole.dtype))).astype(np.int64) * several
    what = Identity(module=whole.module, role=Role.COPY, serves=whole.serves, name=f"{whole.name}_in_order")
    return (memory_pass(what, whole.phase, "copy", rows, whole.dtype, np.full_like(rows, width)),)
