"""Reads the JSON that ``run_workload.py train`` writes, and appends measured steps to the CSV of the calibration."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.comparison.logged_run import TRAIN, MeasuredRun
from solver.calibrate.measured_steps import check_header
from solver.problem.problem import Problem
from solver.problem.request import Request, read_request
from solver.problem.requested_plan import parse_plan
from solver.problem.result import Answer
from spec.errors import ConfigError
from spec.files import MAX_FILE_BYTES, UnreadableFileError, atomic_file, read_file_text
from spec.job import HighPrecision, JobSpec
from spec.settings.job import differing_settings, job_settings
from spec.settings.plan import PlanSettings, plan_option_settings
from spec.settings.setting import parse_settings, setting_text

WHOLE = ("world_size", "seq_len", "global_batch_tokens")
WORDS = ("model", "cluster", "preset")
FORMATS: tuple[HighPrecision, ...] = ("bf16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecord:
    """A training run and its measurements, under the names of the file. ``job`` are its requested settings by key, None
    if the file does not have them."""

    run: MeasuredRun
    plan: PlanSettings
    world_size: int
    seq_len: int
    global_batch_tokens: int
    model: str
    cluster: str
    preset: str
    dtype: HighPrecision
    job: Mapping[str, object] | None = None


def plan_words(plan: PlanSettings) -> str:
    """The plan as after --plan, without defaults."""
    return _words({key: getattr(plan, key) for key in plan_option_settings()})


def _words(values: Mapping[str, object]) -> str:
    default = PlanSettings()
    return ",".join(f"{key}={setting_text(value)}" for key, value in values.items() if value != getattr(default, key))


def train_record(path: Path, text: str, warmup: int = 0) -> TrainRecord | None:
    """The record of a text, with ``warmup`` further steps left out; None for text that is not a JSON object.

    Raises ConfigError for an object that lacks what ``train`` writes.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    where = str(path)
    for key in (*WHOLE, *WORDS):
        value = document.get(key)
        kind: type = int if key in WHOLE else str
        if not isinstance(value, kind) or isinstance(value, bool) or (key in WHOLE and document[key] < 1):
            raise _invalid(where, key, value)
    plan = document.get("plan")
    if not isinstance(plan, dict):
        raise _invalid(where, "plan", plan)
    dtype = next((name for name in FORMATS if name == document.get("dtype")), None)
    if dtype is None:
        raise _invalid(where, "dtype", document.get("dtype"))
    return TrainRecord(
        run=_run(where, document, warmup),
        plan=recorded_plan(where, plan),
        dtype=dtype,
        job=_job(where, document.get("job")),
        **{name: document[name] for name in (*WHOLE, *WORDS)},
    )


def _invalid(where: str, key: str, value: object) -> ConfigError:
    return ConfigError(where=where, key=key, value=value, allowed="what run_workload.py train --json writes")


def _run(where: str, plain: Mapping[str, Any], warmup: int) -> MeasuredRun:
    steps = _record_seconds(where, plain, "steps_s")
    if len(steps) <= warmup:
        raise ConfigError(
            where=where, key="steps_s", value=len(steps), allowed=f"one after {warmup} of warm-up (--warmup)"
        )
    before = plain.get("warmup_steps")
    if not isinstance(before, int):
        raise _invalid(where, "warmup_steps", before)
    memory = {name: plain.get(name) for name in ("allocated_bytes", "reserved_bytes")}
    for name, value in memory.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise _invalid(where, name, value)
    on_processor = memory["allocated_bytes"] is None and "steps_cpu_s" in plain
    cpu = _record_seconds(where, plain, "steps_cpu_s") if on_processor else []
    return MeasuredRun(
        source=where,
        form=TRAIN,
        steps_s=tuple(steps[warmup:]),
        steps_cpu_s=tuple(cpu[warmup:]),
        warmup=before + warmup,
        **memory,
    )


def _record_seconds(where: str, plain: Mapping[str, Any], key: str) -> list[float]:
    steps = plain.get(key)
    if not isinstance(steps, list) or not all(isinstance(one, float) and 0 < one < math.inf for one in steps):
        raise _invalid(where, key, steps)
    return steps


def _job(where: str, values: object) -> dict[str, object] | None:
    """The job settings of the file."""
    if values is None:
        return None
    settings = job_settings()
    if not isinstance(values, dict) or not all(key in settings and isinstance(values[key], str) for key in values):
        raise _invalid(where, "job", values)
    return {key: settings[key].read(value, where) for key, value in values.items()}


def recorded_plan(where: str, plan: Mapping[str, Any]) -> PlanSettings:
    """The plan of a file that ``train`` or a search wrote, read as --plan is."""
    given = {key: plan[key] for key in plan_option_settings() if key in plan}
    words = _words({key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    return parse_plan(words, where) if words else PlanSettings()


# A measured step as a row of the CSV that ``python -m solver.calibrate`` reads.

COLUMNS = ("config", "world_size", "global_batch", "measured_step_s", "plan", "seq_len", "framework", "job", "cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """What a row holds beside its time; ``cluster`` is the one that ran it."""

    config: Path
    cluster: str
    request: Request
    problem: Problem
    answer: Answer


def append_row(path: Path, source: RowSource, step_s: float) -> None:
    """Append a row to the file, which is created if missing; missing columns are added.

    The file is replaced as a whole. Raises ConfigError for a file of other columns, and for a job that a row cannot
    express.
    """
    request, problem, answer = source.request, source.problem, source.answer
    columns, rows = _rows(path) if path.exists() else (COLUMNS, [])
    row = {
        "config": os.path.relpath(source.config.resolve(), path.parent.resolve()),
        "world_size": str(problem.job.world_size),
        "global_batch": str(problem.job.global_batch_tokens),
        "measured_step_s": f"{step_s:.9g}",
        "plan": plan_words(answer.plan.settings),
        "seq_len": str(problem.job.seq_len),
        "framework": problem.job.preset.name,
        "job": job_words(request, problem.job),
        "cluster": source.cluster,
    }
    names = (*columns, *(name for name in COLUMNS if name not in columns))
    with atomic_file(path) as handle:
        writer = csv.DictWriter(handle, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])


def job_words(request: Request, job: JobSpec) -> str:
    """The settings, as after --job, by which a job differs from the config's under its framework.

    Raises ConfigError if these settings do not lead back to the job, which may undo a setting of the config.
    """
    plain = replace(request, framework=job.preset.name, job={})
    settings = differing_settings(job, read_request(plain).job)
    words = ",".join(f"{key}={setting_text(value)}" for key, value in settings.items())
    parsed = parse_settings(words, job_settings(), "--append") if words else {}
    if read_request(replace(plain, job=parsed)).job != job:
        raise ConfigError(where="--append", key="job", value=words, allowed="settings that --job can give")
    return words


def _rows(path: Path) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Columns and rows of an existing file."""
    try:
        reader = csv.DictReader(io.StringIO(read_file_text(path, MAX_FILE_BYTES), newline=""))
        rows = list(reader)
        columns = tuple(reader.fieldnames or ())
    except (UnreadableFileError, csv.Error) as error:
        raise ConfigError(
            where="--append", key="append", value=str(path), allowed=f"a CSV file that can be read: {error}"
        ) from error
    if not columns:
        return COLUMNS, []
    check_header(path, columns)
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ConfigError(where=f"{path}:{number}", key="cells", value=None, allowed=f"{len(columns)} cells a line")
    return columns, rows
