"""Do the constants between nodes hold for a source that they were not fitted to?

    python benchmarks/multinode_held_out.py --runs FILE [--steps N]

FILE as for benchmarks/multinode_accuracy.py, with a column ``source``. Prints the constants of
profdb.modelled.network.links that all good runs choose, then, for each source, what its runs score when the others
choose. Takes a minute.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.modelled_held_out import Constant  # noqa: E402
from benchmarks.multinode_accuracy import Run, read_runs, runs_of, told  # noqa: E402
from profdb.modelled.network import links  # noqa: E402
from spec.arrays import FloatArray  # noqa: E402
from spec.errors import ProfileError, UserError  # noqa: E402
from spec.units import MIB  # noqa: E402

CONSTANTS = (
    Constant(module=links, name="NETWORK_START_S", low=0.0, high=40e-6),
    Constant(module=links, name="NVLS_TREE_START_S", low=0.0, high=200e-6),
)
GRID = 21


def main() -> int:
    """Print one line for each source; 2 when the file cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="CSV file of nccl-tests runs")
    parser.add_argument("--steps", type=int, default=2, help="turns over the constants of each fit")
    options = parser.parse_args()
    try:
        rows = read_runs(options.runs)
        if "source" not in rows:
            raise ProfileError(f"--runs {options.runs}: no column source")
        runs, _ = runs_of(rows[rows.quality == "good"])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_line("all runs", fitted(runs, options.steps), runs)
    sources = sorted({run.rows.source.iloc[0] for run in runs})
    if len(sources) == 1:
        print("one source alone: none left to choose the constants for it")
        return 0
    for source in sources:
        others = [run for run in runs if run.rows.source.iloc[0] != source]
        kept = [run for run in runs if run.rows.source.iloc[0] == source]
        print_line(source, fitted(others, options.steps), kept)
    return 0


def print_line(name: str, values: FloatArray, runs: Sequence[Run]) -> None:
    """Score and constants."""
    shown = " ".join(f"{one.name}={value:.3g}" for one, value in zip(CONSTANTS, values, strict=True))
    print(f"{name[:60]:60} {len(runs):3d} runs  |log| {score(values, runs):.3f}   {shown}", flush=True)


def fitted(runs: Sequence[Run], steps: int) -> FloatArray:
    """The constants that suit ``runs`` best, one after another on a grid of their ranges."""
    best = np.array([getattr(one.module, one.name) for one in CONSTANTS])
    for _ in range(steps):
        for place, one in enumerate(CONSTANTS):
            trials = []
            for value in np.linspace(one.low, one.high, GRID):
                trial = best.copy()
                trial[place] = value
                trials.append((score(trial, runs), tuple(trial)))
            best = np.array(min(trials)[1])
    return best


def score(values: FloatArray, runs: Sequence[Run]) -> float:
    """Mean |log error| of each run's halves at 1 MiB, then over a source's runs, then over sources: a long series
    of one author counts no more than another's single run."""
    patches = [
        patch.object(one.module, one.name, float(value)) for one, value in zip(CONSTANTS, values, strict=True)
    ]
    for change in patches:
        change.start()
    try:
        rows = told(runs)
    finally:
        patch.stopall()
    halves = rows.assign(size=rows.log_error.abs(), large=rows.bytes >= MIB)
    by_run = halves.groupby(["source", "run", "large"])["size"].mean()
    return float(by_run.groupby(level="source").mean().mean())


if __name__ == "__main__":
    sys.exit(main())
