"""Tokens gathered over tp in the few bits that products multiply them in.

Source: Transformer Engine, ``pytorch/module/layernorm_linear.py`` and ``linear.py`` (an input is cast before
its gather; in the backward the saved narrow input is gathered again), ``module/base.py``
grad_output_preprocess (an output gradient is cast before its gather) and ``pytorch/distributed.py``
gather_along_first_dim, by recipe:

- whole-tensor scales (``delayed``, ``current``; _all_gather_fp8): the copy along rows, also where columns are wanted,
  which are turned after the gather. Ranks must agree on the scale: ``current`` scaling reduces the maximum over tp first
  (set_quantizer_amax_reduction_group), delayed scaling those of all tensors once a step;
- scales of blocks (1 x 128, 1 x 32 MXFP8, 1 x 16 NVFP4): the copy that is wanted with its scales, of an output
  gradient both; those along columns of 1 x 128 and NVFP4 arrive part by part and are put in order (swap_first_dims).

What is reduced travels in the activations' format, and so do torchao's gathers, which cast behind them.
Shared experts that run beside the exchange of tokens are gathered before they are cast (Megatron-LM
``moe/shared_experts.py``, pre_forward_comm).
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.op import Axis, Comm, Lane, Ops, Phase, Pieces
from ops.quantize import BLOCKS, finds_scale_first, recipe_of
from ops.roles import Module, OpKey, Role
from ops.strategies.sharding import Sharding
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import Precision

SCALE_BYTES = {"tensor": 0.0, "row": 0.0, "block": 4 / 128, "mx": 1 / 32}
"""Of an element's scale, one for a row or the tensor aside: 4 bytes for 128 (Float8BlockScaling), 1 for 32 (MXFP8)."""
FP4_SCALE_BYTES = 1 / 16
"""NVFP4: 1 byte for 16."""


def scale_bytes(precision: Precision) -> float:
    """Bytes of scales that travel with an element of a narrow tensor."""
    return FP4_SCALE_BYTES if precision.linear == "fp4" else SCALE_BYTES[precision.scale_recipe or "tensor"]


def travels_narrow(context: LayerContext, linear: OpKey) -> bool:
    """Whether what ``linear`` reads is cast before it is gathered."""
    recipe = recipe_of(context)
    if recipe is None or not recipe.gathers_narrow or linear.module is Module.HEAD:
        return False
    return not (linear.module is Module.SHARED_EXPERTS and context.job.overlap_shared_experts)


def cast_parts(context: LayerContext, sharding: Sharding, linear: OpKey) -> IntArray:
    """Parts of a gathered tensor of ``linear`` that ranks cast, one each, before it is gathered; else 1."""
    if not travels_narrow(context, linear):
        return context.layout.constant(1)
    parts: IntArray = sharding.norm_shards(context.layout) // sharding.gemm_shards(context.layout)
    return parts


def narrowed(context: LayerContext, gather: Comm, linear: OpKey) -> Comm:
    """A gather of one copy of an input or an output gradient of ``linear``, with its scales."""
    if not travels_narrow(context, linear):
        return gather
    precision = context.job.precision
    share = (dtype_bytes(precision.linear) + scale_bytes(precision)) / dtype_bytes(precision.activation)
    tp = context.layout.tp
    size: IntArray = (ceil_div(np.ceil(gather.size_bytes * share).astype(np.int64), tp) * tp).astype(np.int64)
    return replace(gather, size_bytes=size, dtype=precision.linear)


def other_order(context: LayerContext, gather: Comm, linear: OpKey) -> Ops:
    """The gather of an output gradient's copy along columns, where that has scales of its own: waited for
    with the other, or, where that one travels in pieces, whole beside the input gradient, by copy engines
    (linear.py, bulk_overlap_ag_with_external_gemm)."""
    if not travels_narrow(context, linear) or context.job.precision.scale_recipe not in BLOCKS:
        return ()
    name = f"{gather.name}_columns"
    if gather.pieces is None:
        return (replace(gather, name=name),)
    whole = Pieces(count=context.layout.constant(1), last_waits=True, thread_blocks=0)
    return (replace(gather, name=name, lane=Lane.BESIDE, beside_phase=Phase.INPUT_GRAD, pieces=whole),)


def agreed_scale(context: LayerContext, linear: OpKey, phase: Phase) -> Ops:
    """The maximum that ranks agree on before they cast what they gather: an fp32 number of each order."""
    if not travels_narrow(context, linear) or not finds_scale_first(context.job.precision):
        return ()
    what = linear.served_by(Role.REDUCE, f"{linear.module}.{linear.role}.amax")
    orders = 2 if context.job.precision.linear == "fp4" else 1
    return (
        Comm(
            module=what.module,
            role=what.role,
            serves=what.serves,
            name=what.name,
            phase=phase,
            collective=Collective.ALL_REDUCE,
            axis=Axis.TP,
            size_bytes=context.layout.constant(4 * orders),
            dtype="fp32",
        ),
    )
