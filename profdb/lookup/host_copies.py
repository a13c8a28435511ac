"""Copies between a device and its host as they were measured, with as many devices of a node at work.

Between sizes the time is interpolated, both on logarithms; below the smallest it stays (the time of any
copy), above the largest the rate does.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profdb.cases import Family, HostCopyCase
from profdb.lookup.priced import TimeEstimate
from profdb.sample import ProfileDatabase, sample_at
from profdb.store.columns import STATUSES
from spec.arrays import FloatArray
from spec.origin import Origin

TO_DEVICE, TO_HOST = "to_device", "to_host"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCurve:
    """Seconds, and their relative standard deviation, by bytes, ascending; 1-D of one length."""

    size_bytes: FloatArray
    seconds: FloatArray
    relative_std: FloatArray

    def at(self, size_bytes: FloatArray) -> TimeEstimate:
        """Of copies of so many bytes; nothing takes no time."""
        asked = np.maximum(size_bytes, 1.0)
        logs = np.interp(np.log(asked), np.log(self.size_bytes), np.log(self.seconds))
        seconds = np.exp(logs) * np.maximum(asked / self.size_bytes[-1], 1.0)
        within = (asked >= self.size_bytes[0]) & (asked <= self.size_bytes[-1])
        return TimeEstimate(
            seconds=np.where(size_bytes > 0, seconds, 0.0),
            relative_std=np.interp(np.log(asked), np.log(self.size_bytes), self.relative_std),
            origin=np.where(within, int(Origin.MEASURED), int(Origin.EXTRAPOLATED)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """The measured curves by direction and devices of a node at work."""

    curves: Mapping[tuple[str, int], CopyCurve]

    def of(self, direction: str, size_bytes: FloatArray, devices: int) -> TimeEstimate | None:
        """Copies of so many bytes while as many devices copy; None where that was not measured."""
        curve = self.curves.get((direction, devices))
        return None if curve is None else curve.at(np.asarray(size_bytes, dtype=np.float64))


def host_copies(profile: ProfileDatabase) -> HostCopies | None:
    """The curves of a profile; None where it has measured none."""
    table = profile.tables.get(Family.HOST_COPY)
    if table is None:
        return None
    trials: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    usable = (table.status == STATUSES.index("ok")) & (table.origin == int(Origin.MEASURED))
    for row in np.flatnonzero(usable).tolist():
        sample = sample_at(table, row)
        case = sample.case
        assert isinstance(case, HostCopyCase)
        trials[case.direction, case.devices][case.size_bytes] += sample.trials_s
    curves = {key: _curve(sizes) for key, sizes in trials.items()}
    return HostCopies(curves=curves) if curves else None


def _curve(sizes: Mapping[int, list[float]]) -> CopyCurve:
    ordered = sorted(sizes)
    middle = np.array([np.median(sizes[size]) for size in ordered])
    spread = np.array([np.std(sizes[size]) for size in ordered])
    return CopyCurve(
        size_bytes=np.array(ordered, dtype=np.float64), seconds=middle, relative_std=spread / middle
    )
