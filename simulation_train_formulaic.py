"""Which parallel plan should this model train with on this cluster, how fast, and will it fit?

Searches every plan on a CPU (--run_all_solu) or prices one, from a profile of the cluster.
"""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.ending import exit_status, quiet_interrupts

quiet_interrupts()

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from profdb.on_demand import MeasuringDevice, keep
from solver.answer.answer import Answer
from solver.command_line import parser
from solver.memory.device_memory import usable_bytes
from solver.plans.plan_table import PlanTable
from solver.plans.space import full_space
from solver.question import Question
from solver.report import tables as report
from solver.report.explain import why
from solver.report.result_files import answer_record, question_record, search_record, write_csv, write_json
from solver.request import Opened, Request, open_question
from solver.search import SearchResult, price_plan, search
from solver.typed_plan import broken_rules, parse_plan, plan_of
from spec.errors import ConfigError
from spec.settings.job import job_settings
from spec.settings.plan import WrittenPlan
from spec.settings.setting import typed_values
from spec.units import bytes_to_gib

NOT_FEASIBLE = 3
"""Exit status for a priced plan that breaks a rule or does not fit; the results are written all the same, and
launch settings where the framework runs it."""

ROOT = Path(__file__).resolve().parent
LAUNCHES = ("megatron", "deepspeed", "internevo", "trace")


def main(arguments: list[str]) -> int:
    """Run one command line; the exit status."""
    return exit_status(lambda: run(parser().parse_args(arguments)))


def run(options: argparse.Namespace) -> int:
    """Search or price, print, and write what was asked for; NOT_FEASIBLE for a priced plan that cannot run."""
    if options.run_all_solu and options.plan is not None:
        raise ConfigError(
            where="--plan",
            key="plan",
            value=options.plan,
            allowed="a plan to price, or --run_all_solu: not both",
        )
    launch = [getattr(options, f"export_{name}") for name in LAUNCHES]
    for path in (options.json, options.csv, options.export_simai, *launch):
        check_writable(path)
    for folder in (options.export_bundle, options.draw_heatmap_path if options.draw_heatmap else None):
        check_folder(folder)
    typed = None if options.plan is None else parse_plan(options.plan)
    job = typed_values(",".join(options.job), job_settings(), "--job") if options.job else {}
    device = measuring_device(options) if options.measure_missing else None
    opened = open_question(
        Request(
            root=ROOT,
            profile=options.pre_profiling_data_path,
            config=options.config,
            model_size=options.model_size,
            world_size=options.world_size,
            global_batch_tokens=options.global_batch_size,
            seq_len=options.seq_len,
            cluster=options.cluster,
            framework=options.framework,
            precision=options.precision,
            job=job,
            missing=options.missing,
            device=device,
            calibration=options.calibration,
        )
    )
    told = report.question_lines(opened.question, opened.profile, assumed_framework=opened.assumed_framework)
    print(told, end="\n\n")
    try:
        answers = searched(options, opened) if options.run_all_solu else priced(options, opened, typed)
    finally:
        if device is not None:
            keep_measured(options, opened, device)
    if options.csv:
        write_csv(options.csv, answers)
    if not 1 <= options.rank <= len(answers):
        raise ConfigError(
            where="--rank", key="rank", value=options.rank, allowed=f"1 to {len(answers)}, the plans shown"
        )
    chosen = answers[options.rank - 1]
    if options.draw_heatmap:
        draw(options, opened, chosen)
    if options.export_simai:
        export(options, opened, chosen)
    if options.export_bundle:
        bundle(options, opened, chosen)
    if any(launch):
        launch_settings(options, opened, chosen)
    return 0 if options.run_all_solu or not obstacles(opened.question, chosen) else NOT_FEASIBLE


def check_writable(path: Path | None) -> None:
    """Refuse a result file that cannot be written before any work is done."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(
            where="command line", key="output path", value=str(path), allowed="a file in a folder that exists"
        )


def check_folder(path: Path | None) -> None:
    """Refuse a result folder that is a file, before any work is done."""
    if path is not None and path.exists() and not path.is_dir():
        raise ConfigError(where="command line", key="output folder", value=str(path), allowed="a folder")


def measuring_device(options: argparse.Namespace) -> MeasuringDevice:
    """The device of this machine, for what the profile does not hold."""
    from profiler.on_demand import measuring_device as device_here

    return device_here(options.device, ROOT, 60.0 * options.measure_minutes)


def keep_measured(options: argparse.Namespace, opened: Opened, device: MeasuringDevice) -> None:
    """Merge what was measured into the profile, also after a search that failed or was interrupted."""
    on_demand = opened.on_demand
    if on_demand is None:
        return
    samples = on_demand.samples()
    keep(options.pre_profiling_data_path, samples, device.machine)
    failed = sum(sample.status != "ok" for sample in samples)
    print(
        f"\nmeasured {len(samples)} shapes in {on_demand.spent_s:.1f} s, {failed} of which do not run here; "
        f"kept in {options.pre_profiling_data_path}"
    )
    if on_demand.left:
        print(f"{on_demand.left} more were left to the curves: --measure_minutes was spent", file=sys.stderr)


def searched(options: argparse.Namespace, opened: Opened) -> tuple[Answer, ...]:
    """Search every plan and print the ranking."""
    question = opened.question
    space = full_space(question.model, question.job)
    with tqdm(total=len(space.blocks), desc="search", unit="block", disable=None, leave=False) as bar:
        result = search(question, space, top_k=options.top_k, tick=bar.update)
    print_search(opened, result)
    if options.json:
        write_json(options.json, search_record(question, result))
    return result.best


def print_search(opened: Opened, result: SearchResult) -> None:
    """The ranking, the best of each mode, why, and what fell."""
    winner = result.best[0]
    print(f"best {len(result.best)} plans (parts of the step in ms)")
    print(report.plans_table(result.best), end="\n\n")
    print("best of each mode")
    print(report.plans_table(list(result.best_of_mode.values())), end="\n\n")
    print("why")
    for line in why(winner, result.best_of_mode):
        print(f"  {line}")
    print(f"\nmemory   {report.memory_line(winner)}")
    print(f"origin   {report.origin_line(winner)}")
    print(f"preset   {winner.plan.preset}\n")
    print(report.rejected_table(result), end="\n\n")
    if result.nearest_miss:
        print(f"nearest miss: {result.nearest_miss}")
    print(report.search_line(result))
    print(report.internlm_dict(winner, opened.question.job))


def priced(options: argparse.Namespace, opened: Opened, typed: WrittenPlan | None) -> tuple[Answer, ...]:
    """Price the ``typed`` plan or that of the config and print it."""
    question = opened.question
    written = typed or opened.config.plan
    if written is None or written == WrittenPlan():
        raise ConfigError(
            where=opened.config.path,
            key="plan",
            value=None,
            allowed="this config writes no plan: give --plan tp=..,pp=.. or search with --run_all_solu",
        )
    plan = plan_of(written, question, "--plan" if options.plan else opened.config.path)
    answers = price_plan(question, PlanTable.of(plan))
    answer = answers[0]
    print(report.plans_table(answers), end="\n\n")
    print("why")
    for line in why(answer, {}):
        print(f"  {line}")
    print(f"\nmemory   {report.memory_line(answer)}")
    print(f"origin   {report.origin_line(answer)}")
    for reason in obstacles(question, answer):
        print(f"not feasible: {reason}")
    print(report.internlm_dict(answer, question.job))
    if options.json:
        write_json(options.json, question_record(question) | {"plan": answer_record(answer)})
    return answers


def obstacles(question: Question, answer: Answer) -> tuple[str, ...]:
    """Why a priced plan cannot run: rules it breaks, and memory."""
    limit = usable_bytes(question.cluster)
    short = f"needs {bytes_to_gib(answer.needed_bytes):.1f} GiB of {bytes_to_gib(limit):.1f}"
    return (*broken_rules(question, answer.plan), *([short] if answer.needed_bytes > limit else []))


def draw(options: argparse.Namespace, opened: Opened, answer: Answer) -> None:
    """Save the rank-by-rank traffic of a plan, one array and picture per parallel axis."""
    from workload.traffic.plan_traffic import draw_plan_traffic

    for path in draw_plan_traffic(opened.question, answer.plan, options.draw_heatmap_path):
        print(f"wrote {path}")


def export(options: argparse.Namespace, opened: Opened, answer: Answer) -> None:
    """Write a plan as a SimAI workload and say what the format has no word for."""
    from workload.simai.export import export_simai

    exported = export_simai(
        opened.question, answer.plan, options.export_simai, strict=options.strict_export, stage=options.stage
    )
    for line in exported.beyond_lines():
        print(line, file=sys.stderr)
    for path in exported.paths:
        print(f"wrote {path}")


def bundle(options: argparse.Namespace, opened: Opened, answer: Answer) -> None:
    """Write workload, topology, bus bandwidths and the commands that simulate them."""
    from workload.bundle.bundle import export_bundle
    from workload.simai.closed_form.ratio import SHIPPED, read_ratio_tables

    ratios = read_ratio_tables(ROOT / SHIPPED)
    for path in export_bundle(opened.question, answer.plan, options.export_bundle, ratios).paths:
        print(f"wrote {path}")


def launch_settings(options: argparse.Namespace, opened: Opened, answer: Answer) -> None:
    """Write a plan as its framework's settings, and as a timeline."""
    from workload.settings.launch import write_launch_files

    named = {name: getattr(options, f"export_{name}") for name in LAUNCHES}
    files = {name: path for name, path in named.items() if path is not None}
    written, notes = write_launch_files(opened.question, answer.plan, files)
    for note in notes:
        print(note, file=sys.stderr)
    for path in written:
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
