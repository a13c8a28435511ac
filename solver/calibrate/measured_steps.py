"""Steps a user measured, read from a CSV and priced.

Columns: ``world_size`` (GPUs), ``global_batch`` (tokens a step), ``measured_step_s`` (seconds), ``config``
(a model config, relative to the file); a plan, either whole in ``plan`` as after --plan or in columns of
its keys (tp, pp, ...); and, where the config does not say them, ``seq_len``, ``framework`` and, as after --job,
settings of the ``job``.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from solver.calibrate.fit import PricedStep, Steps, joined
from solver.estimate import estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.calibration import terms_of
from solver.problem.interval import causes, relative_std
from solver.problem.loading import load_problem
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
ALLOWED = (*REQUIRED, "plan", *PLAN_KEYS, "seq_len", "framework", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One line: what ran, and how long a step took in seconds; ``where`` names the line."""

    where: str
    problem: Problem
    plan: Plan
    measured_s: float


def priced_step(problem: Problem, plan: Plan) -> PricedStep:
    """Returns what the factors act on in one plan's step, and how far the step is trusted."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan))
    cost = step_time(problem.model, problem.job, table, problem.op_timer)
    shares = causes(problem.job, cost.parts, cost.std_s)
    return PricedStep(
        terms=terms_of(problem.model, problem.job, table, problem.op_timer, cost, with_hidden=True),
        std=relative_std(shares),
        curves=shares["curves"],
    )


def steps_of(measured: list[MeasuredStep]) -> Steps:
    """The steps priced, ready to be fitted."""
    priced = [priced_step(one.problem, one.plan) for one in measured]
    return joined(priced, [one.measured_s for one in measured])


def read_steps(path: Path, request: Request) -> list[MeasuredStep]:
    """Every line of the file, priced by the profile of ``request``.

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
    """Raise ConfigError unless the columns are those of measured steps."""
    lacking = [name for name in REQUIRED if name not in names]
    unknown = [name for name in names if name not in ALLOWED]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if lacking or unknown or twice:
        raise ConfigError(
            where=str(path),
            key="columns",
            value=", ".join(lacking or unknown or twice),
            allowed=f"{'missing' if lacking else 'unknown' if unknown else 'given twice'}; needed are "
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
    written = _written(where, line) or inputs.config.plan
    if written is None or written == PlanSettings():
        raise ConfigError(
            where=where,
            key="plan",
            value=None,
            allowed="a plan in column plan, in tp, pp, ..., or in the config",
        )
    plan = plan_of(written, inputs.problem, where)
    check_order(plan, inputs.problem, where)
    return MeasuredStep(
        where=where,
        problem=inputs.problem,
        plan=plan,
        measured_s=_seconds(where, line["measured_step_s"]),
    )


def _written(where: str, line: Mapping[str, str]) -> PlanSettings | None:
    """The plan of a line; columns and ``plan`` may not both be filled."""
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
