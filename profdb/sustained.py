"""What compute-bound kernels keep of their benchmark rate in a training step, where it was measured.

A benchmark runs for a tenth of a second on a GPU that has just done something else; in a training step every kernel
before has drawn power too, and clocks settle lower. A sustained product (profdb.cases.SustainedCase) over the time that
the profile's own curves tell of the same product is the ratio that a sheet's ``training_rate_ratio`` states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from profdb.cases import Family, SustainedCase
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.queries import LinearQuery
from profdb.sample import Sample
from spec.arrays import ints
from spec.errors import MissingCurveError
from spec.origin import Origin

SETTLED = 0.5
"""Of the readings the later half counts: power and heat have settled by then (seconds 15 to 30)."""

SIXTEEN_BITS = ("bf16", "fp16")
"""Formats whose products draw the same power: one stands for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRates:
    """The share of the benchmark rate that products hold, by number format; formats that were not measured are not in
    it."""

    ratios: Mapping[str, float] = field(default_factory=dict)

    def of(self, dtype: str, otherwise: float) -> float:
        """The ratio of a format, or of one like it; ``otherwise`` where neither was measured."""
        like = (dtype, *SIXTEEN_BITS) if dtype in SIXTEEN_BITS else (dtype,)
        return next((self.ratios[name] for name in like if name in self.ratios), otherwise)


NOTHING_SUSTAINED = SustainedRates()


def sustained_rates(cost_model: CostModel, gpu: str) -> SustainedRates:
    """Returns what the profile behind ``cost_model`` has measured on ``gpu`` itself; nothing where there is no profile,
    or it was restated from another GPU."""
    if not isinstance(cost_model, ProfileCostModel) or cost_model.profile.machine.gpu != gpu:
        return NOTHING_SUSTAINED
    result: dict[str, list[float]] = {}
    for sample in cost_model.profile.measured_samples(Family.SUSTAINED):
        assert isinstance(sample.case, SustainedCase)
        ratio = _ratio(cost_model, sample.case, sample)
        if ratio is not None:
            result.setdefault(sample.case.dtype_in, []).append(ratio)
    return SustainedRates(ratios={dtype: float(np.median(ratios)) for dtype, ratios in result.items()})


def settled_s(sample: Sample) -> float:
    """Seconds of one product once clocks have settled: the median of the later readings."""
    first = int(len(sample.trials_s) * SETTLED)
    return float(np.median(sample.trials_s[first:]))


def _ratio(cost_model: ProfileCostModel, case: SustainedCase, sample: Sample) -> float | None:
    """Benchmark over sustained time of one product, at most 1; None where the profile has no benchmark of it."""
    query = LinearQuery(
        m=ints([case.m]),
        k=ints([case.k]),
        n=ints([case.n]),
        dtype=case.dtype_in,
        scale_recipe=case.scale_recipe,
    )
    try:
        estimate = cost_model.linear_s(query)
    except MissingCurveError:
        return None
    if int(estimate.origin[0]) != int(Origin.MEASURED):
        return None
    return min(1.0, float(estimate.seconds[0]) / settled_s(sample))
