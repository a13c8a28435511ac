"""Collectives over lists of slices: what the host does for every rank's slice of every parameter.

DeepSpeed's first ZeRO stage 3 (releases of March to autumn 2021, ``Init._allgather_param``,
``_reduce_scatter_gradient`` and ``_allgather_params`` of runtime/zero/partition_parameters.py;
``fetch_sub_module``, ``reduce_ipg_grads`` and ``step`` of runtime/zero/stage3.py) gathered and reduced parameter by
parameter and handed PyTorch one view a rank. Its NCCL process group answers such lists by copying every slice
to or from a flat buffer, one kernel launch each (``ProcessGroupNCCL::allgather``, ``reduce_scatter``).

- A matrix is gathered before its module's forward and backward, and again before a recomputed forward: a
  module's parameters are released after each. The host waits for the device before a gather and slices
  before it launches the module, so this time adds to the compute.
- Vectors stay gathered (``persistence_threshold`` of 100,000 elements) until the update, after which they return
  one slice of one vector after another.
- Every gradient, a vector's too, is reduced on its own while the device computes the rest of the backward.
- The device fills each gathered buffer with zeros and copies the slices into it; of a gradient it divides the
  whole by the number of ranks and copies the slices out (``average_tensor`` of stage3.py).
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass, tensors_of
from ops.op import CpuOverhead, Lane, MemoryBound, Op, Ops, Pass, Phase
from ops.roles import Identity, Module, Role
from spec.arrays import FloatArray, IntArray, ints

# Host time of one tensor view over that of one launch. ``Assumption:`` 2 us for a view made and kept from
# Python (torch.Tensor.narrow: 2.1 us, torch 2.13 on one core of an AMD EPYC) against 5 us for a launch
# (profdb.modelled.cost_model).
VIEW = 0.4
# Launches' worth of host time per slice: the copy, and the views of the list and of the flat buffer.
GATHERED_SLICE = 1.0 + 2 * VIEW
REDUCED_SLICE = 1.0 + 3 * VIEW
RETURNED_SLICE = 1.0 + 3 * VIEW


def slice_overhead(
    context: LayerContext, piece: Pass, module: Module, elements: IntArray
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Returns the cost of slices before the forward and in the backward of a layer whose ``elements`` parameters are
    sharded (stage 3). Nothing where the preset's collectives take whole tensors.
    """
    layout = context.layout
    if not context.job.preset.data_parallel.sliced_collectives:
        return (), ()
    ranks = np.where(layout.zero_stage >= 3, layout.zero_size, 0)
    owned = [(ints(op.parameters > 0), *tensors_of(op)) for op in piece.forward]
    matrices = sum((rows * count for rows, count, _ in owned), ints(0))
    vectors = sum((rows * count for rows, _, count in owned), ints(0))
    # parameters are released after every module, so a recomputed forward gathers them a third time
    again = 1 + any(op.phase is Phase.RECOMPUTE and tensors_of(op)[0] for op in piece.backward)

    def work(part: str, phase: Phase, lane: Lane, calls: FloatArray) -> CpuOverhead:
        return CpuOverhead(
            module=module, role=Role.SLICES, name=f"{module}.{part}", phase=phase, lane=lane, launches=calls
        )

    def device(part: str, kernel: str, phase: Phase, repeat: int) -> MemoryBound:
        what = Identity(module=module, role=Role.COPY, serves=Role.SLICES, name=f"{module}.{part}")
        rows = np.where(layout.zero_stage >= 3, elements, 0)
        return replace(memory_pass(what, phase, kernel, rows, context.job.precision.parameter_gather), repeat=repeat)

    gathered = GATHERED_SLICE * matrices * ranks
    reduced = REDUCED_SLICE * (matrices + vectors) * ranks
    return (
        (
            device("gathered_fill", "fill", Phase.FORWARD, 1),
            device("gathered_copy", "copy", Phase.FORWARD, 1),
            work("gathered_slices", Phase.FORWARD, Lane.MAIN, gathered),
        ),
        (
            device("gathered_fill", "fill", Phase.RECOMPUTE, again),
            device("gathered_copy", "copy", Phase.RECOMPUTE, again),
            work("gathered_slices", Phase.RECOMPUTE, Lane.MAIN, again * gathered),
            device("reduced_copy", "copy", Phase.WEIGHT_GRAD, 2),
            work("reduced_slices", Phase.WEIGHT_GRAD, Lane.PREFETCH, reduced),
            work("returned_slices", Phase.WEIGHT_GRAD, Lane.MAIN, _return_launches(context, vectors, ranks)),
        ),
    )


def return_slices(context: LayerContext, elements: IntArray, tensors: IntArray) -> Ops:
    """Returns the operations once a step, after the update, that bring ``tensors`` parameters of ``elements`` back
    from their shards as lists of slices (preset.data_parallel.lists_of_slices; nanotron optim/zero.py,
    _all_gather_params; distributed.py, all_gather_coalesced).

    The host takes every rank's slice of every parameter and copies it back, once the flat buffers of all ranks have
    been filled, gathered into and copied apart: three passes of the device over all of them.
    """
    layout = context.layout
    if not context.job.preset.data_parallel.lists_of_slices:
        return ()
    ranks = np.where((layout.zero_stage == 1) & (layout.zero_size > 1), layout.zero_size, 0)
    what = Identity(module=Module.STEP, role=Role.COPY, name=f"{Module.STEP}.returned_copy")
    rows = np.where(ranks > 0, elements, 0)
    copied = memory_pass(what, Phase.STEP, "copy", rows, context.job.precision.parameter_gather)
    slices = CpuOverhead(
        module=Module.STEP,
        role=Role.SLICES,
        name=f"{Module.STEP}.returned_slices",
        phase=Phase.STEP,
        launches=RETURNED_SLICE * tensors * ranks,
    )
    return replace(copied, repeat=3), slices


def _return_launches(context: LayerContext, vectors: IntArray, ranks: IntArray) -> FloatArray:
    """Returns the launches of the vectors' way back after the update, once a step, spread over the step's
    micro-batches."""
    layout = context.layout
    micro_batches = context.job.global_batch_sequences / (layout.dp * layout.micro_batch)
    return RETURNED_SLICE * vectors * ranks / np.maximum(micro_batches, 1.0)
