"""Clocks while a case is measured: noted with its sample, and one that falls is a reason to measure again."""

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from profdb.cases import GemmCase
from profdb.sample import MachineFacts, Sample
from profiler import clocks as nvml
from profiler.clocks import HEAT, POWER_CAP, REASONS, ClockMonitor, ClockReading, Nvml, open_nvml, with_clocks
from profiler.device import Device
from profiler.measurement import Bench, measure
from tests.profiler.benchmarks.signatures import checked
from tests.profiler.fakes import FakeClock, FakeLauncher, fake_bench, seconds_of

CASE = GemmCase(m=64, k=64, n=64)


def readings(*clocks_hz: float, reasons: int = 0) -> list[ClockReading]:
    return [
        ClockReading(sm_clock_hz=hz, memory_clock_hz=3.2e9, power_w=600.0 + index, reasons=reasons)
        for index, hz in enumerate(clocks_hz)
    ]


def watch(taken: list[ClockReading], best_hz: float = 0.0) -> ClockMonitor:
    return ClockMonitor(readings=taken, best_hz=best_hz)


@pytest.mark.parametrize(
    ("taken", "best_hz", "drop"),
    [
        ([], 2e9, 0.0),
        (readings(2e9, 1.6e9, 1.8e9), 0.0, 0.2),
        # the power cap held it at 1.5 GHz throughout, as it will in a training step: steady
        (readings(1.5e9, 1.5e9, reasons=POWER_CAP), 2e9, 0.0),
        # heat held it at 1.5 GHz throughout: a quarter below what the run has seen
        (readings(1.5e9, 1.5e9, reasons=HEAT), 2e9, 0.25),
        ([ClockReading()], 2e9, 0.0),
    ],
)
def test_a_drop_is_below_the_samples_own_or_under_heat_the_runs_best_clock(
    taken: list[ClockReading], best_hz: float, drop: float
) -> None:
    assert watch(taken, best_hz).drop == pytest.approx(drop)


def test_notes_say_the_middle_the_lowest_and_what_held_it_down() -> None:
    assert watch(readings(2e9, 1.6e9, 1.8e9, reasons=POWER_CAP | HEAT)).notes() == {
        "sm_clock_hz": 1.8e9,
        "lowest_sm_clock_hz": 1.6e9,
        "memory_clock_hz": 3.2e9,
        "power_w": 602.0,
        "temperature_c": 0.0,
        "slowed_by": "power cap, heat",
    }
    assert watch([]).notes() == watch([ClockReading()]).notes() == {}


def telling(told: Iterator[ClockReading]) -> Nvml:
    """A driver whose every reading is the next of these."""
    source: Any = SimpleNamespace(reading=lambda: next(told), driver=ModuleType("pynvml"), handle=0)
    return source


def bench_with(told: list[ClockReading]) -> tuple[Bench, FakeLauncher, FakeClock]:
    bench = fake_bench()
    assert isinstance(bench.launcher, FakeLauncher)
    clock = bench.launcher.clock
    bench.clocks = ClockMonitor(source=telling(iter(told)), now=lambda: 100.0 * clock.now_s)
    return bench, bench.launcher, clock


def test_a_steady_clock_is_noted_and_measured_once() -> None:
    bench, launcher, _ = bench_with(readings(*[1.9e9] * 1000))
    sample = measure(CASE, bench, "2026-01-01")
    assert launcher.launched == [CASE]
    assert sample.launched["sm_clock_hz"] == 1.9e9
    assert "measured_again" not in sample.launched
    assert len(bench.clocks.readings) == 1 + len(sample.trials_s)  # one before the trials, one after each


def test_a_clock_that_falls_is_measured_again_and_the_steadier_kept() -> None:
    falling, steady = readings(2e9, *[1.7e9] * 20), readings(*[1.75e9] * 1000)
    bench, launcher, _ = bench_with([*falling, *steady])
    sample = measure(CASE, bench, "2026-01-01")
    assert launcher.launched == [CASE, CASE]
    assert sample.launched["measured_again"] == "clock"
    assert sample.launched["lowest_sm_clock_hz"] == sample.launched["sm_clock_hz"] == 1.75e9
    assert sample.trials_s == pytest.approx([seconds_of(CASE)] * len(sample.trials_s))


@pytest.mark.parametrize(("lowest_hz", "looks"), [(1.82e9, 1), (1.78e9, 2)])
def test_one_tenth_is_a_drop(lowest_hz: float, looks: int) -> None:
    """9 % is not measured again, 11 % is."""
    bench, launcher, _ = bench_with([*readings(2e9), *readings(*[lowest_hz] * 1000)])
    measure(CASE, bench, "2026-01-01")
    assert len(launcher.launched) == looks


def test_readings_are_not_taken_faster_than_the_driver_renews_them() -> None:
    bench, _, clock = bench_with(readings(*[1.9e9] * 1000))
    bench.clocks.now = lambda: clock.now_s  # a trial takes 1 to 2 ms, a reading lasts 20
    sample = measure(CASE, bench, "2026-01-01")
    assert len(bench.clocks.readings) <= 1 + sum(sample.trials_s) / 0.02


def test_the_machines_clocks_are_those_in_the_middle_of_its_samples() -> None:
    noted = [
        Sample(case=CASE, trials_s=(1.0,), launched={"sm_clock_hz": hz, "memory_clock_hz": 3e9})
        for hz in (1.2e9, 1.9e9, 1.8e9)
    ]
    facts = with_clocks(MachineFacts(gpu="x"), [*noted, Sample(case=CASE, trials_s=(1.0,))])
    assert (facts.sm_clock_hz, facts.memory_clock_hz) == (1.8e9, 3e9)
    assert with_clocks(MachineFacts(gpu="x"), ()).sm_clock_hz == 0.0


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
            setattr(library, name, checked("pynvml", name, value) if name.startswith("nvml") else value)
    return library


def refuses(*_: object) -> None:
    raise NVMLError("Not Supported")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(Device, "identity", "5a7c")
    return Device(kind="cuda")


def test_a_reading_is_in_hertz_watts_and_degrees(named: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "optional_package", lambda name: driver() if name == "pynvml" else None)
    gpu = open_nvml(named)
    assert gpu is not None
    assert gpu.handle == "GPU-5a7c"
    assert gpu.reading() == ClockReading(
        sm_clock_hz=1.755e9, memory_clock_hz=3.201e9, power_w=698.5, temperature_c=61.0, reasons=5
    )


@pytest.mark.parametrize("unknown", [None, refuses])
def test_what_a_gpu_does_not_tell_is_nought(unknown: Any, named: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # a virtual GPU without power; a library, or below it a driver, that knows other calls by their older names
    older = driver(
        nvmlDeviceGetPowerUsage=refuses,
        nvmlDeviceGetTemperatureV=unknown,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
        nvmlDeviceGetCurrentClocksEventReasons=unknown,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40,
    )
    monkeypatch.setattr(nvml, "optional_package", lambda _: older)
    gpu = open_nvml(named)
    assert gpu is not None
    reading = gpu.reading()
    assert (reading.power_w, reading.temperature_c, reading.reasons) == (0.0, 61.0, 0x40)
    assert REASONS[0x40] == "heat, by hardware"


@pytest.mark.parametrize("library", [None, driver(nvmlInit=refuses), driver(nvmlDeviceGetHandleByUUID=refuses)])
def test_without_library_or_driver_nobody_tells(
    library: ModuleType | None, named: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "optional_package", lambda _: library)
    assert open_nvml(named) is None


def test_a_processor_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "optional_package", lambda _: driver())
    assert open_nvml(Device(kind="cpu")) is None
