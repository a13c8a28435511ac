"""A measured step as a row of the CSV that ``python -m solver.calibrate`` reads."""

import csv
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path

from runner.comparison.train_record import plan_words
from solver.calibrate.measured_steps import check_header
from solver.question import Question
from solver.request import Request, read_request
from solver.result import Answer
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.replaced_file import replaced_file
from spec.settings.job import job_settings, settings_beside
from spec.settings.setting import typed, typed_values
from spec.text_file import MAX_FILE_BYTES, UnreadableFileError, read_file_text

COLUMNS = ("config", "world_size", "global_batch", "measured_step_s", "plan", "seq_len", "framework", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a row says beside its time: the ``config``, the question, the ``request`` that opened it, and its answer."""

    config: Path
    request: Request
    question: Question
    answer: Answer


def append_row(path: Path, ran: Ran, step_s: float) -> None:
    """Add the row to the file, which is made where it is missing; columns that it lacks are added.

    The file is whole before or after. Raises ConfigError for a file of other columns, and for a job that a
    row cannot say.
    """
    request, question, answer = ran.request, ran.question, ran.answer
    columns, rows = _rows(path) if path.exists() else (COLUMNS, [])
    row = {
        "config": os.path.relpath(ran.config.resolve(), path.parent.resolve()),
        "world_size": str(question.job.world_size),
        "global_batch": str(question.job.global_batch_tokens),
        "measured_step_s": f"{step_s:.9g}",
        "plan": plan_words(answer.plan.written),
        "seq_len": str(question.job.seq_len),
        "framework": question.job.preset.name,
        "job": job_words(request, question.job),
    }
    names = (*columns, *(name for name in COLUMNS if name not in columns))
    with replaced_file(path) as handle:
        writer = csv.DictWriter(handle, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])


def job_words(request: Request, job: JobSpec) -> str:
    """The settings as after --job by which a job differs from that of the config under its framework.

    Raises ConfigError where a question with these is another (a setting taken back that the config says).
    """
    plain = replace(request, framework=job.preset.name, job={})
    settings = settings_beside(job, read_request(plain).job)
    words = ",".join(f"{key}={typed(value)}" for key, value in settings.items())
    said = typed_values(words, job_settings(), "--append") if words else {}
    if read_request(replace(plain, job=said)).job != job:
        raise ConfigError(where="--append", key="job", value=words, allowed="settings that --job can give")
    return words


def _rows(path: Path) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Columns and rows of a file that is there."""
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
            raise ConfigError(
                where=f"{path}:{number}", key="cells", value=None, allowed=f"{len(columns)} cells a line"
            )
    return columns, rows
