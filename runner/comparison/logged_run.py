"""The measurements of a run, and the readers of frameworks' logs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from solver.plans.plan_table import Plan
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.units import GIB, MIB, MS

TRAIN = "train"
"""The form of a result of run_workload.py train."""
TRACE = "torch.profiler"
REPLAY = "run"
"""The form of a log of run_workload.py run: operations one after another, without overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Seconds of each step (of each line of a log: the mean of the steps that it covers) after ``warmup`` steps or lines
    that are left out, and the largest allocated and reserved bytes of a rank, if reported. ``source`` is the file,
    ``form`` says what wrote it. ``steps_cpu_s``, on a CPU, are CPU seconds of the busiest rank."""

    source: str
    form: str
    steps_s: tuple[float, ...]
    warmup: int
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    steps_cpu_s: tuple[float, ...] = ()

    @property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.steps_s))

    @property
    def step_cpu_s(self) -> float | None:
        """Median CPU seconds of a step; None if not measured."""
        return float(np.median(self.steps_cpu_s)) if self.steps_cpu_s else None

    @property
    def spread_s(self) -> tuple[float, float]:
        """The 10th and 90th percentile of the steps."""
        low_s, high_s = np.quantile(self.steps_s, (0.1, 0.9))
        return float(low_s), float(high_s)


# What frameworks log of a step: one pattern per form, with groups named by quantity and unit.
#
# Groups: ``step`` (number), and one of ``ms``, ``seconds``, ``tgs`` (tokens per second and GPU), ``samples_per_s``;
# ``batch`` (sequences of a step), ``consumed`` (tokens since the start), ``allocated_gib``, ``reserved_gib``.

NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's colour codes; torchtitan's lines have them."""
LONGEST_LINE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """How a framework logs a step; every such line contains ``mark``."""

    name: str
    mark: str
    step: re.Pattern[str]


FORMS: tuple[LogForm, ...] = (
    # Megatron-LM, megatron/training/training.py, training_log; Megatron-DeepSpeed's is the same up to what is read.
    LogForm(
        name="Megatron-LM log",
        mark="elapsed time per iteration (ms):",
        step=re.compile(
            rf"iteration +(?P<step>[0-9]+)/ *[0-9]+ \|.*? elapsed time per iteration \(ms\): (?P<ms>{NUMBER}) \|"
            r"(?:.*? global batch size: +(?P<batch>[0-9]+) \|)?"
        ),
    ),
    # InternEvo, internlm/train/pipeline.py, record_current_batch_training_metrics; commas in earlier ones.
    LogForm(
        name="InternEvo log",
        mark="tgs (tokens/gpu/second)=",
        step=re.compile(
            rf"\bstep=(?P<step>[0-9]+)[ ,].*?tgs \(tokens/gpu/second\)=(?P<tgs>{NUMBER})"
            r"(?:.*?num_consumed_tokens=(?P<consumed>[0-9]+))?"
        ),
    ),
    # torchtitan, torchtitan/components/metrics.py, MetricsProcessor.log; its memory is max_reserved.
    LogForm(
        name="torchtitan log",
        mark="tps:",
        step=re.compile(
            rf"(?<!validate )step: *(?P<step>[0-9]+) .*?memory: *(?P<reserved_gib>{NUMBER})GiB\(.*?"
            r"tps: (?P<tgs>[0-9,]+)"
        ),
    ),
    # DeepSpeed, deepspeed/runtime/pipe/engine.py, train_batch.
    LogForm(
        name="DeepSpeed pipeline log",
        mark="iter time (s):",
        step=re.compile(rf"\bsteps: (?P<step>[0-9]+) loss: .*?iter time \(s\): (?P<seconds>{NUMBER}) "),
    ),
    # DeepSpeed, deepspeed/utils/timer.py, ThroughputTimer.stop; a GB of it is 1024**3 bytes, a sample a sequence.
    LogForm(
        name="DeepSpeed log",
        mark="CurrSamplesPerSec=",
        step=re.compile(
            rf"global_step=(?P<step>[0-9]+), RunningAvgSamplesPerSec=\S+ CurrSamplesPerSec=(?P<samples_per_s>{NUMBER})"
            rf"(?:.*?MaxMemAllocated=(?P<allocated_gib>{NUMBER})GB)?"
        ),
    ),
)

MEGATRON_MEMORY = re.compile(
    rf"memory \(MB\) \| allocated: {NUMBER} \| max allocated: (?P<allocated_mib>{NUMBER})"
    rf" \| reserved: {NUMBER} \| max reserved: (?P<reserved_mib>{NUMBER})"
)
"""megatron/training/utils/common_utils.py, report_memory; an MB of it is 1024**2 bytes."""
MEGATRON_DEGREES = re.compile(
    r"using world size: (?P<world_size>[0-9]+), .*?context-parallel size: (?P<cp>[0-9]+),? "
    r".*?tensor-model-parallel size: (?P<tp>[0-9]+), pipeline-model-parallel size: (?P<pp>[0-9]+)"
)
"""megatron/training/arguments.py, validate_args."""


# The steps of a framework's log, whose form is recognised.

StepLine = Mapping[str, str | None]
WARMUP = 3
"""Default number of steps of a log to leave out: the first ones compile, connect and fill the allocator."""


def logged_run(path: Path, text: str, job: JobSpec, plan: Plan, warmup: int = WARMUP) -> MeasuredRun:
    """The run of a log, which should be of this job and plan.

    A line counts if all steps that it may cover come after ``warmup`` steps. If the run was restarted, the last one
    counts; a step that several ranks log counts once. Raises ConfigError for a log of an unknown form, of another batch,
    world or degrees, or without a step after the warm-up.
    """
    lines = [COLOUR.sub("", line) for line in text.splitlines() if len(line) <= LONGEST_LINE]
    form, step_lines = _steps(path, lines)
    _check_degrees(path, lines, plan)
    steps = (
        [one for before, one in pairwise(step_lines) if _after_warmup(step_lines, before, warmup)]
        if warmup
        else step_lines
    )
    if not steps:
        raise ConfigError(
            where=str(path),
            key="steps",
            value=len(step_lines),
            allowed=f"one after {warmup} of warm-up (--warmup)",
        )
    _check_batch(path, steps, job)
    memory = _memory(lines, step_lines)
    return MeasuredRun(
        source=str(path),
        form=form.name,
        steps_s=tuple(_seconds(path, one, job) for one in steps),
        warmup=len(step_lines) - len(steps),
        allocated_bytes=memory.get("allocated"),
        reserved_bytes=memory.get("reserved"),
    )


def _steps(path: Path, lines: Sequence[str]) -> tuple[LogForm, list[StepLine]]:
    """The form of the log and its lines of steps, by increasing number."""
    for form in FORMS:
        step_lines: list[StepLine] = []
        for line in lines:
            match = form.step.search(line) if form.mark in line else None
            if match is None:
                continue
            number, last = int(match["step"]), _number(step_lines[-1]) if step_lines else -1
            if number < last:  # the run was restarted
                step_lines.clear()
            if number != last:
                step_lines.append(match.groupdict())
        if step_lines:
            return form, step_lines
    names = ", ".join(form.name for form in FORMS)
    raise ConfigError(
        where=str(path),
        key="result",
        value=path.name,
        allowed=f"the JSON of train, or lines of steps of a {names}",
    )


def _number(one: StepLine) -> int:
    return int(one["step"] or 0)


def _after_warmup(step_lines: Sequence[StepLine], before: StepLine, warmup: int) -> bool:
    """True if the line after ``before`` covers steps after the warm-up alone. Steps count from 0 or 1, or from one
    interval before the first line of a run that resumed from a checkpoint."""
    first = _number(step_lines[0])
    interval = 1 if first <= 1 else _number(step_lines[1]) - first
    return _number(before) >= first - interval + warmup


def _check_degrees(path: Path, lines: Sequence[str], plan: Plan) -> None:
    """Raise ConfigError if Megatron-LM logs other degrees than the plan's."""
    logged = next((match for line in lines if (match := MEGATRON_DEGREES.search(line))), None)
    if logged is None:
        return
    for key, value in logged.groupdict().items():
        planned = getattr(plan, key)
        if int(value) != planned:
            raise ConfigError(where=str(path), key=key, value=int(value), allowed=f"{planned}, as requested")


def _check_batch(path: Path, counted: Sequence[StepLine], job: JobSpec) -> None:
    """Raise ConfigError if a line's batch, or the tokens between two lines in a row, are not the job's."""
    for one in counted:
        if (batch := one.get("batch")) and int(batch) != job.global_batch_sequences:
            raise ConfigError(
                where=f"{path}, step {_number(one)}",
                key="global batch size",
                value=int(batch),
                allowed=f"{job.global_batch_sequences} sequences, as requested (--global_batch_size)",
            )
    for before, one in pairwise(counted):
        start, end = before.get("consumed"), one.get("consumed")
        if start is None or end is None or _number(one) != _number(before) + 1:
            continue
        if int(end) - int(start) != job.global_batch_tokens:
            raise ConfigError(
                where=f"{path}, step {_number(one)}",
                key="tokens of the step",
                value=int(end) - int(start),
                allowed=f"{job.global_batch_tokens}, as requested (--global_batch_size)",
            )


def _seconds(path: Path, one: StepLine, job: JobSpec) -> float:
    """Seconds of a step from its line; ConfigError where the line gives none."""
    kind = next(kind for kind in ("ms", "seconds", "tgs", "samples_per_s") if one.get(kind))
    value = float((one[kind] or "").replace(",", ""))
    if not 0.0 < value < float("inf"):
        raise ConfigError(where=f"{path}, step {_number(one)}", key=kind, value=one[kind], allowed="more than 0")
    if kind == "ms":
        return value * MS
    if kind == "seconds":
        return value
    if kind == "tgs":
        return job.global_batch_tokens / (job.world_size * value)
    return job.global_batch_sequences / value


def _memory(lines: Sequence[str], step_lines: Sequence[StepLine]) -> dict[str, float]:
    """The largest allocated and reserved bytes of any line."""
    most: dict[str, float] = {}
    reports = [match.groupdict() for line in lines if (match := MEGATRON_MEMORY.search(line))]
    for one in (*reports, *step_lines):
        for key, value in one.items():
            unit = re.fullmatch(r"(allocated|reserved)_(gib|mib)", key)
            if unit is not None and value is not None:
                size_bytes = float(value) * (GIB if unit[2] == "gib" else MIB)
                most[unit[1]] = max(most.get(unit[1], 0.0), size_bytes)
    return most
