"""How many rows the experts of the busiest rank work on, and how many they are padded to."""

import numpy as np

from ops.context import LayerContext
from ops.quantize import recipe_of
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.model import MoeSpec
from spec.order_statistics import expected_largest


def busiest_share(context: LayerContext, moe: MoeSpec) -> FloatArray:
    """Expected tokens of the busiest expert-parallel rank over those of the average one, for N layouts.

    Experts' loads are a population of ``n`` with a standard deviation of ``moe_expert_spread`` of their mean. A rank
    holds m = n / ep of them, drawn without replacement, so its own load has the variance s^2 / m (n - m) / (n - 1)
    (Cochran, Sampling Techniques, 1977, sec. 2.6), and two ranks' loads are correlated by -1 / (ep - 1), as they sum to
    a constant; the largest of ep such normal numbers is sqrt(ep / (ep - 1)) times that of independent ones. All
    is times the stated ``moe_imbalance``.
    """
    job, ep = context.job, context.layout.ep
    experts = moe.num_experts
    held = np.maximum(experts // ep, 1)
    spread = job.moe_expert_spread * np.sqrt((experts - held) / max(experts - 1, 1) / held)
    ranks = np.unique(ep)
    largest = np.asarray([expected_largest(int(count)) for count in ranks])[np.searchsorted(ranks, ep)]
    together = np.sqrt(ep / np.maximum(ep - 1, 1))
    return np.asarray(job.moe_imbalance * (1.0 + spread * together * largest), dtype=np.float64)


def aligned(context: LayerContext, moe: MoeSpec, rows: IntArray, experts: IntArray) -> IntArray:
    """``rows`` of a rank's ``experts`` with each expert's padded to the multiple that its products' format wants.

    Transformer Engine ``pytorch/module/fp8_padding.py``: 32 rows for MXFP8, 16 for other narrow formats. An expert that
    drops nothing gets any number of rows, so half a multiple less a half is added on average; with a capacity all
    have the same number.
    """
    precision = context.job.precision
    if recipe_of(context) is None:
        return rows
    multiple = MXFP8_ROWS if precision.scale_recipe == "mx" else NARROW_ROWS
    if context.job.capacity_factor(moe) is not None:
        return np.asarray(ceil_div(rows, multiple * experts) * multiple * experts, dtype=np.int64)
    return np.asarray(rows + ceil_div(experts * (multiple - 1), 2), dtype=np.int64)


MXFP8_ROWS, NARROW_ROWS = 32, 16
