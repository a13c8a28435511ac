"""Plans that recompute or offload as few layers as memory asks for, made from those that fit only recomputed
in full.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ops.recompute import Recompute
from solver.plans.plan_table import PlanTable
from spec.arrays import BoolArray, IntArray, ceil_div

Fits = Callable[[PlanTable], BoolArray]


def least_recomputed(plain: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """``plain`` plans, which do not fit, with the fewest recomputed layers a chunk that do; those that fit
    only with all are left out.

    ``fits`` says which rows of a table fit.
    """
    plans = replace(plain, recompute=Recompute.BLOCK)
    most: IntArray = ceil_div(np.full(len(plans), num_layers, dtype=np.int64), plans.layout.pp * plans.vpp)
    fewest = fewest_layers(most, lambda layers: fits(replace(plans, num_recompute_layers=layers)))
    fewer = np.flatnonzero(fewest < most).astype(np.int64)
    return replace(plans, num_recompute_layers=fewest).take(fewer) if fewer.size else None


def least_offloaded(plain: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """``plain`` plans, which do not fit, with the saved activations of the fewest layers on the host that do;
    at least one layer stays."""
    most = np.full(len(plain), num_layers, dtype=np.int64)

    def offloading(layers: IntArray) -> PlanTable:
        return replace(plain, layout=replace(plain.layout, offloaded_layers=layers))

    fewest = fewest_layers(most, lambda layers: fits(offloading(layers)))
    fewer = np.flatnonzero(fewest < most).astype(np.int64)
    return offloading(fewest).take(fewer) if fewer.size else None


def fewest_layers(most: IntArray, enough: Callable[[IntArray], BoolArray]) -> IntArray:
    """The fewest layers that are ``enough``, of 1 to ``most``, which is where fewer are not; the range is
    halved until it is one layer wide, as more layers never need more memory."""
    low, high = np.zeros_like(most), most
    while np.any(high - low > 1):
        middle: IntArray = (low + high) // 2
        fits = enough(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high
