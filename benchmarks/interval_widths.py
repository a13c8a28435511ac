"""Do the widths of the 80 % interval hold for datasets that they were not fitted to?

    python benchmarks/interval_widths.py --measurements PATH [PATH ...] --predictions PRED.csv

PATH as for benchmarks/accuracy.py, PRED.csv as written by it. Prints the share of each dataset's steps inside and above
the interval and its half-width: with the widths in use (solver.problem.interval), with widths fitted to all datasets, and
with widths fitted to the other datasets; then the widths. Takes three minutes.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.published_rows import UNEVEN_BATCH, PublishedRow, parse_row, read_rows, rows_of  # noqa: E402
from benchmarks.row_scores import GAP_STD, measured_step_s  # noqa: E402
from solver.estimate import STEP_PARTS  # noqa: E402
from solver.problem.interval import EIGHTY_PERCENT, UNPRICED, WIDTHS, causes  # noqa: E402
from solver.times.step_parts import CARRIED  # noqa: E402
from spec.arrays import FloatArray, floats  # noqa: E402
from spec.program.command import exit_status  # noqa: E402

GAPS = "gaps"
NAMES = (*WIDTHS, GAPS)
IN_USE = np.array([*WIDTHS.values(), GAP_STD])
FEWEST_ROWS = 9
"""Fewest rows of a dataset that widths are fitted to."""
SCORED_ROWS = 12
AIMED = (0.74, 0.86)
"""Shares inside the interval without a penalty in the fit: 70 to 90 %, narrowed because datasets have few rows."""
ROUNDED = 0.01
"""Smoothing of the step from inside to outside, in log(measured / predicted)."""
SCORE_WEIGHT = 0.2
STARTS = (1.0, 0.3)
"""Multiples of the widths in use from which the search starts, which finds a local minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDataset:
    """Predicted rows of one dataset: log(measured / predicted), and the shares of NAMES for each row."""

    ratio: FloatArray
    shares: FloatArray


def read_priced(measurements: Sequence[Path], predictions: Path) -> dict[str, PricedDataset]:
    """The predicted rows by dataset. Raises ConfigError for files that cannot be read."""
    lines = rows_of(predictions, PublishedRow, ("dataset", "row_id"), "--predictions")
    priced = {(line.dataset, line.row_id): line.cells for line in lines}
    result: dict[str, list[tuple[float, list[float]]]] = {}
    for row in read_rows(measurements):
        line = priced.get((row.dataset, row.row_id))
        measured_s = measured_step_s(row)
        if line is None or not line["pred_step_s"] or not measured_s:
            continue
        ratio = float(np.log(measured_s / float(line["pred_step_s"])))
        result.setdefault(row.dataset, []).append((ratio, shares_of(row, line)))
    return {
        name: PricedDataset(ratio=np.array([ratio for ratio, _ in rows]), shares=np.array([each for _, each in rows]))
        for name, rows in sorted(result.items())
    }


def shares_of(row: PublishedRow, line: Mapping[str, str]) -> list[float]:
    """A row's share of each of NAMES, from its line of the predictions file."""
    parts = {name: floats(float(line[f"part_{name}"])) for name in STEP_PARTS}
    error_s, carried_s = (
        floats(float(line[column]) / float(line["pred_step_s"])) for column in ("standard_error_s", "carried_error_s")
    )
    std_s = {"curves": np.sqrt(np.maximum(error_s**2 - carried_s**2, 0.0)), CARRIED: carried_s}
    shares = causes(parse_row(row, ROOT).job, parts, std_s)
    missing = {word for word in line["missing"].split("; ") if word and word != UNEVEN_BATCH}
    return [*(float(shares[cause][0]) for cause in WIDTHS), float(np.sqrt(len(missing)))]


def bounds(dataset: PricedDataset, chosen: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The bounds of log(measured / predicted); ``chosen`` are the widths of NAMES, then the offset for unmodelled time."""
    reach = EIGHTY_PERCENT * np.sqrt(((dataset.shares * chosen[:-1]) ** 2).sum(axis=1))
    return np.minimum(chosen[-1] - reach, 0.0), chosen[-1] + reach


def chosen_by(datasets: Sequence[PricedDataset]) -> FloatArray:
    """The widths that bring the shares inside to AIMED with the least mean interval score (Gneiting and Raftery 2007,
    eq. 43), every dataset with the same weight; the offset is the median of the datasets' medians."""
    unpriced = float(np.median([np.median(dataset.ratio) for dataset in datasets]))

    def cost(widths: FloatArray) -> float:
        total = 0.0
        for dataset in datasets:
            low, high = bounds(dataset, np.append(widths, unpriced))
            above, below = (dataset.ratio - low) / ROUNDED, (high - dataset.ratio) / ROUNDED
            inside = float((0.25 * (1 + np.tanh(above / 2)) * (1 + np.tanh(below / 2))).mean())
            missed = np.maximum(low - dataset.ratio, 0.0) + np.maximum(dataset.ratio - high, 0.0)
            score = float((high - low + 10.0 * missed).mean())
            total += max(AIMED[0] - inside, 0.0) + max(inside - AIMED[1], 0.0) + SCORE_WEIGHT * score
        return total

    options = {"maxiter": 1500, "maxfev": 2000, "xatol": 1e-3, "fatol": 1e-5}

    def searched(widths: FloatArray) -> FloatArray:
        for _ in range(3):
            widths = np.abs(minimize(cost, widths, method="Nelder-Mead", options=options).x)
        return widths

    return np.append(min((searched(share * IN_USE) for share in STARTS), key=cost), unpriced)


def scored(dataset: PricedDataset, chosen: FloatArray) -> str:
    """Shares inside and above, and the half-width, in %."""
    low, high = bounds(dataset, chosen)
    inside = 100.0 * float(((dataset.ratio >= low) & (dataset.ratio <= high)).mean())
    half = 50.0 * float(np.median(np.exp(high) - np.exp(low)))
    return f"{inside:8.0f} {100.0 * float((dataset.ratio > high).mean()):7.0f} {half:7.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each dataset, and the widths. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measurements", type=Path, nargs="+", required=True, help="CSV files or folders")
    parser.add_argument("--predictions", type=Path, required=True, help="what benchmarks/accuracy.py wrote")
    options = parser.parse_args(argv)
    datasets = read_priced(options.measurements, options.predictions)
    choosing = [name for name, dataset in datasets.items() if len(dataset.ratio) >= FEWEST_ROWS]
    own = np.append(IN_USE, UNPRICED)
    best = chosen_by([datasets[name] for name in choosing])
    print(f"{'inside, above, half-width %':28} rows {'in use':^24} {'all choose':^24} {'others choose':^24}")
    apart = {}
    for name, dataset in datasets.items():
        if len(dataset.ratio) < SCORED_ROWS:
            continue
        apart[name] = chosen_by([datasets[other] for other in choosing if other != name])
        columns = " ".join(scored(dataset, chosen) for chosen in (own, best, apart[name]))
        print(f"{name:28} {len(dataset.ratio):4d} {columns}", flush=True)
    print("\n" + " ".join(f"{name:>10}" for name in ("without", *NAMES, "unpriced")))
    for name, chosen in {"in use": own, "none": best, **apart}.items():
        print(f"{name:>22}", " ".join(f"{value:.3f}" for value in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
