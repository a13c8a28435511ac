"""The measurements of a run, and the steps of a framework's log."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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


# The steps of a framework's log, whose form is recognised (log_forms.toml).

NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's colour codes; torchtitan's lines have them."""
LONGEST_LINE = 20_000
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9}
"""nanotron src/nanotron/logging/base.py, human_format: three digits and a power of 1000."""
UNITS = {"gib": GIB, "mib": MIB, "gb": 1e9}

StepLine = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """How a framework logs a step; the table says what its keys mean."""

    name: str
    mark: str
    step: re.Pattern[str]
    indented: bool = False
    whole_run: bool = False


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("<number>", NUMBER))


TABLE = tomllib.loads(Path(__file__).with_name("log_forms.toml").read_text(encoding="utf-8"))
FORMS = tuple(LogForm(**row | {"step": _pattern(row["step"])}) for row in TABLE["form"])
MEMORY = tuple(_pattern(row["line"]) for row in TABLE["memory"])
MEGATRON_DEGREES = re.compile(TABLE["degrees"])

WARMUP = 3
"""Default number of steps of a log to leave out: the first ones compile, connect and fill the allocator."""


def logged_run(path: Path, text: str, job: JobSpec, plan: Plan, warmup: int = WARMUP) -> MeasuredRun:
    """The run of a log, which should be of this job and plan.

    A line counts if all steps that it may cover come after ``warmup`` steps. If the run was restarted, the last one
    counts; a step that several ranks log counts once; lines without a number are counted, as if each were a step. Raises ConfigError for a log of an unknown form, of another batch,
    world or degrees, or without a step after the warm-up.
    """
    lines = [COLOUR.sub("", line) for line in text.splitlines() if len(line) <= LONGEST_LINE]
    form, step_lines = _steps(path, lines)
    _check_degrees(path, lines, plan)
    steps = (
        [one for before, one in pairwise(step_lines) if _after_warmup(step_lines, before, warmup)]
        if warmup and not form.whole_run
        else step_lines
    )
    if not steps:
        raise ConfigError(
            where=str(path), key="steps", value=len(step_lines), allowed=f"one after {warmup} of warm-up (--warmup)"
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


MOST_OF_A_STEP = 6000
"""Characters that a framework writes of a step; patterns with gaps take minutes on lines that are longer."""


def _steps(path: Path, lines: Sequence[str]) -> tuple[LogForm, list[StepLine]]:
    """Returns the form of the log and its lines of steps, by increasing number."""
    for form in FORMS:
        step_lines: list[StepLine] = []
        for line in _entries(lines) if form.indented else lines:
            match = form.step.search(line) if form.mark in line and len(line) <= MOST_OF_A_STEP else None
            if match is None:
                continue
            found = match.groupdict()
            found["step"] = found.get("step") or str(len(step_lines) + 1)
            number, last = int(found["step"]), _number(step_lines[-1]) if step_lines else -1
            if number < last:  # the run was restarted
                step_lines.clear()
            if number != last:
                step_lines.append(found)
        if step_lines:
            return form, _of_intervals(step_lines)
    names = ", ".join(form.name for form in FORMS)
    raise ConfigError(
        where=str(path), key="result", value=path.name, allowed=f"the JSON of train, or lines of steps of a {names}"
    )


def _entries(lines: Sequence[str]) -> Iterator[str]:
    """Yields each line together with the indented ones below it."""
    entry = ""
    for line in lines:
        if line[:1].isspace():
            entry += line
        else:
            yield entry
            entry = line
    yield entry


def _of_intervals(step_lines: list[StepLine]) -> list[StepLine]:
    """Returns the lines with the seconds of a step since the line before, where they have means since the start."""
    if not {"mean_s", "mean_per_s"} & set(step_lines[0]):
        return step_lines
    start = _start(step_lines)
    elapsed_s, number = 0.0, start
    result: list[StepLine] = []
    for one in step_lines:
        steps = _number(one)
        # a rate counts the steps of earlier runs too, seconds of a step those of this one
        rate, mean_s = one.get("mean_per_s"), one.get("mean_s")
        until_s = (steps - start) * _value(mean_s) if mean_s else steps / _value(rate) if rate else 0.0
        result.append({"step": one["step"], "seconds": str((until_s - elapsed_s) / (steps - number or 1))})
        elapsed_s, number = until_s, steps
    return result


def _number(one: StepLine) -> int:
    return int(one["step"] or 0)


def _value(text: str | None) -> float:
    """Returns a number that may have commas, or a suffix such as K."""
    plain = (text or "0").replace(",", "")
    return float(plain.rstrip("".join(SUFFIXES))) * SUFFIXES.get(plain[-1], 1.0)


def _start(step_lines: Sequence[StepLine]) -> int:
    """Returns the step before the run: 0, or one interval before the first line of one that resumed from a checkpoint."""
    first = _number(step_lines[0])
    return 0 if first <= 1 or len(step_lines) == 1 else first - (_number(step_lines[1]) - first)


def _after_warmup(step_lines: Sequence[StepLine], before: StepLine, warmup: int) -> bool:
    """True if the line after ``before`` covers steps after the warm-up alone. Steps count from 0 or 1, or from one
    interval before the first line of a run that resumed from a checkpoint."""
    first = _number(step_lines[0])
    start = first - 1 if first <= 1 else _start(step_lines)
    return _number(before) >= start + warmup


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
    """Returns the seconds of a step from its line; ConfigError where the line gives none."""
    work = {
        "tgs": job.global_batch_tokens / job.world_size,
        "tokens_per_s": job.global_batch_tokens,
        "samples_per_s": job.global_batch_sequences,
        "steps_per_s": 1.0,
    }
    kind = next(kind for kind in ("ms", "seconds", *work) if one.get(kind))
    value = _value(one[kind])
    if not 0.0 < value < float("inf"):
        raise ConfigError(where=f"{path}, step {_number(one)}", key=kind, value=one[kind], allowed="more than 0")
    return work[kind] / value if kind in work else value * (MS if kind == "ms" else 1.0)


def _memory(lines: Sequence[str], step_lines: Sequence[StepLine]) -> dict[str, float]:
    """Returns the largest allocated and reserved bytes of any line, whichever framework wrote it."""
    most: dict[str, float] = {}
    reports = [match.groupdict() for line in lines for form in MEMORY if (match := form.search(line))]
    for one in (*reports, *step_lines):
        for key, value in one.items():
            kind, _, unit = key.partition("_")
            if kind in ("allocated", "reserved") and value is not None:
                most[kind] = max(most.get(kind, 0.0), float(value) * UNITS[unit])
    return most
