"""What NVIDIA's driver says of a GPU while it works, through nvidia-ml-py (``pynvml``) where that is installed.

Source of calls, units and bits: NVML API reference, "Device Queries" and "nvmlClocksEventReasons".
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from profiler.benchmarks.optional_packages import optional_package
from profiler.device import Device

ABSENT = "clocks were not read: nvidia-ml-py is not installed (requirements-gpu.txt), or the driver does not answer"

POWER_CAP, SLOWED_BY_HARDWARE, HEAT, HEAT_BY_HARDWARE, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
REASONS: dict[int, str] = {
    POWER_CAP: "power cap",
    SLOWED_BY_HARDWARE: "hardware slowdown",
    HEAT: "heat",
    HEAT_BY_HARDWARE: "heat, by hardware",
    POWER_BRAKE: "power brake",
}
"""Why a GPU may run below the clocks it was asked for; what else the driver says is no limit (idle, chosen clocks)."""

TROUBLE = SLOWED_BY_HARDWARE | HEAT | HEAT_BY_HARDWARE | POWER_BRAKE
"""What does not belong to a GPU's normal work, as the power cap does."""


CLOCK, POWER = ("nvmlDeviceGetClockInfo",), ("nvmlDeviceGetPowerUsage",)
TEMPERATURE = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
HELD_BY = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Calls by their name of today and that of drivers before 570 (temperature) and 535 (reasons)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One look at a GPU. What the driver does not tell is 0; ``reasons`` are bits of REASONS. ``power_w`` is the
    driver's average over a second (Ampere and newer)."""

    sm_clock_hz: float = 0.0
    memory_clock_hz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    reasons: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvml:
    """The driver as ``pynvml`` speaks to it, and its handle of one GPU."""

    driver: ModuleType
    handle: Any

    def reading(self) -> ClockReading:
        """What the driver says now."""
        driver = self.driver
        return ClockReading(
            sm_clock_hz=1e6 * self._told(CLOCK, driver.NVML_CLOCK_SM),
            memory_clock_hz=1e6 * self._told(CLOCK, driver.NVML_CLOCK_MEM),
            power_w=1e-3 * self._told(POWER),
            temperature_c=self._told(TEMPERATURE, driver.NVML_TEMPERATURE_GPU),
            reasons=int(self._told(HELD_BY)),
        )

    def _told(self, names: tuple[str, ...], *words: Any) -> float:
        """The answer to the first of these calls that has one; 0 where none has. The library holds names that an older
        driver does not: it says so only when it is asked."""
        for name in names:
            ask: Callable[..., Any] | None = getattr(self.driver, name, None)
            try:
                if ask is not None:
                    return float(ask(self.handle, *words))
            except self.driver.NVMLError:
                continue
        return 0.0


def opened(device: Device) -> Nvml | None:
    """The driver's door to a GPU; None on a CPU, without nvidia-ml-py, or where the driver does not answer."""
    driver = optional_package("pynvml") if device.kind == "cuda" else None
    if driver is None:
        return None
    try:
        driver.nvmlInit()
        if device.driver_id:
            return Nvml(driver=driver, handle=driver.nvmlDeviceGetHandleByUUID(device.driver_id))
        return Nvml(driver=driver, handle=driver.nvmlDeviceGetHandleByIndex(device.index))
    except driver.NVMLError:
        return None
