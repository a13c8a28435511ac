"""A training run: read, build, warm up, time every step, say what came of it."""

import json
import resource
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from profiler.device import Device, choose_device
from profiler.ranks.rank_layout import RankLayout
from profiler.ranks.world import World, open_world
from runner.groups.agreement import agreed, same_everywhere
from runner.groups.last_words import failed, last_words
from runner.training.asking import Asked, Typed, ask
from runner.training.faults import watched
from runner.training.measured import Measured, Memory, heading, lines, most, run_name, write
from runner.training.stepping import Step, one_step
from runner.training.traced import trace_path, trace_steps
from runner.training.trainer import Trainer
from spec.readers.config_flags import assumed_lines

HARMLESS = (r"FSDP2-wrapped module .* returned a view tensor",)
"""Warnings of torch's about what this trainer does not do: it changes no output in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to run ``typed``: steps before and while time is taken, the longest wait of one rank for another, the files
    to write; ``trace`` is the folder of the traces."""

    typed: Typed
    device: str = "auto"
    steps: int = 10
    warmup: int = 3
    timeout_s: float = 120.0
    json: Path | None = None
    results: Path | None = None
    trace: Path | None = None
    say: Callable[[str], object] = print


def run_training(options: TrainOptions, layout: RankLayout) -> list[str]:
    """Train on all ranks; on rank 0 the lines that say what was measured.

    Raises UserError for what cannot be run, RankFailedError for a rank that cannot go on.
    """
    device = choose_device(options.device, layout)
    found: list[Asked] = []

    def first(world: World) -> None:
        world.begin("reading the config and the plan")
        found.append(agreed(world, lambda: ask(options.typed, device, layout.size)))
        same_everywhere(world, repr(found[0].training), "the config or the command line")

    world = open_world(layout, device, timeout_s=options.timeout_s, first=first)
    asked = found[0]
    if world.leads:
        options.say(heading(asked, device.name))
    last_words(world)
    try:
        with warnings.catch_warnings():
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            measured = measure(options, asked, world)
    except BaseException as error:
        failed(world, error)
        raise
    written = agreed(world, lambda: write(measured, options.json, options.results) if world.leads else [])
    world.close()
    if options.trace is not None:
        written.append(f"wrote {trace_path(options.trace, measured.name, 0)}, and of the other ranks")
    return [*assumed_lines(asked.training.model), *lines(measured), *written] if world.leads else []


def measure(options: TrainOptions, asked: Asked, world: World) -> Measured:
    """Build and run every step; the same on all ranks."""
    device = world.device
    with watched(world, "building the model"):
        trainer = Trainer(asked.training, device.torch_device)
    steps: list[Step] = []
    losses: list[float] = []
    for step in range(options.warmup + options.steps):
        timed = step >= options.warmup
        name = f"step {step - options.warmup + 1}" if timed else f"step {step + 1} of warm-up"
        if step == options.warmup and device.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(device.index)
        with watched(world, name):
            took = one_step(trainer, world, step)
            loss = trainer.loss_share()
        if timed:
            steps.append(took)
            losses.append(loss)
    memory = asdict(memory_of(device))
    if options.trace is not None:
        path = trace_path(options.trace, run_name(asked), world.rank)
        with watched(world, "the steps of the trace"):
            trace_steps(trainer, world, options.warmup + options.steps, path)
    said = [json.loads(word) for word in world.gather(json.dumps([list(map(asdict, steps)), losses, memory]))]
    everyone = [[Step(**one) for one in taken] for taken, _, _ in said]
    return Measured(
        asked=asked,
        device=device.name,
        warmup=options.warmup,
        steps_s=tuple(max(one.wall_s for one in step) for step in zip(*everyone, strict=True)),
        steps_cpu_s=tuple(max(one.cpu_s for one in step) for step in zip(*everyone, strict=True)),
        losses=tuple(map(sum, zip(*(shares for _, shares, _ in said), strict=True))),
        memory=most([Memory(**each) for _, _, each in said]),
    )


def memory_of(device: Device) -> Memory:
    """Peaks of this rank."""
    on_gpu = device.kind == "cuda"
    return Memory(
        allocated_bytes=torch.cuda.max_memory_allocated(device.index) if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved(device.index) if on_gpu else None,
        resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
