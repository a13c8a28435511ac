"""Measured steps of a user, read from a CSV file and predicted.

Columns: ``world_size`` (GPUs), ``global_batch`` (tokens a step), ``measured_step_s`` (seconds), ``config`` (a model
config, relative to the file); a plan, either in ``plan`` in the form of --plan or in columns of its keys (tp, pp, ...);
and, if the config does not have them, ``seq_len``, ``framework`` and settings of the ``job`` in the form of --job. ``cluster``
names the cluster that ran it, which must be that of the calibration."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from solver.calibrate.fit import PricedStep, Steps, concatenate_steps
from solver.estimate import estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.calibration import terms_of
from solver.problem.interval import causes, relative_std
from solver.problem.loading import load_problem
from solver.problem.model_flops import mfu
from solver.problem.problem import Problem
from solver.problem.request import Request
from solver.problem.requested_plan import check_order, parse_plan, plan_of
from spec.errors import ConfigError
from spec.files import MAX_FILE_BYTES, UnreadableFileError, read_file_text
from spec.program.kinds import MOST_GPUS, MOST_STEP_TOKENS, decimal_number, whole_number
from spec.settings.job import job_settings
from spec.settings.plan import PlanSettings, plan_option_settings
from spec.settings.setting import parse_settings

REQUIRED = ("config", "world_size", "global_batch", "measured_step_s")
PLAN_KEYS = tuple(plan_option_settings())
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-6, 1e6
ALLOWED = (*REQUIRED, "plan", *PLAN_KEYS, "seq_len", "framework", "job", "cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One line of the file: a plan of a problem, and the seconds of its step; ``where`` names the line."""

    where: str
    problem: Problem
    plan: Plan
    measured_s: float


def priced_step(problem: Problem, plan: Plan) -> PricedStep:
    """Returns the prediction of one plan's step: the terms that factors act on, and its standard error."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan))
    cost = step_time(problem.model, problem.job, table, problem.op_timer)
    shares = causes(problem.job, cost.parts, cost.std_s)
    return PricedStep(
        terms=terms_of(problem.model, problem.job, table, problem.op_timer, cost, with_hidden=True),
        std=relative_std(shares),
        curves=shares["curves"],
    )


def steps_of(measured: list[MeasuredStep]) -> Steps:
    """Returns measured steps with their predictions."""
    priced = [priced_step(one.problem, one.plan) for one in measured]
    return concatenate_steps(priced, [one.measured_s for one in measured])


def read_steps(path: Path, request: Request) -> list[MeasuredStep]:
    """Returns every line of the file as a problem under the profile of ``request``.

    Raises ConfigError that names the line and the column.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_file_text(path, MAX_FILE_BYTES), newline=""))
        lines = [(reader.line_num, line) for line in reader]
        names = tuple(reader.fieldnames or ())
    except (UnreadableFileError, csv.Error) as error:
        raise ConfigError(
            where="--steps", key="steps", value=str(path), allowed=f"a CSV file that can be read: {error}"
        ) from error
    check_header(path, names)
    measured: list[MeasuredStep] = []
    for number, line in lines:
        if None in line or None in line.values():
            raise ConfigError(where=f"{path}:{number}", key="cells", value=None, allowed=f"{len(names)} cells a line")
        measured.append(_step(f"{path}:{number}", path.parent, line, request))
    return measured


def check_header(path: Path, names: tuple[str, ...]) -> None:
    """Raises ConfigError unless the columns are those of measured steps."""
    missing = [name for name in REQUIRED if name not in names]
    unknown = [name for name in names if name not in ALLOWED]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if missing or unknown or twice:
        raise ConfigError(
            where=str(path),
            key="columns",
            value=", ".join(missing or unknown or twice),
            allowed=f"{'missing' if missing else 'unknown' if unknown else 'given twice'}; needed are "
            f"{', '.join(REQUIRED)}, allowed are {', '.join(ALLOWED)}",
        )


def _step(where: str, folder: Path, line: Mapping[str, str], request: Request) -> MeasuredStep:
    config = line["config"].strip()
    if not config:
        raise ConfigError(where=where, key="config", value=config, allowed="a model config")
    job = line.get("job", "").strip()
    inputs = load_problem(
        replace(
            request,
            config=folder / config,
            world_size=_whole(where, line, "world_size"),
            global_batch_tokens=_whole(where, line, "global_batch"),
            seq_len=_whole(where, line, "seq_len") if line.get("seq_len", "").strip() else None,
            framework=line.get("framework", "").strip() or None,
            job={**request.job, **(parse_settings(job, job_settings(), where) if job else {})},
        )
    )
    settings = _plan_settings(where, line) or inputs.config.plan
    if settings is None or settings == PlanSettings():
        raise ConfigError(
            where=where, key="plan", value=None, allowed="a plan in column plan, in tp, pp, ..., or in the config"
        )
    plan = plan_of(settings, inputs.problem, where)
    check_order(plan, inputs.problem, where)
    measured_s = _seconds(where, line["measured_step_s"])
    _check_machine(where, line, inputs.problem, measured_s)
    return MeasuredStep(where=where, problem=inputs.problem, plan=plan, measured_s=measured_s)


def _check_machine(where: str, line: Mapping[str, str], problem: Problem, measured_s: float) -> None:
    """Raises ConfigError for a step of another cluster, and for one that is shorter than its FLOPs take at the peak."""
    cluster = line.get("cluster", "").strip()
    if cluster not in ("", problem.cluster.name):
        allowed = f"a step of {problem.cluster.name}, which these factors are of (--cluster)"
        raise ConfigError(where=where, key="cluster", value=cluster, allowed=allowed)
    used = float(mfu(problem.model, problem.job, problem.cluster, np.array([measured_s]))[0])
    if used > 1.0:
        allowed = f"seconds: this is {100 * used:.0f} % of the peak FLOP/s of {problem.job.world_size} {problem.cluster.gpu.name}"
        raise ConfigError(where=where, key="measured_step_s", value=line["measured_step_s"], allowed=allowed)


def _plan_settings(where: str, line: Mapping[str, str]) -> PlanSettings | None:
    """Returns the plan of a line, None without one; ConfigError where column ``plan`` and others are both filled."""
    whole = line.get("plan", "").strip()
    columns = ",".join(f"{key}={line[key].strip()}" for key in PLAN_KEYS if line.get(key, "").strip())
    if whole and columns:
        raise ConfigError(where=where, key="plan", value=whole, allowed=f"nothing beside the columns {columns}")
    try:
        return parse_plan(whole or columns) if whole or columns else None
    except ConfigError as error:
        raise ConfigError(where=where, key=error.key, value=error.value, allowed=error.allowed) from error


def _whole(where: str, line: Mapping[str, str], key: str) -> int:
    most = MOST_GPUS if key == "world_size" else MOST_STEP_TOKENS
    try:
        return whole_number(line[key].strip(), minimum=1, maximum=most)
    except ValueError as error:
        raise ConfigError(where=where, key=key, value=line[key], allowed=str(error)) from error


def _seconds(where: str, text: str) -> float:
    try:
        return decimal_number(text.strip(), minimum=SHORTEST_STEP_S, maximum=LONGEST_STEP_S)
    except ValueError as error:
        raise ConfigError(where=where, key="measured_step_s", value=text, allowed=f"seconds: {error}") from error
