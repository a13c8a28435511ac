"""One step of a training on this rank, timed."""

import time

from profiler.ranks.world import World
from runner.training.trainer import Trainer


def one_step(trainer: Trainer, world: World, step: int) -> float:
    """Seconds of a step on this rank; all ranks begin together, with their tokens on the device."""
    batch = trainer.batch(step)
    world.align()
    world.device.synchronize()
    began = time.perf_counter()
    trainer.step(*batch)
    world.device.synchronize()
    return time.perf_counter() - began
