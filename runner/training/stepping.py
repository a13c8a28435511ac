"""One step of a training on this rank, timed."""

import time
from dataclasses import dataclass

from profiler.ranks.world import World
from runner.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of a step by the clock on the wall, and CPU seconds of this process meanwhile, which neither
    waiting nor other processes lengthen."""

    wall_s: float
    cpu_s: float


def one_step(trainer: Trainer, world: World, step: int) -> Step:
    """A step on this rank; all ranks begin together, with their tokens on the device."""
    batch = trainer.batch(step)
    world.align()
    world.device.synchronize()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    trainer.step(*batch)
    world.device.synchronize()
    return Step(wall_s=time.perf_counter() - began_s, cpu_s=time.process_time() - began_cpu_s)
