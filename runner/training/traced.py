"""Steps under torch's profiler, a trace a rank, after those whose time counts."""

import os
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from profiler.ranks.world import World
from runner.training.stepping import one_step
from runner.training.trainer import Trainer
from spec.errors import ExportError
from spec.replaced_file import replaced_path

STEPS = 2
WARMUP = 1
"""Steps that the profiler sees and does not keep: its own first calls are slow."""
ENDING = ".trace.json.gz"
QUIET = "6"
"""KINETO_LOG_LEVEL above USDT, the highest of Kineto's severities (libkineto/include/ILoggerObserver.h): on a
processor the marks of start and stop are all that it has to say. On a GPU its errors are worth them."""


def trace_path(folder: Path, name: str, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"{name}_rank{rank}{ENDING}"


def trace_steps(trainer: Trainer, world: World, first: int, path: Path) -> None:
    """Run WARMUP + STEPS steps from number ``first`` on and write their trace, shapes included.

    Raises ExportError for a file that cannot be written.
    """
    activities = [ProfilerActivity.CPU]
    if world.device.kind == "cuda":
        activities.append(ProfilerActivity.CUDA)
    else:
        os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    asked = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror}") from error
    with (
        replaced_path(path) as temporary,
        profile(
            activities=activities,
            schedule=asked,
            record_shapes=True,
            on_trace_ready=lambda made: made.export_chrome_trace(str(temporary)),
        ) as profiler,
    ):
        for step in range(first, first + WARMUP + STEPS):
            one_step(trainer, world, step)
            profiler.step()
