"""Measure this cluster: torchrun --nproc-per-node=8 gen_profiler_data.py -> prof_data/data.pt."""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts, without_interrupts

quiet_interrupts()

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spec.errors import ConfigError
from spec.files import shipped_folder
from spec.program.command import OneLineParser, byte_count, comma_separated, decimal, non_empty, whole
from spec.program.kinds import MOST_GPUS, MOST_MINUTES, MOST_SEQUENCE_TOKENS
from spec.readers.read_config import ASSUME

if TYPE_CHECKING:
    from profdb.sample import ProfileDatabase
    from profiler.distributed.rank_layout import RankLayout
    from profiler.profiling_run import RunOptions

BEGAN = time.monotonic()
ROOT = shipped_folder()
PROGRAM = "gen_profiler_data.py"
MOST_SECONDS = 1e6
MODEL_RANKS, MOST_TP = (1, 2, 4, 8), 99_999
"""Tensor-parallel degrees of --model, and the largest that one may ask for."""

OF_A_MODEL = ("tp", "seq_len", "assume")


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of the options after ``program``."""
    parser = OneLineParser(prog=program, description=__doc__, version=True)
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        help="profile to merge into (default: prof_data/data.pt where that is of this GPU or absent, else a file of "
        "the GPU's name; prof_data/cpu.pt with --device cpu)",
    )
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    add(
        "--only",
        type=comma_separated(non_empty),
        default=(),
        help="benchmarks, e.g. linear,attention,all_reduce or comm",
    )
    minutes = decimal(1e-3, MOST_MINUTES)
    add("--budget_minutes", type=minutes, default=0.0, help="minutes for all of it, fits and pictures too")
    add("--max_size", type=byte_count, default=0, help="largest array, e.g. 64MiB")
    before = parser.add_mutually_exclusive_group()
    before.add_argument("--dry_run", action="store_true", help="print what would be measured, and for about how long")
    before.add_argument("--smoke", action="store_true", help="measure a small case of every kind, and save none")
    add("--resume", action="store_true", help="measure only what the profile lacks")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--model", type=Path, help="measure the shapes of this model config as well, before all else")
    add("--assume", **ASSUME)
    add("--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), help="tokens a sequence of --model (default: the config's)")
    shapes.add_argument(
        "--cases",
        type=Path,
        help="measure exactly the cases of this file, as simulation_train_formulaic.py --write_cases writes them",
    )
    add("--tp", type=comma_separated(whole(1, MOST_TP)), help="tensor-parallel degrees of --model (1,2,4,8)")
    fusing = parser.add_mutually_exclusive_group()
    fusing.add_argument(
        "--compile",
        action="store_true",
        default=None,
        help="fuse by torch.compile what torch runs as several kernels (default on a GPU)",
    )
    fusing.add_argument("--no_compile", dest="compile", action="store_false", help="nothing that a compiler fuses")
    add("--ranks_per_domain", type=whole(1, MOST_GPUS), default=0, help="GPUs that NVLink joins (default: of a node)")
    add("--timeout_s", type=decimal(1e-3, MOST_SECONDS), default=120.0, help="longest wait of one rank for another")
    pictures = parser.add_mutually_exclusive_group()
    pictures.add_argument("--pics", action="store_true", default=True, help="draw (default)")
    pictures.add_argument("--no_pics", dest="pics", action="store_false", help="draw nothing")
    return parser


def options_of(options: argparse.Namespace, layout: "RankLayout") -> "RunOptions":
    """Returns the settings of a run; ConfigError for an unknown benchmark."""
    from profdb.store.case_file import read_cases
    from profiler.cases.model_cases import ModelRequest
    from profiler.cases.sweep_plan import check_names
    from profiler.profiling_run import RunOptions

    return RunOptions(
        output=options.output or default_path(options.device, layout),
        root=ROOT,
        device=options.device,
        only=check_names(options.only),
        max_bytes=options.max_size,
        budget_s=60.0 * options.budget_minutes,
        resume=options.resume,
        compiled=options.compile,
        domain_ranks=options.ranks_per_domain,
        timeout_s=options.timeout_s,
        model=options.model
        and ModelRequest(
            path=options.model, ranks=options.tp or MODEL_RANKS, assume=options.assume, seq_len=options.seq_len
        ),
        cases=read_cases(options.cases) if options.cases else None,
        began=BEGAN,
    )


def default_path(device: str, layout: "RankLayout") -> Path:
    """Returns the profile of this machine; ConfigError without the device."""
    from profiler.device import choose_device
    from profiler.machine import default_output, find_hardware_spec

    selected = choose_device(device, layout)
    hardware = find_hardware_spec(selected.name, selected.kind, ROOT)
    return default_output(selected.kind, selected.name, hardware.cluster if hardware else None)


def measure(options: argparse.Namespace, layout: "RankLayout") -> int:
    """Measures and reports; returns the exit status."""
    from profiler.profiling_run import report_lines, run_profiling
    from profiler.rehearsal import dry_run, smoke

    run = options_of(options, layout)
    if options.dry_run or options.smoke:
        lines = dry_run(run, layout) if options.dry_run else smoke(run, layout)
        if lines:
            print("\n".join(lines))
        return 0
    options.output = run.output
    report = run_profiling(run, layout)
    if report is not None:
        print("\n".join(report_lines(report, run.output)))
        draw_pictures(run.output, report.profile, enabled=options.pics and bool(report.profile.samples))
    return 0


def draw_pictures(output: Path, profile: "ProfileDatabase", *, enabled: bool) -> None:
    """Draws into pics/ next to data.pt, into pics/NAME/ next to another profile, unless --no_pics is set."""
    if enabled:
        from profiler.pictures.plots import draw_profile

        folder = output.parent / "pics" / ("" if output.stem == "data" else output.stem)
        print(f"{len(draw_profile(profile, folder))} pictures in {folder}")


def interrupted(options: argparse.Namespace, layout: "RankLayout") -> str:
    """Returns the state of the files after Ctrl-C, on rank 0."""
    if layout.rank:
        return ""
    journal = f"{options.output}.journal" if options.output else "the profile's journal"
    return f"interrupted; what was measured is in {journal}, go on with --resume"


def run_rank(options: argparse.Namespace) -> int:
    """Returns the exit status of this rank."""
    with without_interrupts():
        from profiler.distributed.rank_exit import status_in_ranks

    return status_in_ranks(
        lambda layout: measure(options, layout), interrupted=lambda layout: interrupted(options, layout)
    )


def check_combinations(options: argparse.Namespace) -> None:
    """Raises ConfigError for an option that has no effect without another."""
    for name in OF_A_MODEL:
        if (value := getattr(options, name)) and not options.model:
            raise ConfigError(where="command line", key=f"--{name}", value=value, allowed="only with --model")


def run(options: argparse.Namespace) -> int:
    """Returns the exit status of this rank."""
    check_combinations(options)
    return run_rank(options)


def main(words: list[str], program: str = PROGRAM) -> int:
    """Runs one command line after ``program``; returns the exit status."""
    return exit_status(lambda: run(options_parser(program).parse_args(words)))
