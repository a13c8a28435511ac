"""Measure this cluster: torchrun --nproc-per-node=8 gen_profiler_data.py -> prof_data/data.pt."""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts, without_interrupts

quiet_interrupts()

import argparse
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spec.errors import ConfigError
from spec.files import shipped_folder
from spec.program.command import OneLineParser, decimal, whole
from spec.program.kinds import MOST_BYTES, MOST_GPUS, MOST_MINUTES, MOST_SEQUENCE_TOKENS
from spec.readers.read_config import ASSUME

if TYPE_CHECKING:
    from profdb.sample import ProfileDatabase
    from profiler.distributed.rank_layout import RankLayout
    from profiler.profiling_run import RunOptions

BEGAN = time.monotonic()
ROOT = shipped_folder()
PROGRAM = "gen_profiler_data.py"
MOST_SECONDS = 1e6
MODEL_RANKS = (1, 2, 4, 8)
"""Tensor-parallel degrees of --model."""

OF_A_MODEL = ("tp", "seq_len", "assume")
OF_MEASURING = (
    "dry_run",
    "smoke",
    "resume",
    "cases",
    "model",
    "only",
    "budget_minutes",
    "max_size",
    "compile",
)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def byte_count(text: str) -> int:
    """Bytes of ``64MiB``, ``1G``, ``4096``."""
    match = re.fullmatch(r"([0-9]{1,16})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    size = int(match.group(1)) * UNITS[match.group(2)] if match else 0
    if not 0 < size <= MOST_BYTES:
        raise ValueError(f"{text[:40]!r} is no size (allowed: 4096, 64KiB, 16MiB, 1GiB)")
    return size


def number_list(text: str) -> tuple[int, ...]:
    """Returns ``1,2,4,8`` as numbers."""
    if not re.fullmatch(r"[1-9][0-9]{0,4}(,[1-9][0-9]{0,4}){0,31}", text):
        raise ValueError(f"{text[:40]!r} is no list of whole numbers above 0 (1,2,4,8)")
    return tuple(int(part) for part in text.split(","))


def word_list(text: str) -> tuple[str, ...]:
    """Returns ``linear,attention`` as words."""
    return tuple(part.strip() for part in text.split(","))


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns what reads the flags typed after ``program``."""
    parser = OneLineParser(prog=program, description=__doc__, version=True)
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        help="profile to merge into (default: prof_data/data.pt where that is of this GPU or absent, else a file of "
        "the GPU's name; prof_data/cpu.pt with --device cpu; prof_data/SHEET.pt with --from_cluster)",
    )
    add("--from_cluster", metavar="SHEET", help="model the profile from configs/clusters/SHEET.toml")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto")
    add("--only", type=word_list, default=(), help="benchmarks, e.g. linear,attention,all_reduce or comm")
    add(
        "--budget_minutes",
        type=decimal(1e-3, MOST_MINUTES),
        default=0.0,
        help="minutes for all of it, fits and pictures too",
    )
    add("--max_size", type=byte_count, default=0, help="largest array, e.g. 64MiB")
    before = parser.add_mutually_exclusive_group()
    before.add_argument("--dry_run", action="store_true", help="say what would be measured and for about how long")
    before.add_argument("--smoke", action="store_true", help="one small case of every kind of kernel, kept nowhere")
    add("--resume", action="store_true", help="measure only what the profile does not hold yet")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--model", type=Path, help="measure the shapes of this model config as well, before all else")
    add("--assume", **ASSUME)
    add(
        "--seq_len",
        type=whole(1, MOST_SEQUENCE_TOKENS),
        help="tokens a sequence of --model (default: the config's)",
    )
    chosen.add_argument(
        "--cases",
        type=Path,
        help="measure exactly the cases of this file, as simulation_train_formulaic.py --write_cases writes them",
    )
    add("--tp", type=number_list, help="tensor-parallel degrees of --model (1,2,4,8)")
    fusing = parser.add_mutually_exclusive_group()
    fusing.add_argument(
        "--compile",
        action="store_true",
        default=None,
        help="fuse by torch.compile what torch runs as several kernels (default on a GPU)",
    )
    fusing.add_argument(
        "--no_compile", dest="compile", action="store_false", help="leave out what only a compiler fuses"
    )
    add(
        "--ranks_per_domain",
        type=whole(1, MOST_GPUS),
        default=0,
        help="GPUs that NVLink joins (default: of a node)",
    )
    add(
        "--timeout_s",
        type=decimal(1e-3, MOST_SECONDS),
        default=120.0,
        help="longest wait of one rank for another",
    )
    pictures = parser.add_mutually_exclusive_group()
    pictures.add_argument(
        "--pics", action="store_true", default=None, help="draw (default, but not with --from_cluster)"
    )
    pictures.add_argument("--no_pics", dest="pics", action="store_false", help="draw nothing")
    return parser


def options_of(given: argparse.Namespace, layout: "RankLayout") -> "RunOptions":
    """Returns what the flags say; ConfigError for an unknown benchmark."""
    from profdb.store.case_file import read_cases
    from profiler.cases.model_cases import ModelRequest
    from profiler.cases.sweep_plan import check_names
    from profiler.profiling_run import RunOptions

    return RunOptions(
        output=given.output or chosen_output(given.device, layout),
        root=ROOT,
        device=given.device,
        only=check_names(given.only),
        max_bytes=given.max_size,
        budget_s=60.0 * given.budget_minutes,
        resume=given.resume,
        compiled=given.compile,
        domain_ranks=given.ranks_per_domain,
        timeout_s=given.timeout_s,
        model=given.model
        and ModelRequest(path=given.model, ranks=given.tp or MODEL_RANKS, assume=given.assume, seq_len=given.seq_len),
        cases=read_cases(given.cases) if given.cases else None,
        began=BEGAN,
    )


def chosen_output(device: str, layout: "RankLayout") -> Path:
    """Returns the profile of this machine; ConfigError without the device."""
    from profiler.device import choose_device
    from profiler.machine import find_hardware_spec
    from profiler.output_file import default_output

    chosen = choose_device(device, layout)
    hardware = find_hardware_spec(chosen.name, chosen.kind, ROOT)
    return default_output(chosen.kind, chosen.name, hardware.cluster if hardware else None)


def measure(given: argparse.Namespace, layout: "RankLayout") -> int:
    """Runs and report; the exit status."""
    from profiler.profiling_run import report_lines, run_profiling
    from profiler.rehearsal import dry_run, smoke

    options = options_of(given, layout)
    if given.dry_run or given.smoke:
        lines = dry_run(options, layout) if given.dry_run else smoke(options, layout)
        if lines:
            print("\n".join(lines))
        return 0
    given.output = options.output
    report = run_profiling(options, layout)
    if report is not None:
        print("\n".join(report_lines(report, options.output)))
        draw_pictures(options.output, report.profile, wanted=given.pics is not False and bool(report.profile.samples))
    return 0


def draw_pictures(output: Path, profile: "ProfileDatabase", *, wanted: bool) -> None:
    """Draws under pics/ beside data.pt, and under pics/NAME/ beside another profile; nothing with --no_pics."""
    if wanted:
        from profiler.pictures.plots import draw_profile

        folder = output.parent / "pics" / ("" if output.stem == "data" else output.stem)
        print(f"{len(draw_profile(profile, folder))} pictures in {folder}")


def model(given: argparse.Namespace) -> int:
    """Makes a profile of a hardware spec, which needs neither a device nor other ranks; the exit status."""
    from profiler.modelled_run import model_profile

    made = model_profile(given.from_cluster, given.output, root=ROOT)
    print(made.message)
    draw_pictures(made.output, made.profile, wanted=bool(given.pics))
    return 0


def modelling_interrupted(given: argparse.Namespace) -> str:
    """Returns what is left behind after Ctrl-C."""
    return f"interrupted; {given.output or 'the profile'} is as it was, or complete"


def interrupted(given: argparse.Namespace, layout: "RankLayout") -> str:
    """Returns what is left behind after Ctrl-C, said by rank 0."""
    if layout.rank:
        return ""
    kept = f"{given.output}.journal" if given.output else "the profile's journal"
    return f"interrupted; what was measured is in {kept}, go on with --resume"


def in_layout(given: argparse.Namespace) -> int:
    """Returns the exit status of this rank."""
    with without_interrupts():
        from profiler.distributed.rank_exit import status_in_ranks

    return status_in_ranks(lambda layout: measure(given, layout), interrupted=lambda layout: interrupted(given, layout))


def check_together(given: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that would be passed over without another, or beside it."""
    lonely = [(name, "only with --model") for name in OF_A_MODEL if not given.model]
    if given.from_cluster:
        lonely += [(name, "not with --from_cluster, which measures nothing") for name in OF_MEASURING]
    for name, allowed in lonely:
        if getattr(given, name):
            raise ConfigError(where="command line", key=f"--{name}", value=getattr(given, name), allowed=allowed)


def done(given: argparse.Namespace) -> int:
    """Returns the exit status of modelling, or of this rank of measuring."""
    check_together(given)
    if given.from_cluster:
        return exit_status(lambda: model(given), interrupted=lambda: modelling_interrupted(given))
    return in_layout(given)


def main(words: list[str], program: str = PROGRAM) -> int:
    """Parses, call, print; the exit status."""
    return exit_status(lambda: done(options_parser(program).parse_args(words)))
