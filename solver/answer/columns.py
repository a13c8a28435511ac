"""A plan with its cost as one row: the columns of CSV files, DataFrames and tables of plans."""

from dataclasses import asdict
from typing import Any

from solver.answer.answer import Answer

SECONDS = ("step_s", "standard_error_s", "interval_low_s", "interval_high_s")
TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes", "tgs", "mfu")


def answer_values(answer: Answer) -> dict[str, Any]:
    """Column -> value: the plan's keys as written and dp, seconds of the step and its parts, bytes by term
    and in all, tokens per GPU and second, MFU."""
    return {
        **asdict(answer.plan.written),
        "dp": answer.plan.dp,
        **{name: getattr(answer, name) for name in SECONDS},
        **{f"{part}_s": value for part, value in answer.parts_s.items()},
        **{f"{term}_bytes": value for term, value in answer.memory_bytes.items()},
        **{total: getattr(answer, total) for total in TOTALS},
    }
