"""What is cast around an attention kernel that reads 8 bits.

Transformer Engine, ``pytorch/attention/dot_product_attention/backends.py`` of 2.x, FusedAttnFunc: forward
``combine_and_quantize`` of q, k and v, backward the output's gradient (dO_quantizer). With a scale known beforehand
("delayed") the kernel writes its output and the three gradients in 8 bits, and ``dequantize`` and
``combine_and_dequantize`` bring them back; with one found from the tensor ("current") each is read for its maximum
first and the kernel writes 16 bits. For its backward it keeps q, k, v and the output in 8 bits (``save_for_backward``).

A pass is priced as a copy that moves as many bytes; kernels of few tensors at once as one.
"""

import numpy as np

from ops.context import LayerContext
from ops.kernels import bytes_moved_per_element
from ops.memory_bound import memory_pass
from ops.op import MemoryBound, Phase, Piece
from ops.quantize import finds_scale_first
from ops.roles import Identity, Module, Role
from spec.arrays import FloatArray
from spec.dtypes import dtype_bytes


def is_narrow(context: LayerContext) -> bool:
    """Whether attention reads fewer bits than layers hand on."""
    precision = context.job.precision
    return dtype_bytes(precision.attention) < dtype_bytes(precision.activation)


def kept_share(context: LayerContext) -> float:
    """Bytes of what the kernel keeps for its backward over what it would be as layers hand it on."""
    precision = context.job.precision
    return dtype_bytes(precision.attention) / dtype_bytes(precision.activation) if is_narrow(context) else 1.0


def casts_around(context: LayerContext, read_bytes: FloatArray, made_bytes: FloatArray) -> Piece:
    """Passes over q, k and v (``read_bytes`` as layers hand them on) and over the output (``made_bytes``), forward and
    backward; float64 arrays of a row each. Nothing where the kernel reads what layers hand on."""
    if not is_narrow(context):
        return Piece()
    precision = context.job.precision
    wide, narrow = dtype_bytes(precision.activation), dtype_bytes(precision.attention)
    searched = finds_scale_first(precision)
    cast = (wide + narrow + wide * searched) / wide
    back = (narrow + wide) / wide if precision.scaling == "delayed" else 0.0

    def passed(what: str, phase: Phase, moved_bytes: FloatArray) -> MemoryBound:
        copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
        named = Identity(
            module=Module.ATTENTION, role=Role.CAST, serves=Role.CORE, name=f"attention.core.{what}"
        )
        rows = np.ceil(moved_bytes / copied).astype(np.int64)
        return memory_pass(named, phase, "copy", rows, precision.activation)

    return Piece(
        forward=(
            passed("cast_inputs", Phase.FORWARD, read_bytes * cast),
            passed("cast_output", Phase.FORWARD, made_bytes * back),
        ),
        backward=(
            passed("cast_gradient", Phase.INPUT_GRAD, made_bytes * cast),
            passed("cast_input_gradients", Phase.INPUT_GRAD, read_bytes * back),
        ),
    )
