"""Finds the parallel plan that a model should train with on a cluster, how fast it is and whether it fits.

Searches every plan on a CPU (--run_all_solu) or prices one, from a profile of the cluster. What needs no
profile is refused before one is loaded, and what only some commands print is imported where they print it.
"""

# ruff: noqa: E402 - what follows takes a while to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, in_language, quiet_interrupts, without_interrupts

quiet_interrupts()

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pss.plan_options import (
    PLANS_BY,
    PROGRAM,
    SHOWN,
    constraint_options,
    is_sweep,
    named_plans,
    options_parser,
    run_options,
    sweep_axes,
    sweep_workers,
)
from solver.analysis.named_plans import (
    NamedPlan,
    candidate,
    challenger,
    obstacles,
    price_requested,
    with_best_price,
    with_price,
)
from solver.problem.loading import LoadedProblem, load_parsed
from solver.problem.request import DEFAULT_PROFILE, ParsedRequest, Request, read_request
from solver.problem.requested_plan import parse_plan
from solver.problem.result import Answer, check_believable
from solver.report.html import report_file
from solver.report.plans import Plans, plan_sections, question_section, search_sections, settings_section
from solver.report.sections import ReportSection, record
from solver.report.summary import NUM_ALTERNATIVES, summary_sections
from solver.report.terminal import terminal_width, text
from spec.errors import ConfigError
from spec.files import check_outputs, check_parquet, json_output, shipped_folder
from spec.program.progress import progress
from spec.readers.read_config import config_file
from spec.settings.job import job_settings
from spec.settings.plan import PlanSettings
from spec.settings.setting import parse_settings
from workload.settings.frameworks import WRITTEN, check_framework

if TYPE_CHECKING:
    from profdb.on_demand import MeasuringDevice
    from solver.analysis.goodput import Reliability, RunTerms
    from solver.analysis.sensitivity import WhatIf
    from solver.analysis.switches import Values

Value = TypeVar("Value")
NOT_FEASIBLE = 3
"""Exit status for a priced plan that breaks a rule or does not fit; the results are written all the same, and
launch settings with --force where the framework runs it."""
MOST_LINES = 30
"""Lines of an answer without --verbose; long labels on a narrow terminal take a few more."""
ROOT = shipped_folder()


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Runs one command line, typed after ``program``; returns the exit status."""
    namespace = argparse.Namespace(program=program, arguments=arguments)
    return exit_status(
        lambda: read_and_run(options_parser(program).parse_args(arguments, namespace)), arguments=arguments
    )


def read_and_run(options: argparse.Namespace) -> int:
    """Runs the options with ``options.json`` opened where it is standard output."""
    with json_output(options.json) as options.json:
        return run(options)


def command_line(options: argparse.Namespace) -> str:
    """Returns the command line that the options were read from, as a shell takes it."""
    python = ["python"] * options.program.endswith(".py")
    return shlex.join([*python, *options.program.split(), *options.arguments])


def run(options: argparse.Namespace) -> int:
    """Searches or prices, prints, and writes what was requested; NOT_FEASIBLE for a priced plan that cannot run."""
    check_options(options)
    plan = None if options.plan is None else parse_plan(options.plan)
    if plan and plan.schedule and (options.export_simai or options.export_bundle):
        from workload.stage_work import check_schedule

        check_schedule(plan.schedule)
    settings = parse_settings(",".join(options.job), job_settings(), "--job") if options.job else {}
    request = Request(
        root=ROOT,
        profile=options.pre_profiling_data_path,
        config=first(options.config),
        assume=options.assume,
        model_size=options.model_size,
        world_size=first(options.world_size),
        global_batch_tokens=first(options.global_batch_size),
        seq_len=first(options.seq_len),
        cluster=first(options.cluster),
        framework=first(options.framework),
        precision=options.precision,
        job=settings | {key: one for key in ("mfu", "task") if (one := getattr(options, key))},
        missing=options.missing,
        calibration=options.calibration,
        transfer=options.transfer,
        constraints=constraint_options(options),
    )
    if is_sweep(options):
        return sweep(options, request)
    parsed = read_request(request)
    if files := launch_files(options):
        from workload.launch_files import check_exports

        check_framework(files, parsed.job.preset.name)
        check_exports(files, parsed.config.model, parsed.job)
    return answer(options, request, parsed, plan)


def first(values: tuple[Value, ...] | None) -> Value | None:
    """Returns the first of a list, which is the only one of a single question."""
    return None if values is None else values[0]


def check_options(options: argparse.Namespace) -> None:
    """Refuses options that contradict each other, and results that cannot be written, before any work is done."""
    if options.run_all_solu and options.plan is not None:
        allowed = "a plan to price, or --run_all_solu: not both"
        raise ConfigError(where="--plan", key="plan", value=options.plan, allowed=allowed)
    if options.jobs or options.scheduler:
        sweep_workers(options)
    num_plans = (options.top_k or SHOWN) if options.run_all_solu else 1
    if options.rank > num_plans:
        allowed = f"1 to {num_plans}, the plans shown at most"
        raise ConfigError(where="--rank", key="rank", value=options.rank, allowed=allowed)
    if options.measure_missing and not (options.pre_profiling_data_path or DEFAULT_PROFILE.exists()):
        raise ConfigError(
            where="--measure_missing",
            key="pre_profiling_data_path",
            value=None,
            allowed="the profile in which to keep what is measured",
        )
    names = ("json", "csv", "parquet", "write_cases", "export_simai", *(f"export_{name}" for name in WRITTEN))
    files = {f"--{name}": path for name in names if isinstance(path := getattr(options, name), Path)}
    files |= {option: path for option, path in report_file(options.report).items() if path is not None}
    if options.parquet:
        check_parquet("--parquet")
    folders = {
        "--export_bundle": options.export_bundle,
        "--report": options.report,
        "--draw_heatmap_path": options.draw_heatmap_path if options.draw_heatmap else None,
    }
    if files or any(folders.values()):
        inputs = {
            **{f"--config {path}": config_file(path) for path in options.config or ()},
            "--pre_profiling_data_path": options.pre_profiling_data_path or DEFAULT_PROFILE,
            "--calibration": options.calibration,
            "--cluster": Path(options.cluster[0]) if options.cluster else None,
        }
        check_outputs(files, folders=folders, inputs=inputs)


def launch_files(options: argparse.Namespace) -> dict[str, Path]:
    """Returns the launch settings to write: exporter -> path."""
    return {name: path for name in WRITTEN if (path := getattr(options, f"export_{name}")) is not None}


def answer(options: argparse.Namespace, request: Request, parsed: ParsedRequest, plan: PlanSettings | None) -> int:
    """Searches, or prices the ``plan`` or another that the options or the config name, prints and writes; returns the exit
    status."""
    named, (reliability, terms) = named_plans(options), run_options(options)
    tried = switches_of(options.tried, parsed) if options.tried else ()
    if parsed.config.plan is None:
        plan = plan or first_named_plan(named)
    device = measuring_device(options) if options.measure_missing else None
    inputs = load_parsed(request, parsed, device)
    sections = [question_of(options, parsed, inputs)]
    shown = partial(text, width=terminal_width(), verbose=options.verbose, say=in_language(options.arguments))
    print(shown(sections), end="\n\n", flush=True)
    try:
        named = {option: price_named_plans(option, plans, inputs) for option, plans in named.items()}
        plans, results = (
            search_plans(options, inputs) if options.run_all_solu else price_given_plan(options, inputs, plan)
        )
        others: Sequence[WhatIf] = ()
        if options.run_all_solu and options.framework is None:
            from solver.report.reasons import frameworks_section

            others = other_frameworks_of(request, parsed, plans)
            sections.append(frameworks_section(plans.best, others))
        sections += results
        if reliability or terms:
            sections += run_sections(reliability, terms, plans)
        for option, of_option in named.items():
            sections += reason_sections(option, of_option, plans)
        summary = [] if options.verbose else summary_of(options, plans, others, sections[0])
        print(shown([*summary, *sections[1:]]))
        changes = [what_if(request, parsed, plans)] if options.sensitivity else []
        changes += [try_section(request, parsed, plans, tried)] if tried else []
        for section in changes:
            print("", shown([section]), sep="\n")
        sections += changes
    finally:
        if device is not None:
            save_measurements(options, inputs, device)
    if options.json or options.report:
        write_results(options, plans, sections)
    chosen = hand_on(options, plans)
    runs = options.run_all_solu or not obstacles(inputs.problem, chosen, inputs.constraints)
    return 0 if runs else NOT_FEASIBLE


def question_of(options: argparse.Namespace, parsed: ParsedRequest, inputs: LoadedProblem) -> ReportSection:
    """Returns the question, with the reason for the framework where the command names none."""
    origin = "assumed, as nothing names one" if parsed.assumed_framework else f"that of {Path(parsed.config.path).name}"
    return question_section(
        inputs.problem,
        inputs.times,
        framework_origin="" if options.framework else origin,
        # A given plan is priced whether it leaves memory free or not.
        constraints=parsed.constraints if options.run_all_solu else replace(parsed.constraints, headroom=0.0),
    )


def first_named_plan(named: dict[str, tuple[NamedPlan, ...]]) -> PlanSettings | None:
    """Returns the first plan of --explain and --compare that is written out."""
    plans = (one.settings for option in ("explain", "compare") for one in named.get(option, ()))
    return next((one for one in plans if one is not None), None)


def price_named_plans(option: str, plans: tuple[NamedPlan, ...], inputs: LoadedProblem) -> tuple[NamedPlan, ...]:
    """Returns the plans that are written out with their prices, before any search; why one of --why_not cannot run
    is printed.

    Raises ConfigError for a plan that there is no order of work or no world for.
    """

    problem = inputs.problem
    if option != "why_not":
        return tuple(with_price(one, problem) for one in plans)
    results = tuple(with_best_price(one, problem, inputs.constraints) for one in plans)
    lines = [
        f"{one.answer.plan.label()} cannot run: {reason}"
        for one in results
        if one.answer is not None
        for reason in obstacles(problem, one.answer, inputs.constraints)
    ]
    if lines:
        print(*lines, sep="\n", end="\n\n", flush=True)
    return results


def search_plans(options: argparse.Namespace, inputs: LoadedProblem) -> tuple[Plans, list[ReportSection]]:
    """Searches every plan; returns the plans shown and their sections."""
    from solver.api import Session
    from solver.plans.space import full_space

    blocks = len(full_space(inputs.problem.model, inputs.problem.job).blocks)
    with progress(blocks, "search", "block") as bar:
        result = Session(inputs=inputs).search(top_k=options.top_k or SHOWN, tick=bar.update)
    plans = Plans(inputs=inputs, answers=result.best, result=result)
    return plans, search_sections(plans, result)


def price_given_plan(
    options: argparse.Namespace, inputs: LoadedProblem, plan: PlanSettings | None
) -> tuple[Plans, list[ReportSection]]:
    """Prices the ``plan`` or that of the config; returns it and its sections."""

    settings = plan or inputs.config.plan
    if settings is None or settings == PlanSettings():
        raise ConfigError(
            where=inputs.config.path,
            key="plan",
            value=None,
            allowed="this config writes no plan: give --plan tp=..,pp=.. or search with --run_all_solu",
        )
    result = price_requested(settings, inputs.problem, "--plan" if options.plan else inputs.config.path)
    check_believable((result,), inputs.source)
    plans = Plans(inputs=inputs, answers=(result,))
    return plans, plan_sections(plans, obstacles(inputs.problem, result, inputs.constraints))


def run_sections(reliability: "Reliability | None", terms: "RunTerms | None", plans: Plans) -> list[ReportSection]:
    """Returns the goodput of the best plan and what a run with it takes, where requested."""
    from solver.analysis.goodput import goodput_of, run_cost
    from solver.report.sweeps import run_sections

    problem = plans.inputs.problem
    goodput = None if reliability is None else goodput_of(problem.model, problem.job, reliability)
    cost = None
    if terms is not None:
        cost = run_cost(problem.job, problem.cluster, plans.best.step_s, terms, goodput)
    return run_sections(goodput, cost)


def reason_sections(option: str, named: tuple[NamedPlan, ...], plans: Plans) -> list[ReportSection]:
    """Returns the sections of the plans that --explain, --why_not or --compare names."""
    from solver.analysis.explanation import explain_plan
    from solver.report.reasons import compare_section, explanation_sections, why_not_section

    inputs, problem = plans.inputs, plans.inputs.problem
    if option == "why_not":
        others = [challenger(one, inputs, plans.answers) for one in named]
        return [why_not_section(place, plans.best, one) for place, one in enumerate(others, start=1)]
    candidates = [candidate(one, inputs, plans.answers) for one in named]
    if option == "compare":
        return [compare_section(candidates)] if candidates else []
    results = [(one.answer, explain_plan(problem, one.answer.plan)) for one in candidates]
    return explanation_sections(results, calibrated=problem.calibration is not None)


def what_if(request: Request, parsed: ParsedRequest, plans: Plans) -> ReportSection:
    """Returns what three changes would bring."""
    from solver.analysis.sensitivity import sensitivities
    from solver.report.reasons import sensitivity_section

    with progress(3, "what if", "question") as bar:
        results = sensitivities(request, parsed, plans.inputs, tick=bar.update)
    check_believable([one.answer for one in results if one.answer is not None], plans.inputs.source)
    return sensitivity_section(plans.best, results)


def switches_of(names: str, parsed: ParsedRequest) -> "tuple[Values, ...]":
    """Returns the settings that --try tries."""
    from solver.analysis.switches import tried_switches

    return tried_switches(names, parsed)


def try_section(request: Request, parsed: ParsedRequest, plans: Plans, tried: "tuple[Values, ...]") -> ReportSection:
    """Returns what the switches of --try would bring."""
    from solver.analysis.switches import try_switches
    from solver.report.reasons import sensitivity_section

    with progress(len(tried), "switches", "search") as bar:
        results = try_switches(request, parsed, plans.inputs, tried, plans.best, tick=bar.update)
    check_believable([one.answer for one in results if one.answer is not None], plans.inputs.source)
    return sensitivity_section(plans.best, results, tried=True)


def other_frameworks_of(request: Request, parsed: ParsedRequest, plans: Plans) -> "tuple[WhatIf, ...]":
    """Returns what the two most likely other frameworks would give."""
    from solver.analysis.sensitivity import NUM_OTHERS, other_frameworks

    with progress(NUM_OTHERS, "other frameworks", "framework") as bar:
        results = other_frameworks(request, parsed, plans.inputs, tick=bar.update)
    check_believable([one.answer for one in results if one.answer is not None], plans.inputs.source)
    return results


def summary_of(
    options: argparse.Namespace, plans: Plans, others: "Sequence[WhatIf]", question: "ReportSection"
) -> list[ReportSection]:
    """Returns the answer in a few lines, with the options to add to the command next: without --top_k as many of five
    alternatives as there are lines for below the ``question``."""

    inputs, best = plans.inputs, plans.best
    found = () if plans.result is not None else obstacles(inputs.problem, best, inputs.constraints)
    launch = (f", --export_{name} FILE (launch)" for name, one in WRITTEN.items() if best.plan.preset in one.frameworks)
    steps = f"--verbose (all), --report DIR (a page){next(launch, '')}"
    settings = settings_section(best, inputs.problem)
    fewest, most = (2, NUM_ALTERNATIVES) if options.top_k is None else (options.top_k - 1, options.top_k - 1)
    for number in range(most, fewest - 1, -1):
        sections = summary_sections(plans, number, others, steps, found)
        if text([question, *sections, settings], terminal_width(), verbose=False).count("\n") < MOST_LINES:
            break
    return sections


def write_results(options: argparse.Namespace, plans: Plans, sections: Sequence[ReportSection]) -> None:
    """Writes the sections as JSON and as a page, where requested."""
    if options.json:
        from solver.report.files import write_json

        write_json(options.json, record(sections))
    if options.report:
        from solver.report.html import write_page
        from solver.report.page import plans_page

        print(f"\nwrote {write_page(plans_page(plans, sections, command_line(options)), options.report)}")


def sweep(options: argparse.Namespace, request: Request) -> int:
    """Answers the questions of every list, prints and writes."""
    from solver.analysis.sweep import judge, node_counts, rank_rows, run_sweep, sweep_requests
    from solver.report.files import write_json, write_sweep_csv
    from solver.report.sweeps import sweep_sections

    axes, (reliability, terms) = sweep_axes(options), run_options(options)
    if options.every_node_count:
        axes["world_size"] = node_counts(max(options.world_size), read_request(request).hardware_spec)
    requests = sweep_requests(request, axes)
    with progress(len(requests), "sweep", "question") as bar:
        rows = run_sweep(requests, tick=bar.update, workers=sweep_workers(options))
    results = [judge(row, reliability, terms) for row in rows]
    ranked_by = None if options.rank_by in PLANS_BY else options.rank_by
    if ranked_by:
        results = rank_rows(results, ranked_by)
    sections = sweep_sections(rows, results, ranked_by=ranked_by, by_nodes=options.every_node_count)
    print(text(sections, terminal_width(), verbose=options.verbose, say=in_language(options.arguments)))
    if options.json:
        write_json(options.json, record(sections))
    if options.csv:
        write_sweep_csv(options.csv, results)
        announce([options.csv])
    if options.report:
        from solver.report.html import write_page
        from solver.report.page import sweep_page

        page = sweep_page(results, sections, command_line(options), ranked_by)
        print(f"\nwrote {write_page(page, options.report)}")
    return 0


def hand_on(options: argparse.Namespace, plans: Plans) -> Answer:
    """Writes what was requested of the plans shown, and of the one chosen, which is returned."""
    answers, inputs = plans.answers, plans.inputs
    if options.csv:
        from solver.report.files import write_csv

        write_csv(options.csv, answers)
        announce([options.csv])
    if options.parquet:
        from solver.report.frames import write_every_plan

        write_every_plan(options.parquet, inputs)
        announce([options.parquet])
    if options.write_cases:
        write_look_ups(options.write_cases, plans)
    if options.rank > len(answers):
        allowed = f"1 to {len(answers)}, the plans shown"
        raise ConfigError(where="--rank", key="rank", value=options.rank, allowed=allowed)
    chosen: Answer = answers[options.rank - 1]
    files = launch_files(options)
    if options.draw_heatmap:
        from workload.traffic.plan_traffic import draw_plan_traffic

        announce(draw_plan_traffic(inputs.problem, chosen.plan, options.draw_heatmap_path))
    if options.export_simai:
        from workload.simai.export import export_simai

        exported = export_simai(
            inputs.problem, chosen.plan, options.export_simai, strict=options.strict_export, stage=options.stage
        )
        announce(exported.paths, exported.beyond_lines(chosen.parts_s["host"]))
    if options.export_bundle:
        from workload.bundle import export_bundle
        from workload.simai.busbw import SHIPPED, read_ratio_tables

        ratios = read_ratio_tables(ROOT / SHIPPED)
        announce(export_bundle(inputs.problem, chosen.plan, options.export_bundle, ratios).paths)
    if files := launch_files(options):
        from workload.launch_files import write_launch_files

        announce(*write_launch_files(inputs.problem, chosen.plan, files, force=options.force))
    return chosen


def announce(paths: Iterable[Path], notes: Iterable[str] = ()) -> None:
    """Prints the notes of an export as warnings, then the files written."""
    for note in notes:
        print(note, file=sys.stderr)
    for path in paths:
        print(f"wrote {path}")


def write_look_ups(path: Path, plans: Plans) -> None:
    """Writes the cases to measure for these plans, with the question and the times' source."""
    from profdb.store.case_file import write_cases
    from solver.analysis.look_ups import look_ups
    from solver.report.files import question_record

    problem = plans.inputs.problem
    origin = question_record(problem) | {"times": plans.inputs.source, "plans": len(plans.answers)}
    cases = look_ups(problem, [one.plan for one in plans.answers])
    write_cases(path, cases, origin)
    print(f"\n{path}: {len(cases)} cases to measure (gen_profiler_data.py --cases {path})")


def measuring_device(options: argparse.Namespace) -> "MeasuringDevice":
    """Returns the device of this machine, for what the profile does not hold."""
    with without_interrupts():
        from profiler.on_demand import measuring_device as device_here
    return device_here(options.device, ROOT, 60.0 * options.measure_minutes)


def save_measurements(options: argparse.Namespace, inputs: LoadedProblem, device: "MeasuringDevice") -> None:
    """Merges what was measured into the profile, also after a search that failed or was interrupted."""
    on_demand = inputs.times.on_demand
    if on_demand is None:
        return
    from profdb.on_demand import keep

    samples = on_demand.samples()
    keep(inputs.profile_path, samples, device.machine)
    failed = sum(sample.status != "ok" for sample in samples)
    print(
        f"\nmeasured {len(samples)} shapes in {on_demand.spent_s:.1f} s, {failed} of which do not run here; "
        f"kept in {inputs.profile_path}"
    )
    if on_demand.num_unmeasured:
        print(f"{on_demand.num_unmeasured} more were left to the curves: --measure_minutes was spent", file=sys.stderr)
