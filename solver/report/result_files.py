"""Answers for machines: JSON with everything, CSV with one line a plan."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from solver.answer.answer import Answer
from solver.plans.space import NO_CONSTRAINTS
from solver.question import Question
from solver.search import SearchResult
from spec.replaced_file import replaced_file
from spec.settings.constraints import Constraints
from spec.settings.plan import plan_settings
from spec.settings.setting import typed


def answer_record(answer: Answer) -> dict[str, object]:
    """One answer as plain values; units are in the names, a plan's keys are those that --plan takes, and dp."""
    return asdict(answer) | {"plan": asdict(answer.plan.written) | {"dp": answer.plan.dp}}


def question_record(question: Question) -> dict[str, object]:
    """What was asked."""
    job, cluster = question.job, question.cluster
    return {
        "model": question.model.name,
        "cluster": cluster.name,
        "gpu": cluster.gpu.name,
        "world_size": job.world_size,
        "seq_len": job.seq_len,
        "global_batch_tokens": job.global_batch_tokens,
        "preset": job.preset.name,
    }


def search_record(
    question: Question, result: SearchResult, constraints: Constraints = NO_CONSTRAINTS
) -> dict[str, object]:
    """A whole search."""
    return {
        "question": question_record(question),
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


def write_json(path: Path, record: dict[str, object]) -> None:
    """Write a record, whole or not at all."""
    with replaced_file(path) as handle:
        json.dump(record, handle, indent=2)
        handle.write("\n")


def write_csv(path: Path, answers: Sequence[Answer]) -> None:
    """One line a plan: the plan's keys as they are typed after --plan, then seconds by part, then bytes."""
    keys = list(plan_settings())
    parts = list(answers[0].parts_s)
    terms = list(answers[0].memory_bytes)
    totals = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes", "tgs", "mfu")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    interval = ("interval_low_s", "interval_high_s")
    header = [*keys, "dp", "step_s", "standard_error_s", *interval, *(f"{part}_s" for part in parts)]
    writer.writerow([*header, *(f"{term}_bytes" for term in terms), *totals])
    for answer in answers:
        writer.writerow(
            [
                *(typed(getattr(answer.plan.written, key)) for key in keys),
                answer.plan.dp,
                repr(answer.step_s),
                repr(answer.standard_error_s),
                *(repr(getattr(answer, bound)) for bound in interval),
                *(repr(answer.parts_s[part]) for part in parts),
                *(repr(answer.memory_bytes[term]) for term in terms),
                *(repr(getattr(answer, total)) for total in totals),
            ]
        )
    with replaced_file(path) as handle:
        handle.write(text.getvalue())
