"""Casts to 8 bits by the kernels that cast, where a profile has measured them, instead of a copy of as many bytes."""

import numpy as np

from ops.op import MemoryBound
from profdb.cases import Family
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import MemoryBoundQuery
from spec.origin import Origin

KERNELS = frozenset({"quantize", "quantize_transpose"})


def casts_measured(cost_model: CostModel) -> bool:
    """Whether the cost model's profile holds both kernels: one alone would tell some plans of a table otherwise
    than others.
    """
    if not isinstance(cost_model, ProfileCostModel):
        return False
    curves = cost_model.curves(Family.MEMORY_BOUND)
    return {curve.key["kernel"] for curve in curves if curve.origin is Origin.MEASURED} >= KERNELS


def called_s(cost_model: CostModel, op: MemoryBound) -> TimeEstimate:
    """The calls that ``op`` stands for, one after another; of the worst origin among those that take time.
    MissingCurveError as the cost model raises it."""
    seconds, error_s = np.zeros(len(op.rows)), np.zeros(len(op.rows))
    origin = np.full(len(op.rows), int(Origin.MEASURED))
    for call in op.stands_for:
        if not call.times.any():
            continue
        query = MemoryBoundQuery(
            kernel=call.kernel, rows=call.rows, width=op.width, dtype=op.dtype, direction="forward"
        )
        one = cost_model.memory_bound_s(query)
        seconds = seconds + call.times * one.seconds
        error_s = error_s + call.times * one.seconds * one.relative_std
        origin = np.where(call.times * one.seconds > 0.0, np.maximum(origin, one.origin), origin)
    relative = np.divide(error_s, seconds, out=np.zeros_like(seconds), where=seconds > 0.0)
    return TimeEstimate(seconds=seconds, relative_std=relative, origin=origin)
