"""The options of a search, a priced plan and a sweep, and what they say together."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec.errors import ConfigError
from spec.frameworks import framework_names
from spec.program.command import (
    LANGUAGES,
    OneLineParser,
    batch_tokens,
    comma_separated,
    decimal,
    non_empty,
    possible_path,
    step_tokens,
    token_count,
    whole,
)
from spec.program.kinds import (
    MOST_GPUS,
    MOST_MINUTES,
    MOST_SEQUENCE_TOKENS,
    MOST_SHOWN,
    MOST_STEP_TOKENS,
    Flag,
    Several,
)
from spec.readers.read_config import ASSUME, CONFIG
from spec.settings.constraints import BY_KEY, constraint_settings, keys_of
from spec.settings.job import DEFAULT_FRAMEWORK, PRECISIONS
from spec.settings.setting import parse_settings
from workload.settings.frameworks import WRITTEN

if TYPE_CHECKING:
    from solver.analysis.goodput import Reliability, RunTerms
    from solver.analysis.named_plans import NamedPlan

PROGRAM = "simulation_train_formulaic.py"


MOST_JOBS = 1024
PLANS_BY = ("simple", "time")
"""Orders of plans; others are of the rows of a sweep."""
LISTS = {
    "model": "config",
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
SHOWN = 10
"""Plans of a ranking, where no number is given."""
MOST_COMPARED = 26
"""Plans side by side have a letter each."""


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of every option after ``program``."""
    parser = OneLineParser(
        prog=program,
        version=True,
        description="Find the fastest parallel plan that fits, or price one, from a profile of the cluster.",
        epilog="Exit status: 0, 2 for wrong input or when no plan fits, 3 for a priced plan that breaks a rule of "
        "its framework or does not fit (priced and written all the same, but for launch settings: without --force, or of a framework that refuses it).",
    )
    for title, options in option_groups().items():
        group = parser.add_argument_group(title)
        for name, settings in options.items():
            group.add_argument(name, **settings)
    return parser


def option(what: str, **settings: Any) -> dict[str, Any]:
    """Returns the settings of an option as argparse takes them, ``what`` being its help."""
    return {"help": what, **settings}


def flag(what: str) -> dict[str, Any]:
    """Returns the settings of an option that is on or off."""
    return option(what, action="store_true")


def path(what: str) -> dict[str, Any]:
    """Returns the settings of an option that names a file or folder."""
    return option(what, type=Path)


def option_groups() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns every option with its unit, as argparse takes it: title of a group -> option -> settings."""
    return {
        "what to train": {
            "--config": option(f"{CONFIG}; or a list", type=comma_separated(possible_path)),
            "--assume": ASSUME,
            "--model_size": option("billions of parameters: picks a preset, or checks --config"),
            "--world_size": option(
                "GPUs; 64,128 is a list (sweeps)", type=comma_separated(whole(1, MOST_GPUS)), required=True
            ),
            "--global_batch_size": option(
                "tokens per optimizer step, such as 4194304 or 4Mi, sequences (512seqs), or a list",
                type=comma_separated(step_tokens),
            ),
            "--seq_len": option(
                "tokens per sequence, or a list (default: the config's; of a Hub config its positions, 8192 at most)",
                type=comma_separated(partial(batch_tokens, minimum=1, maximum=MOST_SEQUENCE_TOKENS)),
            ),
            "--framework": option(
                f"{', '.join(framework_names())} (default: the config's, else {DEFAULT_FRAMEWORK})",
                type=comma_separated(non_empty),
            ),
            "--precision": option("products of linear layers (default bf16)", choices=PRECISIONS),
            "--task": option("what is trained: job task (docs/configs.md)", choices=("pretrain", "sft", "lora")),
            "--mfu": option(
                "part of a causal attention matrix that MFU counts (default: full, unless attention is more than "
                "a third of the FLOPs)",
                choices=("full", "causal"),
            ),
            "--job": option(
                "settings of the job (docs/configs.md): dropout=true,precision.gradient=bf16,...",
                action="append",
                default=[],
            ),
        },
        "on what": {
            "--pre_profiling_data_path": path("the profile (default prof_data/data.pt)"),
            "--cluster": option(
                "a hardware spec of configs/clusters, or a .toml, or a list (default: the profile's machine); with "
                ":node.gpus=4 behind it otherwise than the file says (docs/clusters.md); "
                "modelled from the spec where the profile is of another",
                type=comma_separated(non_empty),
            ),
            "--transfer": flag("with --cluster: transfer a profile of another GPU instead"),
            "--calibration": path("factors of this cluster that python -m solver.calibrate wrote"),
            "--missing": option(
                "where a curve is missing: stop with an error, or use the hardware spec's model",
                choices=("error", "modelled"),
                default="error",
            ),
            "--measure_missing": flag("measure what is far from any sample on this machine's device, and keep it"),
            "--measure_minutes": option(
                "with --measure_missing: start nothing more after these minutes (default 10)",
                type=decimal(1e-12, MOST_MINUTES),
                default=10.0,
            ),
            "--device": option(
                "with --measure_missing: what to measure on; the profile must be of it (default cuda)",
                choices=("cuda", "cpu"),
                default="cuda",
            ),
        },
        "constraints on plans (docs/questions.md)": {
            "--fix": option("values of keys of a plan: tp=8,micro_batch=4", action="append"),
            "--max": option("the largest values of keys of a plan: tp=8,micro_batch=4", action="append"),
            "--min": option("the smallest values of keys of a plan: tp=8,micro_batch=4", action="append"),
            "--modes": option("strategies to try: mtp,fsp"),
            "--zero": option("ZeRO stages to try: 0,1"),
            "--no_recompute": flag("no recomputation in the backward"),
            "--memory_gib": option("GiB that a plan may need of each device"),
            "--headroom": option("share of the usable memory to leave free (default 10%%; 0 for all of it)"),
            "--keep_tp_in_node": flag("tensor-parallel groups stay inside a server, or a larger NVLink domain"),
        },
        "task": {
            "--run_all_solu": flag("search every plan"),
            "--plan": option("price this plan instead of the config's: tp=8,pp=2,strategy=msp,..."),
            "--top_k": option(f"plans to show (default {SHOWN}, of which six are printed)", type=whole(1, MOST_SHOWN)),
        },
        "sweeps (docs/questions.md); a comma means a list": {
            "--micro_batch": option("micro-batches: 1,2,4", type=comma_separated(whole(1, MOST_STEP_TOKENS))),
            "--every_node_count": flag("the best plan for every number of nodes up to --world_size"),
            "--jobs": option(
                "processes of this machine that answer the questions (needs dask.distributed; default: this one)",
                type=whole(1, MOST_JOBS),
            ),
            "--scheduler": option(
                "the Dask scheduler whose workers answer them: tcp://HOST:8786 (needs dask.distributed)",
                metavar="ADDRESS",
                type=non_empty,
            ),
            "--rank_by": option(
                "first of the plans that no prediction tells apart: the simplest (default) or the fastest (time); "
                "step, goodput, cost: order of the rows of a sweep",
                choices=(*PLANS_BY, "step", "goodput", "cost"),
            ),
        },
        # Published defaults of what is not given: solver.analysis.goodput.
        "a whole run": {
            "--tokens": option("tokens to train on: 1T, 300B", type=token_count),
            "--price_per_gpu_hour": option("in any currency", type=decimal(0.0, 1e6)),
            "--goodput": flag("count interruptions, with the published defaults below"),
            "--mtbf_gpu_hours": option(
                "hours of one GPU between interruptions (default: Llama 3's)", type=decimal(1e-3, 1e12)
            ),
            "--restart_minutes": option(
                "from an interruption to training (default 10)", type=decimal(0.0, MOST_MINUTES)
            ),
            "--checkpoint_s": option("seconds that training waits for a checkpoint", type=decimal(0.0, 1e6)),
            "--checkpoint_gb_per_s": option(
                "GB/s of the storage, where no seconds are given (default: Llama 3's share per GPU)",
                type=decimal(1e-3, 1e9),
            ),
            "--spare_nodes": option("idle spare nodes (default: one is always available)", type=whole(0, MOST_GPUS)),
            "--repair_hours": option("until a failed node is back, with --spare_nodes", type=decimal(0.0, 1e6)),
        },
        "reasons (a PLAN is tp=8,pp=2,..., or rank=2 of a search)": {
            "--explain": option(
                "take a plan apart: its operations, how its step is put together, memory by stage",
                metavar="PLAN",
                action="append",
            ),
            "--why_not": option(
                "with --run_all_solu: the rules that a plan breaks, and what it loses to the best, term by term",
                metavar="PLAN",
                action="append",
            ),
            "--sensitivity": flag(
                "with --run_all_solu: the best plan with twice the bandwidth between nodes, 40 GB more memory, "
                "products in fp8"
            ),
            "--try": option(
                "with --run_all_solu: the best plan with each of these settings of the job turned, and with all "
                "that help: tensor_parallel.overlap,precision, or auto",
                dest="tried",
                metavar="SWITCHES",
            ),
            "--compare": option("plans side by side", metavar="PLAN", nargs="+", action="extend"),
        },
        "results": {
            "--lang": option("of the answer and of errors (default: as LANG says)", choices=LANGUAGES),
            "--verbose": flag("print everything: all parts of the step, memory and time by plan, what was rejected"),
            "--json": path("write everything to this file; - is standard output"),
            "--csv": path("write the plans shown, or the rows of a sweep, to this file"),
            "--report": option(
                "write everything as one page for a browser, DIR/index.html (needs jinja2)", type=Path, metavar="DIR"
            ),
            "--parquet": path("write every plan that fits, priced, to this file (needs pyarrow)"),
            "--write_cases": path(
                "write the shapes that the plans shown need measured, heaviest first, for gen_profiler_data.py --cases"
            ),
            "--draw_heatmap": flag("draw the rank-by-rank traffic of the plan"),
            "--draw_heatmap_path": option("folder for them", type=Path, default=Path("heatmaps")),
            "--export_simai": path("write the plan as a SimAI workload"),
            "--stage": option("pipeline stages to export: slowest, all, or a number from 0", default="slowest"),
            "--export_bundle": path("folder for workload, topology and SimAI commands"),
            **{
                f"--export_{name}": path(f"write the plan {written.how} to this file")
                for name, written in WRITTEN.items()
            },
            "--rank": option("which of the ranked plans to export (default 1)", type=whole(1, MOST_SHOWN), default=1),
            "--force": flag("write launch files of a plan that does not fit, with a warning"),
            "--strict_export": flag("refuse to export what the format cannot express"),
        },
    }


def constraint_options(options: argparse.Namespace) -> dict[str, object]:
    """Returns the constraints of a command line, as written; ConfigError for keys and values that there are not."""
    constraints: dict[str, object] = {}
    for verb in BY_KEY:
        if (texts := getattr(options, verb)) is not None:
            constraints[verb] = parse_settings(",".join(texts), keys_of(verb), f"--{verb}")
    for key, setting in constraint_settings().items():
        value = getattr(options, key)
        if key == "rank_by" and value not in PLANS_BY:
            continue
        if isinstance(setting.kind, Flag):
            constraints |= {key: True} if value else {}
        elif value is not None:
            text = value.replace(",", "+") if isinstance(setting.kind, Several) else value
            constraints[key] = setting.read(text, f"--{key}")
    return constraints


def is_sweep(options: argparse.Namespace) -> bool:
    """Returns whether any option is a list."""
    sweepable = ("config", "world_size", "global_batch_size", "seq_len", "cluster", "framework")
    several = any(len(getattr(options, name) or ()) > 1 for name in sweepable)
    return several or options.micro_batch is not None or options.every_node_count


def sweep_axes(options: argparse.Namespace) -> dict[str, Sequence[object]]:
    """Returns what the command line gives a list of, or requests for every number of nodes; {} for one question.

    Raises ConfigError for a list without --run_all_solu, or beside options that are about one plan.
    """
    axes: dict[str, Sequence[object]] = {
        axis: getattr(options, option)
        for axis, option in LISTS.items()
        if getattr(options, option) and (len(getattr(options, option)) > 1 or axis == "micro_batch")
    }
    if options.every_node_count:
        axes["world_size"] = options.world_size
    if axes and not options.run_all_solu:
        axis, values = next(iter(axes.items()))
        raise _refused(LISTS[axis], ",".join(map(str, values)), "a list with --run_all_solu alone")
    if axes:
        for name in (*OF_ONE_PLAN, *(name for name in vars(options) if name.startswith("export_"))):
            if getattr(options, name):
                raise _refused(name, getattr(options, name), "one question, not lists of them")
    return axes


def sweep_workers(options: argparse.Namespace) -> str | int | None:
    """Returns who answers the questions of a sweep: a scheduler's workers, so many processes, or None, this one.

    Raises ConfigError for both, and for a single question.
    """
    if options.scheduler and options.jobs:
        raise _refused("jobs", options.jobs, "processes of this machine, or --scheduler: not both")
    workers: str | int | None = options.scheduler or options.jobs
    if workers and not is_sweep(options):
        raise _refused("jobs" if options.jobs else "scheduler", workers, "for sweeps, as with --world_size 64,128")
    return workers


def _refused(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(where=f"--{name}", key=name, value=value, allowed=allowed)


def run_options(options: argparse.Namespace) -> "tuple[Reliability | None, RunTerms | None]":
    """Returns failures and length of a run as specified, None where nothing is; raises ConfigError for options that lack
    what they need."""
    failures = {name: getattr(options, name) for name in OF_FAILURES if getattr(options, name) is not None}
    goodput = bool(failures) or options.goodput or options.rank_by == "goodput"
    # Each of these has no effect without the other.
    if (options.spare_nodes is None) != (options.repair_hours is None):
        raise _refused("spare_nodes", options.spare_nodes, "together with --repair_hours")
    if options.tokens is None and options.price_per_gpu_hour is not None:
        raise _refused("price_per_gpu_hour", options.price_per_gpu_hour, "together with --tokens")
    if not goodput and options.tokens is None:
        return None, None
    from solver.analysis.goodput import Reliability, RunTerms

    # Each option in the unit of the class: minutes in seconds, GB/s in bytes/s.
    names = {"mtbf_gpu_hours": "mtbf_hours", "restart_minutes": "restart_s", "checkpoint_gb_per_s": "storage_bandwidth"}
    scales = {"restart_minutes": 60.0, "checkpoint_gb_per_s": 1e9}
    values = {names.get(name, name): scales.get(name, 1) * value for name, value in failures.items()}
    terms = None
    if options.tokens is not None:
        terms = RunTerms(
            tokens=options.tokens, price_per_gpu_hour=options.price_per_gpu_hour, spare_nodes=options.spare_nodes or 0
        )
    return Reliability(**values) if goodput else None, terms


def named_plans(options: argparse.Namespace) -> dict[str, "tuple[NamedPlan, ...]"]:
    """Returns the plans that --explain, --why_not and --compare name, by option; raises ConfigError for what is no
    plan, and for what needs a search where none is requested."""
    if options.why_not and not options.run_all_solu:
        raise _refused("why_not", options.why_not, "with --run_all_solu, whose best plan wins")
    if options.sensitivity and not options.run_all_solu:
        raise _refused("sensitivity", True, "with --run_all_solu, whose best plan it changes")
    if options.tried and not options.run_all_solu:
        raise _refused("try", options.tried, "with --run_all_solu, whose best plan it changes")
    if options.compare and not 2 <= len(options.compare) <= MOST_COMPARED:
        raise _refused("compare", options.compare, f"2 to {MOST_COMPARED} plans")
    if not (options.explain or options.why_not or options.compare):
        return {}
    from solver.analysis.named_plans import named_plan

    num_ranked = (options.top_k or SHOWN) if options.run_all_solu else 0
    return {
        name: tuple(named_plan(text, f"--{name}", num_displayed=num_ranked) for text in getattr(options, name) or ())
        for name in ("explain", "why_not", "compare")
    }
