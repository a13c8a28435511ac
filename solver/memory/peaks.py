"""Moments of a step that do not meet: its passes, the last layer of the backward, and its end."""

import numpy as np

from solver.memory.memory_cost import MemoryCost
from spec.arrays import BoolArray, FloatArray


def beyond_passes(
    cost: MemoryCost, buffers: tuple[FloatArray, ...], working: FloatArray, fresh: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """What gradients, and what the end of the step, take beyond the passes' peak; activations and gathered weights
    are gone by then. ``fresh`` gradients, which the step's only backward makes, take the place of activations: there
    are none at the loss, and all when the last layer of the backward is worked on with ``working`` bytes."""
    beside = cost.weight_pool_bytes + cost.bucket_bytes
    passes = cost.activations_bytes + cost.logits_bytes + cost.working_bytes + beside
    ends = np.max(buffers, axis=0)
    last = cost.gradients_bytes + np.maximum(ends, working + beside) - passes
    gradients = np.where(fresh, np.clip(last, 0.0, cost.gradients_bytes), cost.gradients_bytes)
    return gradients, np.maximum(ends - passes, 0.0)
