"""Answers as pandas DataFrames, and tables of plans as Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solver.analysis.explanation import Explanation
from solver.analysis.sweep import SweepRow, efficiencies
from solver.api import Session
from solver.plans.space import full_space
from solver.problem.loading import LoadedProblem
from solver.problem.result import Answer, answer_values
from solver.search import Result
from spec.files import atomic_path, check_parquet
from spec.program.kinds import Several, Whole
from spec.program.progress import progress
from spec.settings.plan import plan_settings
from spec.settings.setting import setting_text

if TYPE_CHECKING:
    from pandas import DataFrame

Answers = Session | Result | Explanation | Sequence[Answer] | Sequence[SweepRow]


def to_frame(answers: Answers) -> "DataFrame":
    """Returns answers as a table: of a Session every plan that fits, of a search or of answers one row per plan, of a
    sweep one per question, of an Explanation one per operation. Seconds, bytes and tokens, with the unit in the
    column's name.

    Raises NoFeasiblePlanError for a Session without plans.
    """
    if isinstance(answers, Session):
        return frame_of_columns(answers.every_plan())
    if isinstance(answers, Result):
        return frame_of_columns(_columns([answer_values(answer) for answer in answers.best]))
    if isinstance(answers, Explanation):
        return frame_of_columns(_columns([asdict(row) for row in answers.operations]))
    rows = [row for row in answers if isinstance(row, SweepRow)]
    if rows:
        return frame_of_columns(_columns(_swept(rows)))
    return frame_of_columns(_columns([answer_values(answer) for answer in answers if isinstance(answer, Answer)]))


def frame_of_columns(columns: Mapping[str, Sequence[Any]]) -> "DataFrame":
    """Returns the columns of plans with types that allow missing values: whole numbers as Int64, several words as text."""
    import pandas as pd

    kinds = {key: setting.kind for key, setting in plan_settings().items()}
    series = {}
    for name, values in columns.items():
        kind = kinds.get(name)
        if isinstance(kind, Several):
            series[name] = pd.Series([setting_text(value) if isinstance(value, tuple) else value for value in values])
        elif isinstance(kind, Whole):
            series[name] = pd.Series(list(values), dtype="Int64")
        else:
            series[name] = pd.Series(list(values))
    return pd.DataFrame(series)


def write_parquet(path: Path, frame: "DataFrame") -> None:
    """Writes a table of plans atomically; raises ConfigError without pyarrow."""
    check_parquet(str(path))
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, engine="pyarrow", index=False)


def write_every_plan(path: Path, inputs: LoadedProblem) -> None:
    """Writes all plans that fit, priced, and prints their number."""
    problem = inputs.problem
    blocks = len(full_space(problem.model, problem.job, inputs.constraints).blocks)
    with progress(blocks, "every plan", "block") as bar:
        frame = frame_of_columns(Session(inputs=inputs).every_plan(tick=bar.update))
    write_parquet(path, frame)
    print(f"\n{path}: {len(frame):,} plans that fit, fastest first")


def _swept(rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """Returns what was varied, with ``asked_`` before its name, the best plan and parallel efficiency, or why there is none."""
    lines = []
    for row, efficiency in zip(rows, efficiencies(rows), strict=True):
        values: dict[str, Any] = {f"asked_{axis}": value for axis, value in row.values.items()}
        if row.answer is not None:
            values |= answer_values(row.answer) | {"efficiency": efficiency}
        lines.append(values | {"why_none": row.why_none})
    return lines


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the rows by column of the longest row, None where a row lacks it."""
    names = [list(row) for row in rows]
    fullest = max(names, key=len, default=[])
    return {name: [row.get(name) for row in rows] for name in fullest}
