"""Answers for machines: JSON with everything, CSV with one line a plan or a question."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from solver.problem.problem import Problem
from solver.problem.result import Answer, answer_values
from spec.files import atomic_file
from spec.settings.constraints import NO_CONSTRAINTS, Constraints
from spec.settings.plan import plan_settings
from spec.settings.setting import setting_text

if TYPE_CHECKING:
    from solver.analysis.sweep import SweepOutcome
    from solver.search import Result


def answer_record(answer: Answer) -> dict[str, object]:
    """Returns one answer as plain values; units are in the names, a plan's keys are those that --plan takes, and dp."""
    return asdict(answer) | {"plan": asdict(answer.plan.settings) | {"dp": answer.plan.dp}}


def question_record(problem: Problem) -> dict[str, object]:
    """Returns the question as plain values."""
    job, cluster = problem.job, problem.cluster
    return {
        "model": problem.model.name,
        "cluster": cluster.name,
        "gpu": cluster.gpu.name,
        "world_size": job.world_size,
        "seq_len": job.seq_len,
        "global_batch_tokens": job.global_batch_tokens,
        "preset": job.preset.name,
        "evidence": problem.evidence.value,
    }


def search_record(problem: Problem, result: "Result", constraints: Constraints = NO_CONSTRAINTS) -> dict[str, object]:
    """Returns a whole search as plain values."""
    return {
        "question": question_record(problem),
        "constraints": constraints.words(),
        "best": [answer_record(answer) for answer in result.best],
        "best_of_mode": {mode: answer_record(answer) for mode, answer in result.best_of_mode.items()},
        "pareto": [answer_record(answer) for answer in result.pareto],
        "num_seen": result.num_seen,
        "num_priced": result.num_priced,
        "rejected": result.rejected,
        "nearest_miss": result.nearest_miss,
        "seconds": result.seconds,
    }


def write_json(out: Path | TextIO, record: dict[str, object]) -> None:
    """Writes a record to an open stream, or to a file, whole or not at all, and says so; what is no finite number (days
    of a run that never ends) is null, as JSON has no word for it."""
    words = json.dumps(_finite(record), indent=2, allow_nan=False)
    if not isinstance(out, Path):
        print(words, file=out)
        return
    with atomic_file(out) as handle:
        print(words, file=handle)
    print(f"wrote {out}")


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def write_csv(path: Path, answers: Sequence[Answer]) -> None:
    """Writes one line per plan: the plan's keys as for --plan, then seconds by part, then bytes."""
    _write_rows(path, [answer_columns(answer) for answer in answers])


def write_sweep_csv(path: Path, rows: "Sequence[SweepOutcome]") -> None:
    """Writes one line a question: what is varied, the best plan as in write_csv, parallel efficiency, goodput and
    run where they are requested, and why there is no plan where there is none."""
    from solver.analysis.sweep import efficiencies

    first = next((answer_columns(one.row.answer) for one in rows if one.row.answer is not None), {})
    lines = []
    for one, efficiency in zip(rows, efficiencies(outcomes.row for outcomes in rows), strict=True):
        answer = one.row.answer
        line = {f"asked_{axis}": str(value) for axis, value in one.row.values.items()}
        line |= dict.fromkeys(first, "") if answer is None else answer_columns(answer)
        line |= {"efficiency": _number(efficiency)} if first else {}
        for name, outcomes in (("goodput", one.goodput), ("run", one.cost)):
            line |= (
                {} if outcomes is None else {f"{name}_{key}": _number(value) for key, value in asdict(outcomes).items()}
            )
        lines.append(line | {"why_none": one.row.why_none})
    longest = max(lines, key=len)
    _write_rows(path, [{key: line.get(key, "") for key in longest} for line in lines])


def answer_columns(answer: Answer) -> dict[str, str]:
    """Returns a plan's line of a table, by column: its keys as for --plan, numbers in full."""
    keys = plan_settings()
    return {name: setting_text(value) if name in keys else repr(value) for name, value in answer_values(answer).items()}


def _number(value: object) -> str:
    return "" if value is None else repr(value)


def _write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_file(path) as handle:
        handle.write(text.getvalue())
