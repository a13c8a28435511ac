"""A layer's input, which recomputation keeps, and the norm that reads it."""

import numpy as np

from ops.op import Op
from ops.roles import Role
from spec.arrays import FloatArray


def held_again(first: Op, kept: FloatArray) -> FloatArray:
    """What a layer's first operation holds while the layer runs again, beyond the ``kept`` bytes of its input: a norm
    that keeps what it reads as it is keeps that very tensor."""
    held: FloatArray = first.transient_bytes + first.saved_bytes
    if first.role is not Role.NORM:
        return held
    return held - np.where(first.saved_bytes == kept, kept, 0.0)
