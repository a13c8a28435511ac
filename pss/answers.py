"""``pss compare A.json B.json``: two answers that ``--json`` wrote, side by side, and where their questions differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.recompute import Recompute
from solver.memory.terms import TERM_NAMES
from solver.plans.plan_table import NAMES, Plan
from solver.plans.schedules import Schedule
from solver.problem.result import Answer, SlowestStage
from solver.report.reasons import answers_table
from solver.report.sections import ReportSection
from solver.report.terminal import Say, terminal_width, text
from spec.errors import CommandLineError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_file_text

QUESTION = ("model", "cluster", "world_size", "seq_len", "global_batch_tokens", "preset", "evidence")


def compare_files(paths: Sequence[Path], say: Say = str) -> int:
    """Prints the best plans of the files' answers beside each other; returns the exit status.

    Raises CommandLineError for a file that holds no answer of one question."""
    questions, answers = zip(*(read_answer(path) for path in paths), strict=True)
    names = [path.name for path in paths]
    facts = [(name, answer.plan.label()) for name, answer in zip(names, answers, strict=True)]
    for key in QUESTION:
        values = [question[key] for question in questions]
        if len(set(values)) > 1:
            facts.append((key, " | ".join(f"{one:,}" if isinstance(one, int) else one for one in values)))
    section = ReportSection(
        anchor="compare", title="Side by side", facts=facts, tables=(answers_table(answers, names),)
    )
    print(text([section], terminal_width(), say=say))
    return 0


def read_answer(path: Path) -> tuple[Mapping[str, Any], Answer]:
    """Returns the question of a file and its best plan's answer; raises CommandLineError where it has none."""
    try:
        whole = json.loads(read_file_text(path, MOST_MEASURED_BYTES))
        question = whole.get("question", whole)
        answer = _answer_of(whole["best"][0] if "best" in whole else whole["plan"])
        # What is no figure, or is not there, is found here, where the file is known.
        answers_table((answer,), (answer.plan.label(),))
        return {key: question[key] for key in QUESTION}, answer
    except UnreadableFileError as error:
        raise CommandLineError(f"pss compare: {path}: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CommandLineError(f"pss compare: {path}: not what --json wrote for a search or one plan") from error


def _answer_of(record: Mapping[str, Any]) -> Answer:
    """Returns the answer of which ``record`` is the answer_record."""
    plan: dict[str, Any] = {NAMES.get(key, key): value for key, value in record["plan"].items()}
    plan |= {key: tuple(value) for key, value in plan.items() if isinstance(value, list)}
    layers, layout = plan["num_recompute_layers"] or 0, plan["stage_layout"] or ""
    recompute = Recompute.BLOCK if layers else Recompute(plan["recompute"])
    kinds = {"recompute": recompute, "schedule": Schedule._value2member_map_[plan["schedule"]]}
    whole = Plan(**{**plan, **kinds, "num_recompute_layers": layers, "stage_layout": layout})
    if {f"{name}_bytes" for name in record["memory_bytes"]} != set(TERM_NAMES):
        raise KeyError("memory_bytes")
    return Answer(**{**record, "plan": whole, "slowest": SlowestStage(**record["slowest"])})
