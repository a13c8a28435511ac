"""The clocks of a GPU while a case is measured: read between its trials, never while one runs."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from profdb.sample import MachineFacts, Sample
from profiler.conditions.nvml import REASONS, TROUBLE, ClockReading, Nvml

READ_EVERY_S = 0.02
"""A reading takes a millisecond of the host's time; the driver renews what it says several times a second."""

MOST_DROP = 0.1
"""A sample whose clock fell by more is taken again: its trials are of two machines."""


@dataclass(slots=True, kw_only=True)
class ClockWatch:
    """``source`` None: nobody tells, and nothing is noted. ``best_hz`` is the highest clock of the run so far."""

    source: Nvml | None = None
    now: Callable[[], float] = time.monotonic
    best_hz: float = 0.0
    readings: list[ClockReading] = field(default_factory=list)
    read_at: float = float("-inf")

    def begin(self) -> None:
        """A case's trials start."""
        self.readings = []
        self.read_at = float("-inf")
        self.look()

    def look(self) -> None:
        """One reading, if the last is long enough ago."""
        if self.source is None or self.now() - self.read_at < READ_EVERY_S:
            return
        self.read_at = self.now()
        self.readings.append(self.source.reading())
        self.best_hz = max(self.best_hz, self.readings[-1].sm_clock_hz)

    @property
    def drop(self) -> float:
        """By what share the clock fell: below the highest of these trials, or, where heat or hardware held it down, of
        the whole run. A power cap alone is how the GPU works: it is compared with itself."""
        clocks = [reading.sm_clock_hz for reading in self.readings if reading.sm_clock_hz > 0.0]
        if not clocks:
            return 0.0
        trouble = any(reading.reasons & TROUBLE for reading in self.readings)
        return 1.0 - min(clocks) / (max(self.best_hz, *clocks) if trouble else max(clocks))

    def each(self) -> dict[str, str]:
        """The SM clock of every reading in MHz, in order; nothing where nobody tells."""
        clocks = [f"{reading.sm_clock_hz / 1e6:.0f}" for reading in self.readings]
        return {"sm_clocks_mhz": " ".join(clocks)} if clocks else {}

    def notes(self) -> dict[str, str | int | float | bool]:
        """For the sample: clocks in the middle of the readings and at their lowest, the most power and heat, and what
        held the clocks down; nothing where nobody tells."""
        if not any(reading.sm_clock_hz for reading in self.readings):
            return {}
        sm = [reading.sm_clock_hz for reading in self.readings]
        held = 0
        for reading in self.readings:
            held |= reading.reasons
        noted: dict[str, str | int | float | bool] = {
            "sm_clock_hz": float(np.median(sm)),
            "lowest_sm_clock_hz": min(sm),
            "memory_clock_hz": float(np.median([reading.memory_clock_hz for reading in self.readings])),
            "power_w": max(reading.power_w for reading in self.readings),
            "temperature_c": max(reading.temperature_c for reading in self.readings),
        }
        slowed = ", ".join(word for bit, word in REASONS.items() if held & bit)
        return noted | ({"slowed_by": slowed} if slowed else {})


def with_clocks(machine: MachineFacts, samples: Iterable[Sample]) -> MachineFacts:
    """The facts with the clocks in the middle of the samples that noted theirs; 0 where none did."""
    noted = [sample.launched for sample in samples if "sm_clock_hz" in sample.launched]
    if not noted:
        return machine
    return replace(
        machine,
        sm_clock_hz=float(np.median([float(note["sm_clock_hz"]) for note in noted])),
        memory_clock_hz=float(np.median([float(note["memory_clock_hz"]) for note in noted])),
    )
