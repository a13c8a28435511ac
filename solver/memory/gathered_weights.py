"""Weights that a stage holds gathered for a moment while their shards live on many ranks."""

import numpy as np

from ops.context import LayerContext, has_separate_ends
from solver.layers import LayerBytes
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes


def gathered_weights_bytes(
    context: LayerContext, kinds: list[LayerBytes], row: IntArray, weights: tuple[IntArray, ...]
) -> FloatArray:
    """Gathered weights: two layers, one in use and one coming (one alone where none is fetched ahead), or the
    head where that is more; isp (arXiv 2401.09149 sec. 3.3) and sharded parameters (arXiv 2304.11277 sec.
    3.3.2). FSDP's outermost unit, embedding and head, stays gathered from the forward to the end of the
    backward (fully_shard: reshard_after_forward is False for the root); where both are units of their own the
    embedding is let go of before the head is gathered. With pipeline stages all of a stage's stay. DeepSpeed
    fetches ahead at every module until live_elements are there
    (runtime/zero/partitioned_param_coordinator.py, fetch_sub_module: max_live_parameters), and its head in
    any case."""
    layout, data_parallel = context.layout, context.job.preset.data_parallel
    precision = context.job.precision
    # Assumption: weights that are held narrow are gathered in both orders, which take what 16 bits do.
    single = precision.gathers_narrow and not precision.narrow_parameters
    spared = single * (1.0 - dtype_bytes(precision.parameter_gather) / context.parameter_bytes)
    layers, edges, edge, stays = (np.zeros(len(row)) for _ in range(4))
    for index, (kind, weight) in enumerate(zip(kinds, weights, strict=True)):
        isp = np.where(layout.wp > 1, (kind.parameters.weight + kind.frozen.weight)[row] * layout.wp, 0)
        held = kind.parameters.total + kind.frozen.total
        held = held - spared * (kind.parameters.low_precision_total + kind.frozen.low_precision_total)
        sharded = np.where(layout.zero_stage >= 3, held[row], 0)
        gathered = (isp + sharded) * (weight > 0)
        stays = stays + sharded * weight
        if index < len(kinds) - 2:
            layers = np.maximum(layers, data_parallel.gathered_layers * gathered)
        else:
            edge, edges = np.maximum(edge, gathered), edges + gathered
    kept = edge if has_separate_ends(context.job, context.model) else edges
    most = layers + kept if data_parallel.gathers_every_forward else np.maximum(layers, edge)
    if data_parallel.live_elements:
        most = np.maximum(np.minimum(stays, data_parallel.live_elements), edge)
    most = np.where(context.job.preset.pipeline.keeps_gathered & (layout.pp > 1), stays, most)
    return np.asarray(most * context.parameter_bytes, dtype=np.float64)
