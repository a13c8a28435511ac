"""The lists, run lengths and failures of a command line: what is varied, what is stated, and the tables
printed of it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from solver.analysis.goodput import Goodput, Reliability, RunCost, Terms, goodput_of, run_cost
from solver.analysis.sweep import Judged, Shared, SweepRow, judged, node_counts, ranked, sweep_requests, swept
from solver.opening import Opened
from solver.report.swept import (
    cost_line,
    goodput_line,
    replanned_record,
    replanned_table,
    swept_lines,
    swept_record,
)
from solver.report.tables import table
from solver.request import Request, read_request
from solver.result import Answer, check_believable
from spec.errors import ConfigError
from spec.program.progress import progress

OPTION_OF = {
    "cluster": "cluster",
    "framework": "framework",
    "seq_len": "seq_len",
    "global_batch_tokens": "global_batch_size",
    "micro_batch": "micro_batch",
    "world_size": "world_size",
}
"""The option that lists each of solver.analysis.sweep.AXES."""

OF_FAILURES = (
    "mtbf_gpu_hours",
    "restart_minutes",
    "checkpoint_s",
    "checkpoint_gb_per_s",
    "spare_nodes",
    "repair_hours",
)
OF_ONE_PLAN = (
    "plan",
    "explain",
    "why_not",
    "compare",
    "parquet",
    "write_cases",
    "draw_heatmap",
    "measure_missing",
    "sensitivity",
)


REPLANNED = "what to run as nodes come and go"


def sweep_axes(options: argparse.Namespace) -> dict[str, Sequence[object]]:
    """What the command line gives a list of, or asks for every number of nodes of; {} for a single question.

    Raises ConfigError for a list without --run_all_solu, or beside options that are about one plan.
    """
    axes: dict[str, Sequence[object]] = {
        axis: getattr(options, option)
        for axis, option in OPTION_OF.items()
        if getattr(options, option) and (len(getattr(options, option)) > 1 or axis == "micro_batch")
    }
    if options.every_node_count:
        axes["world_size"] = options.world_size
    if not axes:
        return {}
    if not options.run_all_solu:
        listed = OPTION_OF[next(iter(axes))]
        raise ConfigError(
            where=f"--{listed}",
            key=listed,
            value=axes[next(iter(axes))],
            allowed="a list with --run_all_solu alone",
        )
    for name in (*OF_ONE_PLAN, *(name for name in vars(options) if name.startswith("export_"))):
        if getattr(options, name):
            raise ConfigError(
                where=f"--{name}",
                key=name,
                value=getattr(options, name),
                allowed="one question, not lists of them",
            )
    return axes


def reliability_asked(options: argparse.Namespace) -> Reliability | None:
    """What is stated of failures; None where goodput is not asked for."""
    stated = [name for name in OF_FAILURES if getattr(options, name) is not None]
    if not (stated or options.goodput or options.rank_by == "goodput"):
        return None
    if (options.spare_nodes is None) != (options.repair_hours is None):
        raise ConfigError(
            where="--spare_nodes",
            key="spare_nodes",
            value=options.spare_nodes,
            allowed="together with --repair_hours",
        )
    found = Reliability(checkpoint_s=options.checkpoint_s, spare_nodes=options.spare_nodes)
    if options.mtbf_gpu_hours is not None:
        found = replace(found, mtbf_hours=options.mtbf_gpu_hours)
    if options.restart_minutes is not None:
        found = replace(found, restart_s=60.0 * options.restart_minutes)
    if options.checkpoint_gb_per_s is not None:
        found = replace(found, storage_bandwidth=1e9 * options.checkpoint_gb_per_s)
    if options.repair_hours is not None:
        found = replace(found, repair_hours=options.repair_hours)
    return found


def terms_asked(options: argparse.Namespace) -> Terms | None:
    """The length of the run and the price of a GPU; None where no run is asked for."""
    if options.tokens is None:
        if options.price_per_gpu_hour is not None:
            raise ConfigError(
                where="--price_per_gpu_hour",
                key="price_per_gpu_hour",
                value=options.price_per_gpu_hour,
                allowed="together with --tokens",
            )
        return None
    return Terms(
        tokens=options.tokens,
        price_per_gpu_hour=options.price_per_gpu_hour,
        spare_nodes=options.spare_nodes or 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepShown:
    """The rows printed, in the order of the questions (``rows``) and as they are ranked, and all of it as
    plain values.
    """

    rows: tuple[SweepRow, ...]
    judged: list[Judged]
    record: dict[str, object]


def print_sweep(options: argparse.Namespace, request: Request) -> SweepShown:
    """Answer every question of the lists and print the tables."""
    axes = sweep_axes(options)
    run = run_asked(options)
    if options.every_node_count:
        sheet = read_request(request).sheet
        axes["world_size"] = node_counts(max(options.world_size), sheet)
    requests = sweep_requests(request, axes)
    with progress(len(requests), "sweep", "question") as bar:
        rows = swept(requests, shared=Shared(), tick=bar.update)
    for row in rows:
        if row.answer is not None:
            check_believable((row.answer,), row.opened.source)
    print(f"{len(rows)} questions about {rows[0].opened.question.model.name}, answered from:")
    for source in dict.fromkeys(row.opened.source for row in rows):
        print(f"  {source}")
    found = [judged(row, run.reliability, run.terms) for row in rows]
    if options.rank_by:
        found = ranked(found, options.rank_by)
        print(f"ranked by {options.rank_by}")
    print("", *swept_lines(found), sep="\n")
    record = swept_record(found)
    if options.every_node_count:
        replanned = replanned_table(rows)
        print(f"\n{REPLANNED}", table(replanned.cells, replanned.header), sep="\n")
        record["replanned"] = replanned_record(rows)
    if found[0].goodput is not None:
        print(f"\nof the first row:\n{goodput_line(found[0].goodput)}")
    return SweepShown(rows=rows, judged=found, record=record)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsked:
    """What is stated of failures and of a run's length; None where nothing is."""

    reliability: Reliability | None
    terms: Terms | None


def run_asked(options: argparse.Namespace) -> RunAsked:
    """As stated; raises ConfigError for options that lack what they need."""
    return RunAsked(reliability=reliability_asked(options), terms=terms_asked(options))


def print_run(run: RunAsked, opened: Opened, answer: Answer) -> dict[str, object]:
    """Goodput of one plan and what a run with it takes, where asked for; the same as plain values."""
    goodput, cost = judged_run(run, opened, answer)
    record: dict[str, object] = {}
    if goodput is not None:
        print(goodput_line(goodput))
        record["goodput"] = asdict(goodput)
    if cost is not None:
        print(cost_line(cost))
        record["run"] = asdict(cost)
    return record


def judged_run(run: RunAsked, opened: Opened, answer: Answer) -> tuple[Goodput | None, RunCost | None]:
    """Goodput and cost of one plan, None for what is not asked."""
    question = opened.question
    goodput = None if run.reliability is None else goodput_of(question.model, question.job, run.reliability)
    if run.terms is None:
        return goodput, None
    return goodput, run_cost(question.job, question.cluster, answer.step_s, run.terms, goodput)
