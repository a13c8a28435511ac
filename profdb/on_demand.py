"""Measuring during a search: shapes outside the samples are launched once, and their samples are kept.

The caller passes the function that measures (profiler.on_demand); ``keep`` merges its samples into the profile's
file. Only compute families that one process can measure alone are measured. A case that runs out of
memory or fails is tried once, and the curve's own time is used, as for every case after the
time allowed is spent.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from profdb.cases import CASE_OF, Case, Family, product_dtypes
from profdb.queries import TimeEstimate
from profdb.refit import merge_into
from profdb.sample import MachineFacts, ProfileDatabase, Sample, sample_at
from profdb.store.columns import SampleTable, label_names, number_names
from spec.arrays import IntArray
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.origin import Origin

MEASURABLE = frozenset({Family.GEMM, Family.GROUPED_GEMM, Family.ATTENTION})

Measure = Callable[[Case], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringDevice:
    """A device of this machine: its facts, the function that measures one case on it, and the most seconds of
    measuring."""

    machine: MachineFacts
    measure: Measure
    allowed_s: float = float("inf")

    def on_demand(self, profile: ProfileDatabase, where: str) -> "OnDemand":
        """Returns measuring on demand for a profile (of the file ``where``); raises ProfileError for one of another
        GPU."""
        if profile.machine.gpu != self.machine.gpu:
            raise ProfileError(
                f"{where}: a profile of {profile.machine.gpu!r}, and this device is {self.machine.gpu!r}; "
                "measure on the GPU of the profile, or search in a profile of this device"
            )
        return OnDemand(self.measure, earlier=profile.tables, allowed_s=self.allowed_s)


class OnDemand:
    """A function ``measure(case) -> Sample`` and every sample it has returned so far.

    ``earlier`` are samples of earlier runs: a case measured there (or found not to run) is not measured again. No
    case begins once measuring has taken ``allowed_s`` seconds in all.
    """

    def __init__(
        self, measure: Measure, *, earlier: Mapping[Family, SampleTable] | None = None, allowed_s: float = float("inf")
    ) -> None:
        self._measure = measure
        self._earlier = {} if earlier is None else earlier
        self._rows: dict[Family, dict[tuple[object, ...], int]] = {}
        self._allowed_s = allowed_s
        self._samples: dict[Case, Sample] = {}
        self._unmeasured: set[Case] = set()
        self.spent_s = 0.0

    def samples(self) -> list[Sample]:
        """Returns the measured samples in order, failures included, to be merged into the profile and saved."""
        return list(self._samples.values())

    @property
    def num_unmeasured(self) -> int:
        """Returns the number of different cases requested after the time allowed was spent."""
        return len(self._unmeasured)

    def fill(
        self, family: Family, labels: dict[str, str], columns: dict[str, IntArray], estimate: TimeEstimate
    ) -> TimeEstimate:
        """Returns ``estimate`` with the shapes that are not interpolated inside measured data measured instead."""
        if family not in MEASURABLE:
            return estimate
        seconds, spread, origin = (estimate.seconds.copy(), estimate.relative_std.copy(), estimate.origin.copy())
        for row in np.flatnonzero(np.isnan(seconds) | (origin != int(Origin.MEASURED))).tolist():
            case = case_of(family, labels, {name: int(column[row]) for name, column in columns.items()})
            sample = self._sample_of(family, case)
            if sample is not None and sample.status == "ok":
                seconds[row], origin[row] = sample.median_s, int(sample.origin)
                spread[row] = float(np.std(sample.trials_s) / sample.median_s)
        return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)

    def _sample_of(self, family: Family, case: Case) -> Sample | None:
        """Returns the sample of a case: of this run, of an earlier one, or measured now; None when the time is spent."""
        if case in self._samples:
            return self._samples[case]
        row = self._measured_rows(family).get(_key(family, case))
        if row is not None:
            return sample_at(self._earlier[family], row)
        if self.spent_s >= self._allowed_s:
            self._unmeasured.add(case)
            return None
        start = time.perf_counter()
        self._samples[case] = self._measure(case)
        self.spent_s += time.perf_counter() - start
        return self._samples[case]

    def _measured_rows(self, family: Family) -> dict[tuple[object, ...], int]:
        """Returns the row of each measured case of the earlier samples; of several, the last."""
        if family not in self._rows:
            table = self._earlier.get(family)
            # A dict keeps the last row of equal keys.
            keys = [] if table is None else table.case_keys()
            measured = [] if table is None else (table.origin == int(Origin.MEASURED)).tolist()
            self._rows[family] = {key: row for row, key in enumerate(keys) if measured[row]}
        return self._rows[family]


def _key(family: Family, case: Case) -> tuple[object, ...]:
    """Returns a case as SampleTable.case_keys has it."""
    numbers = (int(getattr(case, name)) for name in sorted(number_names(family)))
    return (*numbers, *(str(getattr(case, name)) for name in sorted(label_names(family))))


def keep(path: str | Path, samples: list[Sample], machine: MachineFacts) -> None:
    """Merges samples measured on ``machine`` into the profile at ``path`` as it is now, with new fits, in one step.
    Writes nothing for no samples. Raises ProfileError when the file cannot be read or written."""
    if samples:
        merge_into(Path(path), ProfileDatabase(machine=machine, samples=samples))


def case_of(family: Family, labels: dict[str, str], sizes: dict[str, int]) -> Case:
    """Returns the case of a query's labels and sizes."""
    case_type = CASE_OF[family]
    flags = {item.name for item in fields(case_type) if item.type is bool}
    values: dict[str, object] = {name: word == "1" if name in flags else word for name, word in labels.items()}
    if "collective" in labels:
        values["collective"] = Collective(labels["collective"])
    # A query has one format; a product's case also has those of its sum and result.
    dtypes = product_dtypes(labels["dtype_in"]) if "dtype_in" in labels else {}
    case: Case = case_type(**sizes, **{**values, **dtypes})
    return case
