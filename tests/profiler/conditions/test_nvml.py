"""What the driver says, by a driver that is none."""

from types import ModuleType
from typing import Any

import pytest

from profiler.conditions import nvml
from profiler.conditions.nvml import REASONS, ClockReading, opened
from profiler.device import Device


class NVMLError(Exception):
    pass


def driver(**answers: Any) -> ModuleType:
    """nvidia-ml-py as far as it is asked, with its names, units (MHz, mW, degrees) and numbers."""
    library = ModuleType("pynvml")
    clocks = {1: 1755, 2: 3201}
    words: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetClockInfo": lambda handle, kind: clocks[kind],
        "nvmlDeviceGetPowerUsage": lambda handle: 698_500,
        "nvmlDeviceGetTemperatureV": lambda handle, sensor: 61,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4 | 0x1,
    }
    for name, value in {**words, **answers}.items():
        if value is not None:
            setattr(library, name, value)
    return library


def refuses(*_: object) -> None:
    raise NVMLError("Not Supported")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(Device, "identity", "5a7c")
    return Device(kind="cuda")


def test_a_reading_is_in_hertz_watts_and_degrees(named: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "optional_package", lambda name: driver() if name == "pynvml" else None)
    gpu = opened(named)
    assert gpu is not None
    assert gpu.handle == "GPU-5a7c"
    assert gpu.reading() == ClockReading(
        sm_clock_hz=1.755e9, memory_clock_hz=3.201e9, power_w=698.5, temperature_c=61.0, reasons=5
    )


@pytest.mark.parametrize("unknown", [None, refuses])
def test_what_a_gpu_does_not_tell_is_nought(
    unknown: Any, named: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a virtual GPU without power; a library, or below it a driver, that knows other calls by their older names
    older = driver(
        nvmlDeviceGetPowerUsage=refuses,
        nvmlDeviceGetTemperatureV=unknown,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
        nvmlDeviceGetCurrentClocksEventReasons=unknown,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40,
    )
    monkeypatch.setattr(nvml, "optional_package", lambda _: older)
    gpu = opened(named)
    assert gpu is not None
    reading = gpu.reading()
    assert (reading.power_w, reading.temperature_c, reading.reasons) == (0.0, 61.0, 0x40)
    assert REASONS[0x40] == "heat, by hardware"


@pytest.mark.parametrize(
    "library", [None, driver(nvmlInit=refuses), driver(nvmlDeviceGetHandleByUUID=refuses)]
)
def test_without_library_or_driver_nobody_tells(
    library: ModuleType | None, named: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "optional_package", lambda _: library)
    assert opened(named) is None


def test_a_processor_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "optional_package", lambda _: driver())
    assert opened(Device(kind="cpu")) is None
