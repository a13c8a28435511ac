"""Measuring single cases during a search (profdb.on_demand)."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from profdb.cases import Case
from profdb.on_demand import MeasuringDevice
from profdb.sample import Sample
from profiler.clocks import ClockMonitor, open_nvml
from profiler.device import choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.machine import find_hardware_spec, machine_facts
from profiler.measurement import Bench, measure
from profiler.outcome import DeviceLostError
from profiler.timing import raise_clocks
from profiler.torch_launcher import TorchLauncher
from spec.cluster.cluster import ArchitectureSpec
from spec.errors import ProfileError


def case_measurer(
    device: str = "auto", *, architecture: ArchitectureSpec | None = None, compiled: bool = False
) -> Callable[[Case], Sample]:
    """Returns a function that measures one compute case on this process's device (cuda, cpu or auto), of an
    ``architecture`` where that is known.

    Its sample of a case that does not fit or cannot run here has the status oom or failed; so has that of a
    collective, for which one process has no group. Raises ConfigError when cuda is requested and absent, and
    ProfileError when a case takes the device with it.
    """
    chosen = replace(choose_device(device, RankLayout()), architecture=architecture)
    world = World(layout=RankLayout(), device=chosen)
    clocks = ClockMonitor(source=open_nvml(chosen))
    bench = Bench(world=world, launcher=TorchLauncher(world=world, compiled=compiled), clocks=clocks)
    raise_clocks(chosen)

    def measure_one(case: Case) -> Sample:
        try:
            # Each sample has the time of its own measurement: a search may run for hours.
            return measure(case, bench, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        except DeviceLostError as lost:
            raise ProfileError(f"{chosen.name} answers no more after {lost}; search without measuring") from lost

    return measure_one


def measuring_device(device: str, root: Path, allowed_s: float) -> MeasuringDevice:
    """Returns this process's device (cuda, cpu or auto) for at most ``allowed_s`` seconds of measuring, with its
    hardware spec from ``root``/configs/clusters. Raises ConfigError when cuda is requested and absent."""
    chosen = choose_device(device, RankLayout())
    world = World(layout=RankLayout(), device=chosen)
    hardware = find_hardware_spec(chosen.name, chosen.kind, root)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    architecture = hardware.cluster.gpu.architecture if hardware else None
    return MeasuringDevice(
        machine=machine_facts(world, hardware, today),
        measure=case_measurer(device, architecture=architecture),
        allowed_s=allowed_s,
    )
