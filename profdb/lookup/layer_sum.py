"""How much longer a whole layer takes than its kernels, each measured alone, add up to.

Together they find other caches, clocks and gaps than alone. Where a profile holds whole layers, their time over the sum
of their kernels' times is a curve over that sum; a layer of any shape is told by its own sum, beyond the measured ones
by the last. A layer that the device ran as one graph holds nothing of the host; one issued operation by operation
counts only where its kernels take longer than the host to issue a layer, and none counts where a kernel's own time is
not from measurements. Clocks under the load of a whole step (training_rate_ratio) come on top.
"""

import contextlib
from dataclasses import dataclass

import numpy as np

from profdb.cases import Family, LayerCase
from profdb.cost_model import ProfileCostModel
from profdb.lookup.layer_parts import parts_of_layer
from profdb.sample import Sample, sample_at
from profdb.store.columns import STATUSES
from spec.arrays import FloatArray, floats
from spec.errors import MissingCurveError
from spec.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSum:
    """Measured layers: log of the sum of their kernels' seconds, ascending, and log of time over sum."""

    log_sum_s: FloatArray
    log_factor: FloatArray

    def factor(self, sum_s: FloatArray) -> FloatArray:
        """Seconds of a layer over the sum ``sum_s`` of its kernels; 1 where there are none."""
        asked = np.log(np.maximum(sum_s, np.finfo(np.float64).tiny))
        told = np.exp(np.interp(asked, self.log_sum_s, self.log_factor))
        return np.where(sum_s > 0.0, told, 1.0)


def layer_sum(cost_model: ProfileCostModel) -> LayerSum | None:
    """The curve of the cost model's profile; None where it has measured no layer that counts."""
    found: dict[float, list[float]] = {}
    for sample in _measured(cost_model):
        assert isinstance(sample.case, LayerCase)
        with contextlib.suppress(MissingCurveError):
            parts = parts_of_layer(cost_model, sample.case)
            sum_s = float(np.sum([part.seconds[0] for part in parts]))
            known = all(int(part.origin[0]) <= int(Origin.EXTRAPOLATED) for part in parts)
            if known and (sample.case.mode == "graph" or sum_s > _host_s(cost_model)):
                found.setdefault(sum_s, []).append(float(np.log(sample.median_s / sum_s)))
    if not found:
        return None
    ordered = sorted(found)
    return LayerSum(
        log_sum_s=np.log(floats(ordered)), log_factor=floats([np.mean(found[sum_s]) for sum_s in ordered])
    )


def _host_s(cost_model: ProfileCostModel) -> float:
    """Seconds of the host to issue a layer, forward and backward; endless where nobody measured it."""
    with contextlib.suppress(MissingCurveError):
        return float(cost_model.cpu_s("layer").seconds[0])
    return float("inf")


def _measured(cost_model: ProfileCostModel) -> list[Sample]:
    """Good samples of whole layers: as one graph where there are any, else as issued one by one."""
    table = cost_model.profile.tables.get(Family.LAYER)
    if table is None:
        return []
    good = (table.status == STATUSES.index("ok")) & (table.origin == int(Origin.MEASURED))
    graphs = good & table.labels["mode"].equals("graph")
    rows = np.flatnonzero(graphs if graphs.any() else good)
    return [sample_at(table, row) for row in rows.tolist()]
