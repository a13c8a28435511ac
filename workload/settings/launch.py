"""A plan as the launch settings of its framework, and as a timeline."""

import json
from dataclasses import dataclass
from pathlib import Path

from solver.plans.plan_table import Plan
from solver.question import Question
from spec.replaced_file import replaced_file
from workload.settings.deepspeed import deepspeed_settings
from workload.settings.internevo import internevo_settings
from workload.settings.megatron import megatron_settings
from workload.settings.step_trace import trace_text


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """Where to write each; None is not asked for."""

    megatron: Path | None = None
    deepspeed: Path | None = None
    internevo: Path | None = None
    trace: Path | None = None


def write_launch_files(question: Question, plan: Plan, files: LaunchFiles) -> tuple[list[Path], list[str]]:
    """What was written, and what a file cannot hold but the training script can set.

    Raises ExportError for what a framework has no setting for.
    """
    notes: list[str] = []
    texts: dict[Path, str] = {}
    if files.megatron:
        flags = megatron_settings(question, plan)
        lines = [flag if value is None else f"{flag} {value}" for flag, value in flags.items()]
        texts[files.megatron] = "\n".join(lines) + "\n"
    if files.deepspeed:
        settings, in_code = deepspeed_settings(question, plan)
        notes += [f"set in the training script: {note}" for note in in_code]
        texts[files.deepspeed] = json.dumps(settings, indent=2) + "\n"
    if files.internevo:
        texts[files.internevo] = internevo_settings(question, plan)
    if files.trace:
        texts[files.trace] = trace_text(question, plan)
    for path, text in texts.items():
        with replaced_file(path) as handle:
            handle.write(text)
    return list(texts), notes
