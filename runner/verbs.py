"""The verbs of run_workload.py that this package does: their options, and what runs them.

What needs torch is imported when a verb runs.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.replay.stage_files import Typed, read_work
from runner.run_flags import DEGREES, add_analyse, add_run
from spec.program.ending import uninterrupted

if TYPE_CHECKING:
    from profiler.ranks.rank_layout import RankLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """``run`` takes the options and the project folder, and gives the exit status."""

    what: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Path], int]


def run(options: argparse.Namespace, root: Path) -> int:
    """Run a workload on the processes of this launch."""
    with uninterrupted():
        from profiler.ranks.ending import status_in_ranks
        from runner.replay.operations import Compute
        from runner.replay.run import RunOptions, run_workload

    typed = Typed(degrees={axis: getattr(options, axis) for axis in DEGREES}, order=options.order)
    asked = RunOptions(
        read=lambda world: read_work(options.files, typed, world),
        results=options.results,
        device=options.device,
        compute=Compute(options.compute),
        dtype=options.dtype,
        epochs=options.epoch_num,
        warmup=options.warmup,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
    )

    def work(layout: "RankLayout") -> int:
        for line in run_workload(asked, layout):
            print(line)
        return 0

    return status_in_ranks(
        work, interrupted=lambda layout: "" if layout.rank else "interrupted; what was logged is kept"
    )


def analyse(options: argparse.Namespace, root: Path) -> int:
    """Summarise a log, name what stands out, and draw it."""
    with uninterrupted():
        from runner.logs.analysis import analysed

    for line in analysed(options.log, options.pictures):
        print(line)
    return 0


VERBS: dict[str, Verb] = {
    "run": Verb(what="run a general workload on real process groups (torchrun)", add_flags=add_run, run=run),
    "analyse": Verb(
        what="summarise the log of a run, ours or AICB's; draw it", add_flags=add_analyse, run=analyse
    ),
}
