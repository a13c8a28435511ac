"""Predicted beside measured, the largest gap between them, and what it suggests."""

from dataclasses import asdict, dataclass
from math import log

import numpy as np

from runner.comparison.measured_run import TRAIN, MeasuredRun
from solver.model_flops import mfu, tokens_per_gpu_per_s
from solver.question import Question
from solver.report.result_files import answer_record, question_record
from solver.report.tables import PART_TITLES, table
from solver.result import Answer
from spec.units import bytes_to_gib, seconds_to_ms

MOST_PARTS = 3
"""Parts of the step that are named as a cause."""
WORKING = 0.9
"""Share of a step, CPU time by the clock, from which a rank hardly waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity in its unit: ``ratio`` is measured over predicted."""

    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """1 where the prediction is right."""
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run beside the answer for its plan; rows of what both say."""

    run: MeasuredRun
    question: Question
    answer: Answer
    rows: tuple[Row, ...]

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the 80 % interval."""
        return self.answer.interval_low_s <= self.run.step_s <= self.answer.interval_high_s

    @property
    def largest(self) -> Row:
        """Of the step and the memory (tokens and MFU follow from the step), the row whose ratio is farthest from 1."""
        told = [row for row in self.rows if row.unit in ("ms", "GiB")]
        return max(told, key=lambda row: abs(log(row.ratio)))


def compared(run: MeasuredRun, question: Question, answer: Answer) -> Compared:
    """Every quantity that the run says."""
    step_s = np.array([run.step_s])
    tgs = float(tokens_per_gpu_per_s(question.job, step_s)[0])
    used = float(mfu(question.model, question.job, question.cluster, step_s)[0])
    pairs = [
        ("step", "ms", seconds_to_ms(answer.step_s), seconds_to_ms(run.step_s)),
        ("tokens/s per GPU", "", answer.tgs, tgs),
        ("MFU", "%", 100 * answer.mfu, 100 * used),
    ]
    held = (
        ("allocated", answer.allocated_bytes, run.allocated_bytes),
        ("reserved", answer.reserved_bytes, run.reserved_bytes),
    )
    pairs += [
        (name, "GiB", bytes_to_gib(told), bytes_to_gib(found))
        for name, told, found in held
        if found is not None
    ]
    rows = [Row(name=name, unit=unit, predicted=told, measured=found) for name, unit, told, found in pairs]
    return Compared(run=run, question=question, answer=answer, rows=tuple(rows))


def lines(one: Compared) -> list[str]:
    """The comparison in words."""
    run, answer = one.run, one.answer
    low_s, high_s = run.spread_s
    cells = [
        [f"{row.name} {row.unit}".strip(), _shown(row.predicted), _shown(row.measured), f"{row.ratio:.3f}"]
        for row in one.rows
    ]
    counted = "steps" if run.form == TRAIN else "lines of steps"
    return [
        f"{one.question.model.name}, {answer.plan.world_size} x {one.question.cluster.gpu.name}, {answer.plan.label()}",
        f"measured: {run.source} ({run.form}), median of {len(run.steps_s)} {counted} after {run.warmup} of warm-up, "
        f"8 in 10 within {seconds_to_ms(low_s):.4g}..{seconds_to_ms(high_s):.4g} ms",
        "",
        table(cells, ["", "predicted", "measured", "ratio"]),
        "",
        *_worked(one),
        f"80 % interval of the step {seconds_to_ms(answer.interval_low_s):.4g}.."
        f"{seconds_to_ms(answer.interval_high_s):.4g} ms: the measured one lies {'inside' if one.inside else 'outside'}",
        f"largest gap: {one.largest.name}, measured {one.largest.ratio:.3f} x the prediction",
        *suggestions(one),
    ]


def _worked(one: Compared) -> list[str]:
    """Where ranks on a processor waited: for how long they worked, which other programs on it do not lengthen."""
    cpu_s = one.run.step_cpu_s
    if cpu_s is None or cpu_s > WORKING * one.run.step_s:
        return []
    return [
        f"the busiest rank worked {seconds_to_ms(cpu_s):.4g} ms of a step (CPU time, {cpu_s / one.answer.step_s:.3f} x the "
        f"prediction); else it waited, for other ranks or for a processor that others used"
    ]


def _shown(value: float) -> str:
    """Four digits, all of those before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def suggestions(one: Compared) -> list[str]:
    """What would have to be otherwise for the prediction to be right."""
    said = [] if one.inside else [_step_words(one)]
    modelled = one.answer.origins_s.get("modelled", 0.0) / one.answer.step_s
    if not one.inside and modelled > 0.5:
        said.append(
            f"{100 * modelled:.0f} % of the predicted step is modelled from a sheet: measure a profile of this cluster first"
        )
    if not one.inside:
        said.append(
            "rows of several plans (--append) are what python -m solver.calibrate fits its factors to"
        )
    if one.largest.unit == "GiB":
        named = sorted(one.answer.memory_bytes.items(), key=lambda item: -item[1])[:MOST_PARTS]
        words = ", ".join(f"{name} {bytes_to_gib(size):.3g}" for name, size in named)
        said.append(f"memory: the largest predicted terms are {words} GiB; memory is not calibrated")
    return said


def _step_words(one: Compared) -> str:
    """By how much each of the largest parts, alone, would have to change."""
    gap_s = one.run.step_s - one.answer.step_s
    able = [(part, part_s) for part, part_s in one.answer.parts_s.items() if part_s > max(0.0, -gap_s)]
    able = sorted(able, key=lambda item: -item[1])[:MOST_PARTS]
    more = f"{seconds_to_ms(abs(gap_s)):.4g} ms {'more' if gap_s > 0 else 'less'} than predicted"
    if not able:
        return f"{more}: no part of the step is that long alone, so several are priced too long"
    causes = ", or ".join(f"{PART_TITLES[part]} {(part_s + gap_s) / part_s:.2f} x" for part, part_s in able)
    return f"{more} would take one part alone {causes} its predicted time"


def record(one: Compared) -> dict[str, object]:
    """Everything as plain values with the unit in the name."""
    low_s, high_s = one.run.spread_s
    return {
        "question": question_record(one.question),
        "predicted": answer_record(one.answer),
        "measured": asdict(one.run) | {"step_s": one.run.step_s, "spread_s": [low_s, high_s]},
        "ratios": {row.name: row.ratio for row in one.rows},
        "inside_interval": one.inside,
        "largest_gap": one.largest.name,
        "suggestions": suggestions(one),
    }
