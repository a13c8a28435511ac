"""What a training run measured, in words and in files."""

import csv
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from runner.training.asking import Asked
from solver.model_flops import counts_whole_attention, mfu, tokens_per_gpu_per_s
from spec.parameters import num_parameters
from spec.replaced_file import replaced_file
from spec.settings.setting import typed
from spec.units import GIB

STEP_COLUMNS = ("step", "step_s", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The most that a rank held after warm-up: what torch's allocator gave out and what it kept from the device, None
    on a processor, which has no such allocator; and the process's resident set since its start."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run: seconds of each timed step (of the slowest rank), CPU seconds of each (of the busiest), the loss
    of each, and the most memory of any rank."""

    asked: Asked
    device: str
    warmup: int
    steps_s: tuple[float, ...]
    steps_cpu_s: tuple[float, ...]
    losses: tuple[float, ...]
    memory: Memory

    @property
    def step_s(self) -> float:
        """Mean."""
        return statistics.fmean(self.steps_s)

    @property
    def tokens_per_gpu_per_s(self) -> float:
        """TGS."""
        return float(tokens_per_gpu_per_s(self.asked.question.job, np.array([self.step_s]))[0])

    @property
    def mfu(self) -> float:
        """Of the peak that the cluster's sheet says."""
        question = self.asked.question
        return float(mfu(question.model, question.job, question.cluster, np.array([self.step_s]))[0])

    @property
    def name(self) -> str:
        """Of its files."""
        return run_name(self.asked)


def run_name(asked: Asked) -> str:
    """What the files of a run are called."""
    plan = asked.plan
    words = f"{asked.question.model.name}-world{plan.world_size}-{plan.label()}-{asked.dtype}"
    return re.sub(r"[^\w.+=-]+", "-", words)


def most(memories: Sequence[Memory]) -> Memory:
    """Of all ranks, each by itself."""
    allocated = [each.allocated_bytes for each in memories if each.allocated_bytes is not None]
    reserved = [each.reserved_bytes for each in memories if each.reserved_bytes is not None]
    return Memory(
        allocated_bytes=max(allocated, default=None),
        reserved_bytes=max(reserved, default=None),
        resident_bytes=max(each.resident_bytes for each in memories),
    )


def heading(asked: Asked, device: str) -> str:
    """What is about to be run."""
    plan, job = asked.plan, asked.question.job
    parameters = num_parameters(asked.question.model).total
    degree = f" dp{plan.dp}" if plan.dp > 1 and "dp" not in plan.label() else ""
    cut = f", cp by {job.context_parallel}" if plan.cp > 1 else ""
    return (
        f"{asked.question.model.name}, {parameters:,} parameters, on {plan.world_size} x {device}\n"
        f"plan {plan.label()}{degree}{cut}, {asked.dtype}, "
        f"{job.global_batch_sequences} sequences of {job.seq_len} tokens a step"
    )


def lines(measured: Measured) -> list[str]:
    """The summary."""
    steps, memory, question = measured.steps_s, measured.memory, measured.asked.question
    spread = statistics.stdev(steps) if len(steps) > 1 else 0.0
    counted = "" if counts_whole_attention(question.model, question.job) else ", half of the attention matrix"
    if memory.allocated_bytes is None or memory.reserved_bytes is None:
        held = f"resident {memory.resident_bytes / GIB:.3f} GiB"
    else:
        held = f"allocated {memory.allocated_bytes / GIB:.3f} GiB, reserved {memory.reserved_bytes / GIB:.3f} GiB"
    return [
        f"step     {measured.step_s:.4f} s (least {min(steps):.4f}, most {max(steps):.4f}, std {spread:.4f}; "
        f"{len(steps)} steps after {measured.warmup} of warm-up)",
        f"tokens   {measured.tokens_per_gpu_per_s:.1f} per second and device",
        f"mfu      {100 * measured.mfu:.2f} % of the {measured.asked.dtype} peak of {question.cluster.gpu.name}{counted}",
        f"memory   {held} on the rank with the most",
        f"loss     {measured.losses[0]:.4f} to {measured.losses[-1]:.4f}",
    ]


def record(measured: Measured) -> dict[str, object]:
    """Everything, as plain values with the unit in the name; the plan's keys are those of --plan, and dp."""
    asked, question = measured.asked, measured.asked.question
    return {
        "config": str(asked.config),
        "model": question.model.name,
        "cluster": question.cluster.name,
        "device": measured.device,
        "torch": torch.__version__,
        "world_size": question.job.world_size,
        "seq_len": question.job.seq_len,
        "global_batch_tokens": question.job.global_batch_tokens,
        "preset": question.job.preset.name,
        "dtype": asked.dtype,
        "job": {key: typed(value) for key, value in asked.job.items()},
        "compiled": asked.training.compiled,
        "plan": asdict(asked.plan.written) | {"dp": asked.plan.dp},
        "warmup_steps": measured.warmup,
        "steps_s": list(measured.steps_s),
        "steps_cpu_s": list(measured.steps_cpu_s),
        "losses": list(measured.losses),
        "step_s": measured.step_s,
        "tokens_per_gpu_per_s": measured.tokens_per_gpu_per_s,
        "mfu": measured.mfu,
        **asdict(measured.memory),
    }


def write(measured: Measured, json_path: Path | None, results: Path | None) -> list[str]:
    """The files asked for, and a line for each; ``results`` is made where it is missing."""
    paths = [] if json_path is None else [json_path]
    written = []
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        paths.append(results / f"{measured.name}_train.json")
    for path in paths:
        with replaced_file(path) as handle:
            json.dump(record(measured), handle, indent=1)
        written.append(f"wrote {path}")
    if results is not None:
        path = results / f"{measured.name}_steps.csv"
        with replaced_file(path) as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(STEP_COLUMNS)
            rows = zip(measured.steps_s, measured.losses, strict=True)
            writer.writerows(
                [place, f"{seconds:.6f}", f"{loss:.6f}"] for place, (seconds, loss) in enumerate(rows, 1)
            )
        written.append(f"wrote {path}")
    return written
