"""Measuring during a search: shapes that no sample surrounds are launched once and kept.

The caller hands in what measures (profiler's door) and afterwards stores ``samples()`` in the profile.
Only compute families that one process can measure alone are asked for; a case that runs out of memory
or fails is asked for once and leaves the curve's own answer.
"""

from collections.abc import Callable

import numpy as np

from profdb.cases import AttentionCase, Case, Family, GemmCase, GroupedGemmCase
from profdb.priced import Priced
from profdb.sample import Sample
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes
from spec.origin import Origin

MEASURABLE = frozenset({Family.GEMM, Family.GROUPED_GEMM, Family.ATTENTION})

Measure = Callable[[Case], Sample]


class OnDemand:
    """A ``measure(case) -> Sample`` and every sample it has given so far."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._taken: dict[Case, Sample] = {}

    def samples(self) -> list[Sample]:
        """What was measured, in order, failures included: to be merged into the profile and saved."""
        return list(self._taken.values())

    def fill(
        self, family: Family, words: dict[str, str], columns: dict[str, IntArray], priced: Priced
    ) -> Priced:
        """``priced`` with the shapes that are not interpolated inside measured data measured instead."""
        if family not in MEASURABLE:
            return priced
        seconds, spread, origin = (
            priced.seconds.copy(),
            priced.relative_std.copy(),
            priced.origin.copy(),
        )
        for row in np.flatnonzero(np.isnan(seconds) | (origin != int(Origin.MEASURED))).tolist():
            case = case_of(family, words, {name: int(column[row]) for name, column in columns.items()})
            if case not in self._taken:
                self._taken[case] = self._measure(case)
            sample = self._taken[case]
            if sample.status == "ok":
                seconds[row], origin[row] = sample.median_s, int(sample.origin)
                spread[row] = float(np.std(sample.trials_s) / sample.median_s)
        return Priced(seconds=seconds, relative_std=spread, origin=origin)


def case_of(family: Family, words: dict[str, str], sizes: dict[str, int]) -> Case:
    """The case that a question's words and sizes stand for."""
    if family is Family.ATTENTION:
        attention = {name: words[name] for name in ("mask", "direction", "kernel", "dtype")}
        return AttentionCase(**sizes, **attention)  # type: ignore[arg-type]
    dtype = words["dtype_in"]
    product = {
        "layout": words["layout"],
        "dtype_in": dtype,
        "dtype_out": dtype if dtype_bytes(dtype) >= 2.0 else "bf16",
        "scale_recipe": words["scale_recipe"],
    }
    if family is Family.GROUPED_GEMM:
        return GroupedGemmCase(**sizes, **product)  # type: ignore[arg-type]
    return GemmCase(**sizes, **product, bias=words["bias"] == "1")  # type: ignore[arg-type]
