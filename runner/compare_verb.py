"""The verb ``compare``: a measured run and its prediction, the largest gap between them, and what it suggests. No torch."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from typing import TypeVar

import numpy as np

from runner.comparison.logged_run import TRAIN, WARMUP, MeasuredRun, logged_run
from runner.comparison.operations import (
    LOG_ENDING,
    LaunchFile,
    OperationComparison,
    check_matched,
    compare_launches,
    measured,
    read_launch_file,
)
from runner.comparison.operations import lines as operation_lines
from runner.comparison.operations import record as operation_record
from runner.comparison.train_record import RowSource, TrainRecord, append_row, plan_words, train_record
from runner.groups.degrees import check_dp, plan_and_dp
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.loading import LoadedProblem, load_parsed
from solver.problem.model_flops import mfu, tokens_per_gpu_per_s
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.request import Request, read_request
from solver.problem.requested_plan import check_order, plan_of
from solver.problem.result import Answer, check_believable
from solver.report.files import answer_record, question_record, write_json
from solver.report.html import REPORT, report_file, write_page
from solver.report.plans import PART_TITLES
from solver.report.sections import KeyFigure, Page, ReportSection, Table
from solver.report.terminal import table
from spec.errors import ConfigError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, check_outputs, json_output, read_file_text
from spec.job import precision_of
from spec.program.command import batch_tokens, whole
from spec.program.kinds import MOST_EPOCHS, MOST_GPUS, MOST_SEQUENCE_TOKENS, MOST_STEP_TOKENS
from spec.readers.read_config import add_config, assumption_lines
from spec.settings.job import job_settings
from spec.settings.plan import PlanSettings
from spec.settings.setting import parse_settings, setting_text
from spec.units import bytes_to_gib, seconds_to_ms

MOST_PARTS = 3
"""Most parts of the step that are named as a cause."""
BUSY = 0.9
"""Share of CPU time in a step above which a rank hardly waited."""


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """One quantity, predicted and measured, in its unit."""

    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """A run, the answer for its plan, and the quantities that both have."""

    run: MeasuredRun
    problem: Problem
    answer: Answer
    rows: tuple[ComparedQuantity, ...]

    @property
    def inside(self) -> bool:
        """True if the measured step lies in the 80 % interval."""
        return self.answer.interval_low_s <= self.run.step_s <= self.answer.interval_high_s

    @property
    def largest(self) -> ComparedQuantity:
        """The step or memory, whichever ratio is farther from 1; tokens and MFU follow from the step."""
        own = [row for row in self.rows if row.unit in ("ms", "GiB")]
        return max(own, key=lambda row: abs(log(row.ratio)))


def compare_run(run: MeasuredRun, problem: Problem, answer: Answer) -> RunComparison:
    """The comparison of every quantity that the run reports."""
    step_s = np.array([run.step_s])
    tgs = float(tokens_per_gpu_per_s(problem.job, step_s)[0])
    run_mfu = float(mfu(problem.model, problem.job, problem.cluster, step_s)[0])
    rows = [
        ComparedQuantity("step", "ms", seconds_to_ms(answer.step_s), seconds_to_ms(run.step_s)),
        ComparedQuantity("tokens/s per GPU", "", answer.tgs, tgs),
        ComparedQuantity("MFU", "%", 100 * answer.mfu, 100 * run_mfu),
    ]
    memory = (
        ("allocated", answer.allocated_bytes, run.allocated_bytes),
        ("reserved", answer.reserved_bytes, run.reserved_bytes),
    )
    rows += [
        ComparedQuantity(name, "GiB", bytes_to_gib(predicted), bytes_to_gib(measured))
        for name, predicted, measured in memory
        if measured is not None
    ]
    return RunComparison(run=run, problem=problem, answer=answer, rows=tuple(rows))


def check_row(comparison: RunComparison) -> None:
    """Raises ConfigError for a run that no GPU can have made, which calibration would refuse."""
    (used,) = (row.measured for row in comparison.rows if row.name == "MFU")
    if used > 100:
        gpus = f"{comparison.problem.job.world_size} {comparison.problem.cluster.gpu.name}"
        allowed = f"a longer one: this is {used:.0f} % of the peak FLOP/s of {gpus}; check model, batch and world"
        value = f"{seconds_to_ms(comparison.run.step_s):.4g} ms"
        raise ConfigError(where="--append", key="measured step", value=value, allowed=allowed)


def lines(comparison: RunComparison) -> list[str]:
    """The comparison as text."""
    return [*_heading(comparison), "", table(_cells(comparison), TITLES), "", *_conclusions(comparison)]


TITLES = ["", "predicted", "measured", "ratio"]


def _heading(comparison: RunComparison) -> list[str]:
    """What ran, and what was measured of it."""
    run, answer = comparison.run, comparison.answer
    low_s, high_s = run.spread_s
    what_counts = "steps" if run.form == TRAIN else "lines of steps"
    return [
        f"{comparison.problem.model.name}, {answer.plan.world_size} x {comparison.problem.cluster.gpu.name}, {answer.plan.label()}",
        f"measured: {run.source} ({run.form}), median of {len(run.steps_s)} {what_counts} after {run.warmup} of warm-up, "
        f"80 % of them {seconds_to_ms(low_s):.4g}..{seconds_to_ms(high_s):.4g} ms",
    ]


def _cells(comparison: RunComparison) -> list[list[str]]:
    return [
        [f"{row.name} {row.unit}".strip(), _number_text(row.predicted), _number_text(row.measured), f"{row.ratio:.3f}"]
        for row in comparison.rows
    ]


def _conclusions(comparison: RunComparison) -> list[str]:
    answer = comparison.answer
    return [
        *_waiting_line(comparison),
        f"80 % interval of the step {seconds_to_ms(answer.interval_low_s):.4g}.."
        f"{seconds_to_ms(answer.interval_high_s):.4g} ms: the measured step is {'inside' if comparison.inside else 'outside'}",
        f"largest gap: {comparison.largest.name}, measured {comparison.largest.ratio:.3f} x the prediction",
        *suggestions(comparison),
    ]


def comparison_page(
    comparison: RunComparison, file: LaunchFile | None, operations: OperationComparison | None, *, own: bool
) -> Page:
    """The page of a comparison: its rows and conclusions, its steps, and its operations where a ``file`` has them, which
    may be its ``own`` or accompany it."""
    # matplotlib takes a second to import.
    from runner.comparison.page import operation_sections, run_sections

    run = comparison.run
    sections = list(run_sections(run.steps_s, comparison.answer, file, run.warmup if own else 0, own=own))
    sections += operation_sections(operations) if operations is not None else ()
    title, measured_words = _heading(comparison)
    rows = _cells(comparison)
    tiles = [
        KeyFigure(label=name, value=f"{ratio} x", note=f"{theirs} for {ours}") for name, ours, theirs, ratio in rows
    ]
    first = ReportSection(
        anchor="comparison",
        title="Predicted and measured",
        paragraphs=_conclusions(comparison),
        tables=(Table(caption="measured over predicted", header=["quantity", *TITLES[1:]], rows=rows),),
    )
    return Page(
        title=title,
        lead=[measured_words],
        tiles=tiles,
        sections=(first, *sections),
        numbers="Times are measured where they are not called predicted.",
    )


def _waiting_line(comparison: RunComparison) -> list[str]:
    """A line on CPU ranks that waited: their CPU time, to which other programs on the machine do not add."""
    cpu_s = comparison.run.step_cpu_s
    if cpu_s is None or cpu_s > BUSY * comparison.run.step_s:
        return []
    return [
        f"the busiest rank used {seconds_to_ms(cpu_s):.4g} ms of CPU time in a step ({cpu_s / comparison.answer.step_s:.3f} x the "
        f"prediction); the rest was spent waiting for other ranks or for a shared CPU"
    ]


def _number_text(value: float) -> str:
    """Four significant digits; a value of 1000 or more without decimals."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def suggestions(comparison: RunComparison) -> list[str]:
    """What would bring the prediction closer, in sentences."""
    advice = [] if comparison.inside else [_step_words(comparison)]
    modelled = comparison.answer.origins_s.get("modelled", 0.0) / comparison.answer.step_s
    if not comparison.inside and modelled > 0.5:
        advice.append(
            f"{100 * modelled:.0f} % of the predicted step is modelled from the hardware spec: measure a profile of this cluster first"
        )
    if not comparison.inside:
        advice.append(
            "to calibrate: append rows of several plans (--append), then run python -m solver.calibrate --steps"
        )
    if comparison.largest.unit == "GiB":
        terms = sorted(comparison.answer.memory_bytes.items(), key=lambda item: -item[1])[:MOST_PARTS]
        words = ", ".join(f"{name} {bytes_to_gib(size):.3g}" for name, size in terms)
        advice.append(f"memory: the largest predicted terms are {words} GiB; memory is not calibrated")
    return advice


def _step_words(comparison: RunComparison) -> str:
    """By how much each of the largest parts alone would have to change."""
    gap_s = comparison.run.step_s - comparison.answer.step_s
    candidates = [(part, part_s) for part, part_s in comparison.answer.parts_s.items() if part_s > max(0.0, -gap_s)]
    candidates = sorted(candidates, key=lambda item: -item[1])[:MOST_PARTS]
    difference = f"{seconds_to_ms(abs(gap_s)):.4g} ms {'more' if gap_s > 0 else 'less'} than predicted"
    if not candidates:
        return f"{difference}: no part of the step is that long alone, so several are priced too long"
    times = [(PART_TITLES[part], f"{(part_s + gap_s) / part_s:.2f} x") for part, part_s in candidates]
    causes = ", or ".join((times[0][1], *(" ".join(other) for other in times[1:])))
    return f"{difference}: to explain it alone, {times[0][0]} would have to take {causes} its predicted time"


def record(comparison: RunComparison) -> dict[str, object]:
    """Everything as plain values with the unit in the name."""
    low_s, high_s = comparison.run.spread_s
    return {
        "question": question_record(comparison.problem),
        "predicted": answer_record(comparison.answer),
        "measured": asdict(comparison.run) | {"step_s": comparison.run.step_s, "spread_s": [low_s, high_s]},
        "ratios": {row.name: row.ratio for row in comparison.rows},
        "inside_interval": comparison.inside,
        "largest_gap": comparison.largest.name,
        "suggestions": suggestions(comparison),
    }


# The options of ``compare``, and the question that a run is the answer to.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrediction:
    """The question that predicts a run, and the run's plan."""

    request: Request
    inputs: LoadedProblem
    plan: Plan


def add_compare(verb: argparse.ArgumentParser) -> None:
    """All options of ``compare``, named as in simulation_train_formulaic.py."""
    verb.add_argument(
        "result",
        type=Path,
        help="JSON of train, a log of Megatron-LM, InternEvo, torchtitan or DeepSpeed, a trace of torch.profiler, or the "
        "*_log.csv of run",
    )
    verb.add_argument("--operations", type=Path, help="also a trace or *_log.csv, compared operation by operation")
    what = verb.add_argument_group("what ran (a JSON of train has all but the config)")
    add_config(what, required=True)
    what.add_argument("--plan", help="tp=2,pp=2,... (default: the result's, else the config's); dp=N is checked")
    what.add_argument("--world_size", type=whole(1, MOST_GPUS), help="GPUs")
    tokens = "tokens of a step (default: the config's)"
    what.add_argument(
        "--global_batch_size", type=partial(batch_tokens, minimum=1, maximum=MOST_STEP_TOKENS), help=tokens
    )
    what.add_argument("--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), help="tokens per sequence")
    what.add_argument("--framework", help="preset (default: the result's, else the config's)")
    what.add_argument("--job", action="append", default=[], help="settings of the job (docs/configs.md)")
    what.add_argument("--warmup", type=whole(0, MOST_EPOCHS), help=f"steps to leave out (default {WARMUP} of a log)")
    where = verb.add_argument_group("how it is predicted")
    where.add_argument("--pre_profiling_data_path", type=Path, help="profile (default prof_data/data.pt)")
    where.add_argument("--cluster", help="hardware spec of configs/clusters (default: the profile's)")
    missing = ("error", "modelled")
    where.add_argument("--missing", choices=missing, default="error", help="what to do about missing curves")
    where.add_argument("--calibration", type=Path, help="factors from python -m solver.calibrate")
    out = verb.add_argument_group("results")
    out.add_argument("--json", type=Path, help="write everything to this file; - is standard output")
    out.add_argument("--report", type=Path, metavar="DIR", help=REPORT)
    out.add_argument("--append", type=Path, help="add a row to this CSV for python -m solver.calibrate --steps")


def compare(options: argparse.Namespace, root: Path) -> int:
    """Prints a run and its prediction, and writes the requested files."""
    with json_output(options.json) as options.json:
        return compare_with_prediction(options, root)


def compare_with_prediction(options: argparse.Namespace, root: Path) -> int:
    """Prints and writes; returns the exit status."""
    inputs = {
        "RESULT": options.result,
        "--operations": options.operations,
        "--config": options.config,
        "--calibration": options.calibration,
    }
    json = options.json if isinstance(options.json, Path) else None
    check_outputs(
        {"--json": json, "--append": options.append, **report_file(options.report)},
        folders={"--report": options.report},
        inputs=inputs,
    )
    launch_file = read_launch_file(options.result)
    text = "" if launch_file else _text(options.result)
    recorded = None if launch_file else train_record(options.result, text, options.warmup or 0)
    # A trace or log given as RESULT is compared operation by operation as well.
    operations_file = read_launch_file(options.operations) if options.operations else launch_file
    if options.operations and operations_file is None:
        raise ConfigError(
            where="compare", key="--operations", value=str(options.operations), allowed=f"a trace, or a *{LOG_ENDING}"
        )
    if options.append and launch_file is not None and launch_file.log is not None:
        raise ConfigError(
            where="--append",
            key="RESULT",
            value=options.result.name,
            allowed="training steps: a replayed workload runs one operation after another, without overlap",
        )
    loaded = _load_run(options, root, recorded, launch_file)
    problem = loaded.inputs.problem
    run = recorded.run if recorded else _run(options, text, launch_file, loaded)
    answers = price_plan(problem, PlanTable.of(loaded.plan))
    check_believable(answers, loaded.inputs.source)
    comparison = compare_run(run, problem, answers[0])
    if options.append:
        check_row(comparison)
    if recorded and recorded.cluster != problem.cluster.name:
        print(f"note: the run was on {recorded.cluster}, the prediction is for {problem.cluster.name}")
    print("\n".join([*assumption_lines(problem.model), *lines(comparison)]))
    values = record(comparison)
    operations = None
    if operations_file is not None:
        own = operations_file is launch_file
        operations = compare_launches(operations_file, problem, loaded.plan, (options.warmup or 0) if own else 0)
        check_matched(operations_file.path, operations)
        print("\n".join(["", *operation_lines(operations)]))
        values["operations"] = operation_record(operations)
    if options.append:
        source = RowSource(
            config=options.config,
            cluster=recorded.cluster if recorded else problem.cluster.name,
            request=loaded.request,
            problem=problem,
            answer=answers[0],
        )
        append_row(options.append, source, run.step_s)
        print(f"appended to {options.append}")
    if options.json:
        write_json(options.json, values)
    if options.report:
        page = comparison_page(comparison, operations_file, operations, own=operations_file is launch_file)
        print(f"wrote {write_page(page, options.report)}")
    return 0


def _text(path: Path) -> str:
    try:
        return read_file_text(path, MOST_MEASURED_BYTES)
    except UnreadableFileError as error:
        raise ConfigError(where="compare", key="result", value=str(path), allowed=str(error)) from error


def _run(options: argparse.Namespace, text: str, launch_file: LaunchFile | None, loaded: RunPrediction) -> MeasuredRun:
    """The steps of a trace, a replayed workload or a framework's log."""
    if launch_file is not None:
        return measured(launch_file, options.warmup or 0)
    warmup = WARMUP if options.warmup is None else options.warmup
    return logged_run(options.result, text, loaded.inputs.problem.job, loaded.plan, warmup)


def _load_run(
    options: argparse.Namespace, root: Path, recorded: TrainRecord | None, launch_file: LaunchFile | None
) -> RunPrediction:
    """The question and the plan of a run. Raises ConfigError where the command and the result contradict each other."""
    world_size = recorded.world_size if recorded else launch_file.world_size if launch_file else None
    if world_size is None and options.world_size is None:
        raise ConfigError(where="compare", key="--world_size", value=None, allowed="the GPUs of the logged run")
    # A value that both the command and the result state must be the same; a result fills what the command leaves out.
    job = _job(options, recorded)
    request = Request(
        root=root,
        profile=options.pre_profiling_data_path,
        config=options.config,
        assume=options.assume,
        world_size=_agreed("--world_size", options.world_size, world_size),
        global_batch_tokens=_agreed(
            "--global_batch_size", options.global_batch_size, recorded and recorded.global_batch_tokens
        ),
        seq_len=_agreed("--seq_len", options.seq_len, recorded and recorded.seq_len),
        framework=_agreed("--framework", options.framework, recorded and recorded.preset),
        cluster=options.cluster,
        missing=options.missing,
        calibration=options.calibration,
        job=job,
    )
    parsed = read_request(request)
    if recorded is not None and recorded.job is not None and options.job:
        recorded_job = read_request(replace(request, job=recorded.job)).job
        if parsed.job != recorded_job:
            _agreed("--job", ",".join(options.job), _words(recorded.job))
    if recorded is not None:
        _agreed("--config", parsed.config.model.name, recorded.model)
        # train may have run in another precision (--dtype) than the config's.
        if recorded.dtype != parsed.job.precision.linear:
            precision = precision_of(parsed.job.preset, recorded.dtype)
            parsed = replace(parsed, job=replace(parsed.job, precision=precision))
    inputs = load_parsed(request, parsed)
    requested_plan, dp = plan_and_dp(options.plan) if options.plan else (None, None)
    written_plan = requested_plan or (recorded.plan if recorded else inputs.config.plan) or PlanSettings()
    where = "--plan" if requested_plan else str(options.result if recorded else options.config)
    plan = plan_of(written_plan, inputs.problem, where)
    check_dp(plan, dp)
    check_order(plan, inputs.problem, where)
    if recorded is not None:
        recorded_plan = plan_of(recorded.plan, inputs.problem, str(options.result))
        if plan != recorded_plan:
            _agreed("--plan", plan_words(plan.settings), plan_words(recorded_plan.settings))
    return RunPrediction(request=request, inputs=inputs, plan=plan)


def _job(options: argparse.Namespace, recorded: TrainRecord | None) -> dict[str, object]:
    """Settings of the job: the result's, overridden by those requested."""
    requested = parse_settings(",".join(options.job), job_settings(), "--job") if options.job else {}
    return {**(recorded.job or {}), **requested} if recorded else requested


def _words(job: Mapping[str, object]) -> str:
    """The settings as after --job."""
    return ",".join(f"{key}={setting_text(value)}" for key, value in job.items())


def _agreed(option: str, requested: Value | None, recorded: Value | None) -> Value | None:
    """The requested value, else the result's. Raises ConfigError if they differ."""
    if requested is not None and recorded is not None and requested != recorded:
        raise ConfigError(
            where="compare", key=option, value=requested, allowed=f"{recorded!r}, what the result was run with"
        )
    return recorded if requested is None else requested
