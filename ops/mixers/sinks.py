"""Attention sinks: a logit of each head that no key belongs to, in the denominator of every row's softmax (gpt-oss).

A flash kernel starts its denominator with it and does nothing more; backward the logits' gradient
``-sum exp(sink - log-sum-exp) dO.O`` is a kernel of its own over two fp32 numbers of every row and head (cuDNN's
frontend, SDPA backward: dsink; Transformer Engine takes cuDNN for sinks, ``dot_product_attention/utils.py``,
get_attention_backend: no FlashAttention, and of the ways to cut sequences all-to-all alone). Without a flash kernel
they are one column more of the scores, put beside them, and the softmax is PyTorch's (Megatron-Core
``fusions/fused_softmax.py``, SoftmaxOne and is_kernel_available).
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel
from ops.op import Piece
from ops.roles import Module, Role
from spec.arrays import IntArray

# Two fp32 numbers in elements of 16 bits.
READ_OF_A_ROW = 4


def with_sinks(context: LayerContext, core: Piece, owned: IntArray, rows: IntArray) -> Piece:
    """``core`` that owns ``owned`` sinks on a rank, with their gradient over ``rows`` of scores."""
    gradient = kernel(
        context,
        Kernel(
            module=Module.ATTENTION,
            role=Role.STATISTICS,
            serves=Role.CORE,
            name="attention.core.sinks",
            kernel="bias",
            rows=rows,
            width=READ_OF_A_ROW,
            saved_bytes=np.zeros(len(rows)),
        ),
    )
    owner, *others = core.forward
    return Piece(
        forward=(replace(owner, parameters=owner.parameters + owned), *others),
        backward=core.backward + gradient.backward,
    )
