"""The verb ``train``: its options, and what runs it. torch is imported when it runs, so that --help is quick."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from runner.run_flags import MOST_SECONDS
from spec.presets.registry import PRESETS
from spec.program.ending import uninterrupted
from spec.program.limits import MOST_EPOCHS, MOST_SEQUENCE_TOKENS, MOST_STEP_TOKENS
from spec.program.parser import decimal, whole
from spec.readers.config_flags import add_config
from spec.settings.job import DEFAULT_FRAMEWORK, job_settings
from spec.settings.setting import typed_values

if TYPE_CHECKING:
    from profiler.ranks.rank_layout import RankLayout

DTYPES = ("bf16", "fp32")


def add_train(verb: argparse.ArgumentParser) -> None:
    """All options of ``train``, called as simulation_train_formulaic.py has them where it has them."""
    what = verb.add_argument_group("what to train")
    add_config(what, required=True)
    what.add_argument("--plan", help="tp=2,pp=2,... (default: the config's); dp=N is checked, it follows")
    batch = what.add_mutually_exclusive_group()
    batch.add_argument(
        "--global_batch_size",
        type=whole(1, MOST_STEP_TOKENS),
        help="tokens of a step (default: the config's batch)",
    )
    batch.add_argument(
        "--micro_batches",
        type=whole(1, MOST_STEP_TOKENS),
        help="micro-batches of a step on each rank, instead",
    )
    what.add_argument(
        "--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), help="tokens per sequence (default: the config's)"
    )
    what.add_argument(
        "--framework", help=f"{', '.join(PRESETS)} (default: the config's, else {DEFAULT_FRAMEWORK})"
    )
    what.add_argument(
        "--job",
        action="append",
        default=[],
        help="settings of the job (docs/configs.md): context_parallel=all_gather,...",
    )
    what.add_argument("--dtype", choices=DTYPES, help="of the products (default: the job's)")
    where = verb.add_argument_group("on what")
    where.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto wants a GPU")
    where.add_argument(
        "--cluster",
        help="sheet of configs/clusters with the peak for the MFU (default: by the device's name)",
    )
    how = verb.add_argument_group("how to run")
    how.add_argument("--steps", type=whole(1, MOST_EPOCHS), default=10, help="steps timed (default 10)")
    how.add_argument("--warmup", type=whole(0, MOST_EPOCHS), default=3, help="steps before (default 3)")
    how.add_argument("--compile", action="store_true", help="compile the blocks by torch.compile")
    how.add_argument(
        "--timeout_s",
        type=decimal(1e-3, MOST_SECONDS),
        default=120.0,
        help="longest wait of one rank for another (default 120)",
    )
    out = verb.add_argument_group("results")
    out.add_argument("--json", type=Path, help="write everything to this file")
    out.add_argument(
        "--trace", type=Path, metavar="DIR", help="afterwards run steps under torch.profiler, a trace a rank"
    )
    out.add_argument("--results", type=Path, help="folder for NAME_train.json and NAME_steps.csv")


def train(options: argparse.Namespace, root: Path) -> int:
    """Time training steps of the reference transformer."""
    with uninterrupted():
        from profiler.ranks.ending import status_in_ranks
        from runner.training.asking import Typed
        from runner.training.run import TrainOptions, run_training

    typed = Typed(
        root=root,
        config=options.config,
        assume=options.assume,
        plan=options.plan,
        global_batch_tokens=options.global_batch_size,
        micro_batches=options.micro_batches,
        seq_len=options.seq_len,
        framework=options.framework,
        job=typed_values(",".join(options.job), job_settings(), "--job") if options.job else {},
        dtype=options.dtype,
        cluster=options.cluster,
        compiled=options.compile,
    )
    asked = TrainOptions(
        typed=typed,
        device=options.device,
        steps=options.steps,
        warmup=options.warmup,
        timeout_s=options.timeout_s,
        json=options.json,
        results=options.results,
        trace=options.trace,
    )

    def work(layout: "RankLayout") -> int:
        for line in run_training(asked, layout):
            print(line)
        return 0

    return status_in_ranks(work, interrupted=lambda layout: "" if layout.rank else "interrupted")
