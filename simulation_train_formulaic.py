"""Which parallel plan should this model train with on this cluster, how fast, and will it fit?

Searches every plan on a CPU (--run_all_solu) or prices one, from a profile of the cluster. What needs no
profile is refused before one is loaded.
"""

# ruff: noqa: E402 - what follows takes a while to import, and Ctrl-C may come meanwhile
from spec.program.ending import exit_status, quiet_interrupts, uninterrupted

quiet_interrupts()

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from solver.command_line import PROGRAM, constraints_typed, parser
from solver.page.written_page import FILE, check_page_can_be_made
from solver.request import DEFAULT_PROFILE, Asked, Request, read_request
from spec.errors import ConfigError
from spec.program.outputs import check_outputs
from spec.program.parquet import check_parquet
from spec.program.shipped import shipped_folder
from spec.readers.read_config import config_file
from spec.settings.job import job_settings
from spec.settings.setting import typed_values
from workload.settings.frameworks import WRITTEN, check_framework

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profdb.on_demand import MeasuringDevice
    from solver.analysis.sensitivity import WhatIf
    from solver.opening import Opened
    from solver.result import Answer

Value = TypeVar("Value")

NOT_FEASIBLE = 3
"""Exit status for a priced plan that breaks a rule or does not fit; the results are written all the same, and
launch settings where the framework runs it."""

ROOT = shipped_folder()


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Run one command line, typed after ``program``; the exit status."""
    said = argparse.Namespace(command=command_typed(program, arguments))
    return exit_status(lambda: run(options_parser(program).parse_args(arguments, said)))


def command_typed(program: str, arguments: list[str]) -> str:
    """A command line as a shell reads it."""
    return shlex.join([*["python"] * program.endswith(".py"), *program.split(), *arguments])


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """What reads a command line typed after ``program``."""
    return parser({name: written.how for name, written in WRITTEN.items()}, program)


def run(options: argparse.Namespace) -> int:
    """Search or price, print, and write what was asked for; NOT_FEASIBLE for a priced plan that cannot run."""
    check_options(options)
    request = Request(
        root=ROOT,
        profile=options.pre_profiling_data_path,
        config=options.config,
        assume=options.assume,
        model_size=options.model_size,
        world_size=first(options.world_size),
        global_batch_tokens=first(options.global_batch_size),
        seq_len=first(options.seq_len),
        cluster=first(options.cluster),
        framework=first(options.framework),
        precision=options.precision,
        job=typed_values(",".join(options.job), job_settings(), "--job") if options.job else {},
        missing=options.missing,
        calibration=options.calibration,
        transfer=options.transfer,
        constraints=constraints_typed(options),
    )
    if asks_several(options):
        return sweep(options, request)
    asked = read_request(request)
    check_framework(launch_files(options), asked.job.preset.name)
    return answer(options, request, asked)


def first(values: tuple[Value, ...] | None) -> Value | None:
    """The first of a list, which is the only one of a single question."""
    return None if values is None else values[0]


def asks_several(options: argparse.Namespace) -> bool:
    """Whether any option is a list."""
    listed = ("world_size", "global_batch_size", "seq_len", "cluster", "framework")
    several = any(len(getattr(options, name) or ()) > 1 for name in listed)
    return several or options.micro_batch is not None or options.every_node_count


def sweep(options: argparse.Namespace, request: Request) -> int:
    """Answer the questions of every list, print and write."""
    from solver.report.asked_sweep import print_sweep
    from solver.report.result_files import write_json, write_sweep_csv

    shown = print_sweep(options, request)
    if options.json:
        write_json(options.json, shown.record)
    if options.csv:
        write_sweep_csv(options.csv, shown.judged)
    if options.report:
        from solver.page.asked_page import report_sweep

        report_sweep(options, shown)
    return 0


def check_options(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other, and results that cannot be written, before any work is done."""
    if options.run_all_solu and options.plan is not None:
        raise ConfigError(
            where="--plan",
            key="plan",
            value=options.plan,
            allowed="a plan to price, or --run_all_solu: not both",
        )
    shown = options.top_k if options.run_all_solu else 1
    if options.rank > shown:
        raise ConfigError(
            where="--rank", key="rank", value=options.rank, allowed=f"1 to {shown}, the plans shown at most"
        )
    if options.measure_missing and not (options.pre_profiling_data_path or DEFAULT_PROFILE.exists()):
        raise ConfigError(
            where="--measure_missing",
            key="pre_profiling_data_path",
            value=None,
            allowed="the profile in which to keep what is measured",
        )
    check_page_can_be_made(options.report)
    if options.parquet:
        check_parquet("--parquet")
    files = {
        f"--{name}": getattr(options, name)
        for name in ("json", "csv", "parquet", "write_cases", "export_simai")
    }
    if options.report and options.report.is_dir():
        files["--report"] = options.report / FILE
    check_outputs(
        files | {f"--export_{name}": path for name, path in launch_files(options).items()},
        folders={
            "--export_bundle": options.export_bundle,
            "--report": options.report,
            "--draw_heatmap_path": options.draw_heatmap_path if options.draw_heatmap else None,
        },
        inputs={
            "--config": config_file(options.config) if options.config else None,
            "--pre_profiling_data_path": options.pre_profiling_data_path or DEFAULT_PROFILE,
            "--calibration": options.calibration,
            "--cluster": Path(options.cluster[0]) if options.cluster else None,
        },
    )


def launch_files(options: argparse.Namespace) -> dict[str, Path]:
    """The launch settings asked for: exporter -> path."""
    named = {name: getattr(options, f"export_{name}") for name in WRITTEN}
    return {name: path for name, path in named.items() if path is not None}


def answer(options: argparse.Namespace, request: Request, asked: Asked) -> int:
    """Load the profile, then search or price, print and write; the exit status."""
    from solver.analysis.named_plans import obstacles
    from solver.opening import open_asked
    from solver.report import asked_reasons
    from solver.report.asked_sweep import print_run, run_asked
    from solver.report.beside import sensitivity_record
    from solver.report.result_files import write_json
    from solver.report.shown import priced, print_question, searched
    from solver.typed_plan import parse_plan
    from workload.launch_files import check_exports

    reasons, run = asked_reasons.reasons_asked(options), run_asked(options)
    typed = None if options.plan is None else parse_plan(options.plan)
    if asked.config.plan is None:
        typed = typed or reasons.first_written
    check_exports(launch_files(options), asked.config.model, asked.job)
    device = measuring_device(options) if options.measure_missing else None
    opened = open_asked(request, asked, device)
    told = print_question(opened, asked)
    what_if: Sequence[WhatIf] = ()
    try:
        reasons = asked_reasons.priced_reasons(reasons, opened)
        shown = searched(options, opened) if options.run_all_solu else priced(options, opened, typed)
        answers = shown.answers
        record = shown.record | print_run(run, opened, answers[0])
        answered = asked_reasons.print_reasons(reasons, opened, answers)
        record |= asked_reasons.reasons_record(answered)
        if options.sensitivity:
            what_if = asked_reasons.print_sensitivity(request, asked, opened, answers[0])
            record |= {"sensitivity": sensitivity_record(what_if)}
    finally:
        keep_learned(options, opened, device)
    if options.json:
        write_json(options.json, record)
    if options.report:
        from solver.page.asked_page import report_plans

        report_plans(options, opened, shown, told, what_if, answered)
    chosen = hand_on(options, opened, answers)
    runs = options.run_all_solu or not obstacles(opened.question, chosen, opened.constraints)
    return 0 if runs else NOT_FEASIBLE


def hand_on(options: argparse.Namespace, opened: "Opened", answers: "Sequence[Answer]") -> "Answer":
    """Write what was asked for of the plans shown, and of the one chosen, which is returned."""
    from solver.report.result_files import write_csv
    from workload.handing_on import bundle, draw, export, launch_settings

    if options.csv:
        write_csv(options.csv, answers)
    if options.parquet:
        from solver.report.frames import write_every_plan

        write_every_plan(options.parquet, opened)
    if options.write_cases:
        write_look_ups(options.write_cases, opened, answers)
    if options.rank > len(answers):
        raise ConfigError(
            where="--rank", key="rank", value=options.rank, allowed=f"1 to {len(answers)}, the plans shown"
        )
    chosen: Answer = answers[options.rank - 1]
    if options.draw_heatmap:
        draw(options, opened, chosen)
    if options.export_simai:
        export(options, opened, chosen)
    if options.export_bundle:
        bundle(options, opened, chosen, ROOT)
    if files := launch_files(options):
        launch_settings(opened, chosen, files)
    return chosen


def write_look_ups(path: Path, opened: "Opened", answers: "Sequence[Answer]") -> None:
    """The cases to measure for these answers, with what was asked and of whom."""
    from profdb.store.case_file import write_cases
    from solver.analysis.look_ups import look_ups
    from solver.report.result_files import question_record

    origin = question_record(opened.question) | {"times": opened.source, "plans": len(answers)}
    cases = look_ups(opened.question, [one.plan for one in answers])
    write_cases(path, cases, origin)
    print(f"\n{path}: {len(cases)} cases to measure (gen_profiler_data.py --cases {path})")


def measuring_device(options: argparse.Namespace) -> "MeasuringDevice":
    """The device of this machine, for what the profile does not hold."""
    with uninterrupted():
        from profiler.on_demand import measuring_device as device_here

    return device_here(options.device, ROOT, 60.0 * options.measure_minutes)


def keep_learned(options: argparse.Namespace, opened: "Opened", device: "MeasuringDevice | None") -> None:
    """Keep what sheets were asked, and what was measured."""
    if opened.times.kept is not None:
        opened.times.kept.keep()
    if device is not None:
        keep_measured(options, opened, device)


def keep_measured(options: argparse.Namespace, opened: "Opened", device: "MeasuringDevice") -> None:
    """Merge what was measured into the profile, also after a search that failed or was interrupted."""
    from profdb.on_demand import keep

    on_demand = opened.times.on_demand
    if on_demand is None:
        return
    samples = on_demand.samples()
    keep(opened.profile_path, samples, device.machine)
    failed = sum(sample.status != "ok" for sample in samples)
    print(
        f"\nmeasured {len(samples)} shapes in {on_demand.spent_s:.1f} s, {failed} of which do not run here; "
        f"kept in {opened.profile_path}"
    )
    if on_demand.left:
        print(f"{on_demand.left} more were left to the curves: --measure_minutes was spent", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
