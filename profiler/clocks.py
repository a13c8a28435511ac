"""Clocks, power and temperature of a GPU while a case is measured, from NVIDIA's driver (nvidia-ml-py, ``pynvml``).

They are read between the trials of a case, never during one. Source of calls, units and bits: NVML API reference,
"Device Queries" and "nvmlClocksEventReasons".
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from profdb.sample import MachineFacts, Sample
from profiler.benchmarks.optional_packages import optional_package
from profiler.device import Device

ABSENT = "clocks were not read: nvidia-ml-py is not installed (requirements-gpu.txt), or the driver does not answer"

POWER_CAP, HARDWARE_SLOWDOWN, HEAT, HARDWARE_HEAT, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
REASONS: dict[int, str] = {
    POWER_CAP: "power cap",
    HARDWARE_SLOWDOWN: "hardware slowdown",
    HEAT: "heat",
    HARDWARE_HEAT: "heat, by hardware",
    POWER_BRAKE: "power brake",
}
"""Reasons of a GPU to run below the requested clocks; the driver's other reasons are no limit (idle, requested clocks)."""

TROUBLE = HARDWARE_SLOWDOWN | HEAT | HARDWARE_HEAT | POWER_BRAKE
"""Reasons that are not part of a GPU's normal work; the power cap is."""

CLOCK, POWER = ("nvmlDeviceGetClockInfo",), ("nvmlDeviceGetPowerUsage",)
TEMPERATURE = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
THROTTLE_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Calls by their present name and that of drivers before 570 (temperature) and 535 (reasons)."""

READ_EVERY_S = 0.02
"""A reading takes a millisecond of the host's time; the driver renews its values several times a second."""

MOST_DROP = 0.1
"""A sample whose clock fell by a larger share is measured again: its trials are not comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """State of a GPU. Values that the driver does not report are 0; ``reasons`` are bits of REASONS. ``power_w`` is
    the driver's average over a second (Ampere and newer)."""

    sm_clock_hz: float = 0.0
    memory_clock_hz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    reasons: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """The driver through ``pynvml``, and its handle of one GPU."""

    driver: ModuleType
    handle: Any

    def reading(self) -> ClockReading:
        """Returns the state of the GPU now."""
        driver = self.driver
        return ClockReading(
            # The driver reports MHz and mW.
            sm_clock_hz=1e6 * self._query(CLOCK, driver.NVML_CLOCK_SM),
            memory_clock_hz=1e6 * self._query(CLOCK, driver.NVML_CLOCK_MEM),
            power_w=1e-3 * self._query(POWER),
            temperature_c=self._query(TEMPERATURE, driver.NVML_TEMPERATURE_GPU),
            reasons=int(self._query(THROTTLE_REASONS)),
        )

    def _query(self, names: tuple[str, ...], *words: Any) -> float:
        """Returns the value of the first of these calls that works; 0 if none does. The library has names that an
        older driver lacks: it raises only when they are called."""
        for name in names:
            call: Callable[..., Any] | None = getattr(self.driver, name, None)
            try:
                if call is not None:
                    return float(call(self.handle, *words))
            except self.driver.NVMLError:
                continue
        return 0.0


def open_nvml(device: Device) -> Nvml | None:
    """Returns the driver's handle of a GPU; None on a CPU, without nvidia-ml-py, or if the driver does not answer."""
    driver = optional_package("pynvml") if device.kind == "cuda" else None
    if driver is None:
        return None
    try:
        driver.nvmlInit()
        # By its UUID: indices count all GPUs of the node, torch only the visible ones.
        if device.driver_id:
            return Nvml(driver=driver, handle=driver.nvmlDeviceGetHandleByUUID(device.driver_id))
        return Nvml(driver=driver, handle=driver.nvmlDeviceGetHandleByIndex(device.index))
    except driver.NVMLError:
        return None


@dataclass(slots=True, kw_only=True)
class ClockMonitor:
    """Readings during one case after another. Without a ``source`` it reads nothing. ``best_hz`` is the highest clock
    of the run so far."""

    source: Nvml | None = None
    now: Callable[[], float] = time.monotonic
    best_hz: float = 0.0
    readings: list[ClockReading] = field(default_factory=list)
    read_at: float = float("-inf")

    def begin(self) -> None:
        """Starts with the trials of a case."""
        self.readings = []
        self.read_at = float("-inf")
        self.read()

    def read(self) -> None:
        """Takes a reading, if the last one is READ_EVERY_S ago."""
        if self.source is None or self.now() - self.read_at < READ_EVERY_S:
            return
        self.read_at = self.now()
        self.readings.append(self.source.reading())
        self.best_hz = max(self.best_hz, self.readings[-1].sm_clock_hz)

    @property
    def drop(self) -> float:
        """Returns the share by which the clock fell: below the highest of these trials, or, if heat or hardware
        limited it, of the whole run. With a power cap alone, which is normal, a case is compared with itself."""
        clocks = [reading.sm_clock_hz for reading in self.readings if reading.sm_clock_hz > 0.0]
        if not clocks:
            return 0.0
        # Heat and hardware limits hold the clock down for the whole case, so that its own maximum says nothing.
        trouble = any(reading.reasons & TROUBLE for reading in self.readings)
        return 1.0 - min(clocks) / (max(self.best_hz, *clocks) if trouble else max(clocks))

    def each(self) -> dict[str, str]:
        """Returns the SM clock of every reading in MHz, in order; empty without readings."""
        clocks = [f"{reading.sm_clock_hz / 1e6:.0f}" for reading in self.readings]
        return {"sm_clocks_mhz": " ".join(clocks)} if clocks else {}

    def notes(self) -> dict[str, str | int | float | bool]:
        """Returns the notes for the sample: median and lowest clocks, the highest power and temperature, and the
        reasons for lower clocks; empty without readings."""
        if not any(reading.sm_clock_hz for reading in self.readings):
            return {}
        sm = [reading.sm_clock_hz for reading in self.readings]
        noted: dict[str, str | int | float | bool] = {
            "sm_clock_hz": float(np.median(sm)),
            "lowest_sm_clock_hz": min(sm),
            "memory_clock_hz": float(np.median([reading.memory_clock_hz for reading in self.readings])),
            "power_w": max(reading.power_w for reading in self.readings),
            "temperature_c": max(reading.temperature_c for reading in self.readings),
        }
        # Each reason once, if any reading of the case had it.
        slowed = [word for bit, word in REASONS.items() if any(one.reasons & bit for one in self.readings)]
        return noted | ({"slowed_by": ", ".join(slowed)} if slowed else {})


def with_clocks(machine: MachineFacts, samples: Iterable[Sample]) -> MachineFacts:
    """Returns the facts with the median clocks of the samples that noted theirs; unchanged if none did."""
    noted = [sample.launched for sample in samples if "sm_clock_hz" in sample.launched]
    if not noted:
        return machine
    return replace(
        machine,
        sm_clock_hz=float(np.median([float(note["sm_clock_hz"]) for note in noted])),
        memory_clock_hz=float(np.median([float(note["memory_clock_hz"]) for note in noted])),
    )
