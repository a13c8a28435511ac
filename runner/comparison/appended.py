"""A measured step as a row of the CSV that ``python -m solver.calibrate`` reads."""

import csv
import io
import os
from pathlib import Path

from runner.comparison.train_record import plan_words
from solver.answer.answer import Answer
from solver.calibrate.measured_steps import check_header
from solver.question import Question
from spec.errors import ConfigError
from spec.replaced_file import replaced_file
from spec.text_file import MAX_FILE_BYTES, UnreadableFileError, read_file_text

COLUMNS = ("config", "world_size", "global_batch", "measured_step_s", "plan", "seq_len", "framework")


def append_row(path: Path, config: Path, question: Question, answer: Answer, step_s: float) -> None:
    """Add the row to the file, which is made where it is missing; columns that it lacks are added.

    The file is whole before or after. Raises ConfigError for a file of other columns.
    """
    columns, rows = _rows(path) if path.exists() else (COLUMNS, [])
    row = {
        "config": os.path.relpath(config.resolve(), path.parent.resolve()),
        "world_size": str(question.job.world_size),
        "global_batch": str(question.job.global_batch_tokens),
        "measured_step_s": f"{step_s:.9g}",
        "plan": plan_words(answer.plan.written),
        "seq_len": str(question.job.seq_len),
        "framework": question.job.preset.name,
    }
    names = (*columns, *(name for name in COLUMNS if name not in columns))
    with replaced_file(path) as handle:
        writer = csv.DictWriter(handle, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])


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
