"""Parameters, gradients and optimizer state of a stage (ZeRO, arXiv 1910.02054 sec. 3 and 5)."""

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.offload import keeps_gradients_on_host, offloaded_elements
from ops.data_parallel.step import RankParameters, owned_by_muon, owned_elements
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes


def whole_gradients_bytes(context: LayerContext, trained: RankParameters, num_micro: IntArray) -> FloatArray:
    """Gradients beside those that accumulate or are cut: of one micro-batch where the framework keeps them, and what
    stages add up in the format of the reduction where sharded gradients are reduced once a step. Without stages the
    shards of the sum are made as the last backward lets go of it, so what they take is no more on top."""
    preset = context.job.preset
    micro = preset.data_parallel.keeps_micro_gradients * dtype_bytes(context.job.precision.compute)
    summed = context.reduces_once & (num_micro > 1)
    # FSDP1 adds up gradients in the format of the products (_runtime_utils.py, _post_backward_hook).
    joins = preset.data_parallel.joins_gradients
    width = dtype_bytes(context.job.precision.compute if joins else context.reduce_dtype)
    whole = trained.total * (micro + summed * width)
    shards = owned_elements(context, trained) * _sharded_gradient_width(context)
    return np.asarray(np.where(summed & ~context.keeps_gathered, np.maximum(whole - shards, 0.0), whole))


def _sharded_gradient_width(context: LayerContext) -> float:
    """Bytes an element of gradients that are cut."""
    precision = context.job.precision
    wide = dtype_bytes(precision.gradient)
    return max(wide, precision.master_bytes) if context.job.preset.data_parallel.shards_master else wide


def stand_ins_bytes(context: LayerContext, shapes: FloatArray) -> FloatArray:
    """What autograd is given for gradients that products add up themselves: one weight of each of the ``shapes`` in the
    format of the products' results, empty (Transformer Engine ``module/base.py``, get_dummy_wgrad; Megatron-LM
    ``tensor_parallel/layers.py`` for the head)."""
    kept = context.job.preset.data_parallel.keeps_stand_ins
    return np.asarray(kept * dtype_bytes(context.job.precision.compute) * shapes)


def held_narrow_bytes(context: LayerContext, copied: FloatArray) -> FloatArray:
    """What the parameters' format would take of weights that are held narrow alone, ``copied`` of them; sharded
    parameters stay as they are."""
    return np.asarray(np.where(context.layout.zero_stage >= 3, 0.0, copied * context.parameter_bytes))


def narrow_copies_bytes(context: LayerContext, copies: FloatArray) -> FloatArray:
    """``copies`` of weights in the format of the products, from step to step; sharded weights that are held
    narrow or travel so are gathered so, and go with what was gathered."""
    precision = context.job.precision
    gone = (precision.narrow_parameters or precision.gathers_narrow) & (context.layout.zero_stage >= 3)
    return np.asarray(np.where(gone, 0.0, copies))


def model_state(
    context: LayerContext, trained: RankParameters, frozen: RankParameters, zero_stage: IntArray
) -> dict[str, FloatArray]:
    """Parameters (cut by stage 3), gradients (by stage 2 and up) and optimizer state (by stage 1 and up) of
    the ``trained`` and ``frozen`` elements of a rank, without what is on the host; Muon keeps one moment of
    its matrices."""
    precision = context.job.precision
    shards_master = context.job.preset.data_parallel.shards_master and precision.master
    owned = owned_elements(context, trained)
    here = owned - offloaded_elements(context, owned)
    state = precision.master_bytes + 2 * dtype_bytes(precision.moments)
    kept = np.where(keeps_gradients_on_host(context) > 0, here, owned)
    gradients = np.where(zero_stage >= 2, kept, trained.total)
    # The optimizer's copy is counted with its state, and is all there is where it alone is sharded.
    parameters = np.where(zero_stage >= 3, 0 if shards_master else owned, trained.total)
    still = np.where(zero_stage >= 3, owned_elements(context, frozen), frozen.total)
    wide = dtype_bytes(precision.gradient)
    return {
        "parameters_bytes": (parameters + still) * dtype_bytes(precision.parameter),
        "gradients_bytes": gradients * np.where(zero_stage >= 2, _sharded_gradient_width(context), wide),
        "optimizer_bytes": here * state - owned_by_muon(context, trained) * dtype_bytes(precision.moments),
    }
