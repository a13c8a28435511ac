"""Rate of compute-bound kernels in a training step over their benchmark rate, where it was measured.

A benchmark runs for a tenth of a second on a GPU that has just done something else. In a training step every previous
kernel has drawn power too, and clocks settle lower. The benchmark time of a product, by the profile's own curves, over
its sustained time (profdb.cases.SustainedCase) is the ratio that a hardware spec states as ``training_rate_ratio``.
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
"""Share of the readings that is skipped: power and heat have settled after it (seconds 15 to 30)."""

SIXTEEN_BITS = ("bf16", "fp16")
"""Formats whose products draw the same power: the ratio of one applies to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRates:
    """Sustained over benchmark rate of products, by number format; formats that were not measured are absent."""

    ratios: Mapping[str, float] = field(default_factory=dict)

    def of(self, dtype: str, otherwise: float) -> float:
        """Returns the ratio of a format, or of one like it; ``otherwise`` where neither was measured."""
        like = (dtype, *SIXTEEN_BITS) if dtype in SIXTEEN_BITS else (dtype,)
        return next((self.ratios[name] for name in like if name in self.ratios), otherwise)


NOTHING_SUSTAINED = SustainedRates()


def sustained_rates(cost_model: CostModel, gpu: str) -> SustainedRates:
    """Returns the ratios that the profile of ``cost_model`` has measured on ``gpu`` itself; none without a profile,
    or if it was restated from another GPU."""
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
    """Returns the seconds of one product once clocks have settled: the median of the later readings."""
    first = int(len(sample.trials_s) * SETTLED)
    return float(np.median(sample.trials_s[first:]))


def _ratio(cost_model: ProfileCostModel, case: SustainedCase, sample: Sample) -> float | None:
    """Returns benchmark over sustained time of one product, at most 1; None where the profile has no benchmark of it."""
    query = LinearQuery(
        m=ints([case.m]), k=ints([case.k]), n=ints([case.n]), dtype=case.dtype_in, scale_recipe=case.scale_recipe
    )
    try:
        estimate = cost_model.linear_s(query)
    except MissingCurveError:
        return None
    # A time that is not measured says nothing about the clocks of the benchmark.
    if int(estimate.origin[0]) != int(Origin.MEASURED):
        return None
    return min(1.0, float(estimate.seconds[0]) / settled_s(sample))
