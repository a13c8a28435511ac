"""The options of the verbs ``run``, ``suite``, ``analyse`` and ``aiob``; no torch, so that --help is quick."""

import argparse
from pathlib import Path

from spec.program.limits import MOST_COUNT, MOST_EPOCHS, MOST_GPUS, MOST_SEQUENCE_TOKENS, MOST_STEP_TOKENS
from spec.program.parser import decimal, whole
from spec.readers.config_flags import add_config
from workload.traffic.ranks import DEFAULT_ORDER

MOST_SECONDS = 1e6
DEGREES = ("tp", "cp", "ep", "etp", "pp")
COMPUTE = ("real", "sleep", "skip")
DTYPES = ("bf16", "fp16", "fp32")


def add_run(verb: argparse.ArgumentParser) -> None:
    """All options of ``run``."""
    verb.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="general workload (CSV), or one for each pipeline stage (one whose name ends in -stage0 finds its likes)",
    )
    plan = verb.add_argument_group("a plan instead of files")
    plan.add_argument("--plan", help="tp=2,pp=2,micro_batch=1,... as simulation_train_formulaic.py takes it")
    add_config(plan)
    plan.add_argument(
        "--global_batch_size", type=whole(1, MOST_STEP_TOKENS), help="tokens a step (default: the config's)"
    )
    plan.add_argument("--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), help="default: the config's")
    plan.add_argument("--framework", help="preset (default: the config's)")
    plan.add_argument("--profile", type=Path, help="times of computation, for --compute sleep")
    plan.add_argument("--cluster", help="sheet of configs/clusters (default: the profile's)")
    for axis in DEGREES:
        verb.add_argument(
            f"--{axis}",
            type=whole(1, MOST_GPUS),
            help="ranks (default: what the workload's arguments say, else 1)",
        )
    verb.add_argument(
        "--order", default=DEFAULT_ORDER, help=f"of ranks, fastest first (default {DEFAULT_ORDER})"
    )
    _how(verb)


def add_suite(verb: argparse.ArgumentParser) -> None:
    """All options of ``suite``."""
    verb.add_argument("suite", type=Path, help="TOML file of workloads, such as configs/suites/aicb.toml")
    _how(verb)


def _how(verb: argparse.ArgumentParser) -> None:
    """How to run, whatever is run."""
    how = verb.add_argument_group("how to run")
    how.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto wants a GPU")
    how.add_argument(
        "--compute",
        choices=COMPUTE,
        default=COMPUTE[0],
        help="computation as products of its shapes, as a sleep of the file's time, or left out (default real)",
    )
    how.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of products (default bf16)")
    how.add_argument(
        "--epoch_num",
        type=whole(1, MOST_EPOCHS),
        help="iterations; beyond those of the file its last again (default: as many as it has)",
    )
    how.add_argument("--warmup", type=whole(0, MOST_EPOCHS), default=1, help="iterations before (default 1)")
    how.add_argument(
        "--timeout_s",
        type=decimal(1e-3, MOST_SECONDS),
        default=120.0,
        help="longest wait of one rank for another (default 120)",
    )
    how.add_argument("--results", type=Path, default=Path("results"), help="folder (default results)")
    how.add_argument("--quiet", action="store_true", help="the summary alone, no line an operation")


def add_analyse(verb: argparse.ArgumentParser) -> None:
    """All options of ``analyse``."""
    verb.add_argument("log", type=Path, help="log of a run, ours or AICB's")
    verb.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="draw into it: three PNG and one HTML page"
    )


def add_aiob(verb: argparse.ArgumentParser) -> None:
    """All options of ``aiob``."""
    add_config(verb, required=True)
    verb.add_argument("--tp", type=whole(1, MOST_GPUS), default=1, help="tensor-parallel ranks (default 1)")
    verb.add_argument("--ep", type=whole(1, MOST_GPUS), default=1, help="expert-parallel ranks (default 1)")
    verb.add_argument(
        "--micro_batch", type=whole(1, MOST_COUNT), default=1, help="sequences a micro-batch (default 1)"
    )
    verb.add_argument(
        "--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), help="tokens a sequence (default: the config's)"
    )
    verb.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto wants a GPU")
    verb.add_argument("--output", type=Path, default=Path("aiob.txt"), help="AICB's text (default aiob.txt)")
    verb.add_argument(
        "--compile", action="store_true", help="also time the activation function, fused by torch.compile"
    )
    verb.add_argument("--into", type=Path, help="profile of this GPU to merge the samples into")
