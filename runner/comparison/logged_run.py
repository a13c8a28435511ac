"""The steps of a framework's log, recognised by its form."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from runner.comparison.log_forms import (
    COLOUR,
    FORMS,
    LONGEST_LINE,
    MEGATRON_DEGREES,
    MEGATRON_MEMORY,
    LogForm,
)
from runner.comparison.measured_run import MeasuredRun
from solver.plans.plan_table import Plan
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.units import GIB, MIB, MS

Found = Mapping[str, str | None]
WARMUP = 3
"""Steps of a log that are left out unless said: the first compile, connect and fill the allocator."""


def logged_run(path: Path, text: str, job: JobSpec, plan: Plan, warmup: int = WARMUP) -> MeasuredRun:
    """The run that a log tells of, for the job and the plan that it is said to be of.

    A line counts if all steps that it may cover come after ``warmup`` steps. Of a log in which a run began again the
    last run counts; a step that several ranks log counts once. Raises ConfigError for a log of no known form, one of
    another batch, world or degrees, and one without a step after the warm-up.
    """
    lines = [COLOUR.sub("", line) for line in text.splitlines() if len(line) <= LONGEST_LINE]
    form, found = _steps(path, lines)
    _check_degrees(path, lines, plan)
    counted = [one for before, one in pairwise(found) if _after(found, before, warmup)] if warmup else found
    if not counted:
        raise ConfigError(
            where=str(path),
            key="steps",
            value=len(found),
            allowed=f"one after {warmup} of warm-up (--warmup)",
        )
    _check_batch(path, counted, job)
    memory = _memory(lines, found)
    return MeasuredRun(
        source=str(path),
        form=form.name,
        steps_s=tuple(_seconds(path, one, job) for one in counted),
        warmup=len(found) - len(counted),
        allocated_bytes=memory.get("allocated"),
        reserved_bytes=memory.get("reserved"),
    )


def _steps(path: Path, lines: Sequence[str]) -> tuple[LogForm, list[Found]]:
    """The form of the log and its lines of steps, by rising number."""
    for form in FORMS:
        found: list[Found] = []
        for line in lines:
            match = form.step.search(line) if form.mark in line else None
            if match is None:
                continue
            number, last = int(match["step"]), _number(found[-1]) if found else -1
            if number < last:
                found.clear()
            if number != last:
                found.append(match.groupdict())
        if found:
            return form, found
    names = ", ".join(form.name for form in FORMS)
    raise ConfigError(
        where=str(path),
        key="result",
        value=path.name,
        allowed=f"the JSON of train, or lines of steps of a {names}",
    )


def _number(one: Found) -> int:
    return int(one["step"] or 0)


def _after(found: Sequence[Found], before: Found, warmup: int) -> bool:
    """Whether what follows the line ``before`` comes after the warm-up: counted from 0 or 1, or from an interval
    before the first line of a run that went on from a checkpoint."""
    first = _number(found[0])
    interval = 1 if first <= 1 else _number(found[1]) - first
    return _number(before) >= first - interval + warmup


def _check_degrees(path: Path, lines: Sequence[str], plan: Plan) -> None:
    """What Megatron-LM says of its degrees is what the plan says."""
    said = next((match for line in lines if (match := MEGATRON_DEGREES.search(line))), None)
    if said is None:
        return
    for key, value in said.groupdict().items():
        asked = getattr(plan, key)
        if int(value) != asked:
            raise ConfigError(where=str(path), key=key, value=int(value), allowed=f"{asked}, as was asked")


def _check_batch(path: Path, counted: Sequence[Found], job: JobSpec) -> None:
    """The batch that lines say, or that the tokens of two that follow each other say, is the job's."""
    for one in counted:
        if (batch := one.get("batch")) and int(batch) != job.global_batch_sequences:
            raise ConfigError(
                where=f"{path}, step {_number(one)}",
                key="global batch size",
                value=int(batch),
                allowed=f"{job.global_batch_sequences} sequences, as was asked (--global_batch_size)",
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
                allowed=f"{job.global_batch_tokens}, as was asked (--global_batch_size)",
            )


def _seconds(path: Path, one: Found, job: JobSpec) -> float:
    """Of a step, from what its line says; ConfigError where that is nothing."""
    kind = next(kind for kind in ("ms", "seconds", "tgs", "samples_per_s") if one.get(kind))
    value = float((one[kind] or "").replace(",", ""))
    if not 0.0 < value < float("inf"):
        raise ConfigError(
            where=f"{path}, step {_number(one)}", key=kind, value=one[kind], allowed="more than 0"
        )
    if kind == "ms":
        return value * MS
    if kind == "seconds":
        return value
    if kind == "tgs":
        return job.global_batch_tokens / (job.world_size * value)
    return job.global_batch_sequences / value


def _memory(lines: Sequence[str], found: Sequence[Found]) -> dict[str, float]:
    """Most bytes allocated and reserved that any line says."""
    most: dict[str, float] = {}
    reports = [match.groupdict() for line in lines if (match := MEGATRON_MEMORY.search(line))]
    for one in (*reports, *found):
        for key, value in one.items():
            held = re.fullmatch(r"(allocated|reserved)_(gib|mib)", key)
            if held is not None and value is not None:
                size_bytes = float(value) * (GIB if held[2] == "gib" else MIB)
                most[held[1]] = max(most.get(held[1], 0.0), size_bytes)
    return most
