"""Rows of equally long chunks put from the order of ranks into that of experts, and back."""

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel
from ops.op import Piece
from ops.roles import Module, Role
from spec.arrays import IntArray


def turned_chunks(context: LayerContext, role: Role, rows: IntArray, width: int) -> Piece:
    """``rows`` of ``width`` channels, padded to one capacity a chunk: ranks x experts is viewed as experts x
    ranks and copied by PyTorch's kernel for strides, and so are the gradients (Megatron-LM core 0.11 to 0.15,
    ``token_dispatcher.py``, drop_and_pad: view, transpose, contiguous; nothing is kept)."""
    turned = Kernel(
        module=Module.MOE,
        role=role,
        kernel="strided_copy",
        rows=rows,
        width=width,
        saved_bytes=np.zeros(len(rows)),
    )
    return kernel(context, turned)
