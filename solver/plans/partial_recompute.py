"""Plans that recompute as few layers as memory asks for, made from those that fit only recomputed in full."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ops.recompute.layers import Recompute
from solver.plans.plan_table import PlanTable
from spec.arrays import BoolArray, IntArray, ceil_div

Fits = Callable[[PlanTable], BoolArray]


def least_recomputed(full: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """``full`` with the fewest recomputed layers a chunk that fit, halving the range until it is one layer
    wide (more layers never need more memory); plans that fit without any, or only with all, are left out.

    ``fits`` says which rows of a table fit.
    """
    rows = np.flatnonzero(~fits(replace(full, recompute=Recompute.NONE))).astype(np.int64)
    if not rows.size:
        return None
    plans = replace(full.take(rows), recompute=Recompute.BLOCK)
    most: IntArray = ceil_div(np.full(len(plans), num_layers, dtype=np.int64), plans.layout.pp * plans.vpp)
    low, high = np.zeros_like(most), most
    while np.any(high - low > 1):
        middle = (low + high) // 2
        enough = fits(replace(plans, num_recompute_layers=middle))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    fewer = np.flatnonzero(high < most).astype(np.int64)
    return replace(plans, num_recompute_layers=high).take(fewer) if fewer.size else None
