"""Predict published training runs and print the errors of the predictions.

    python benchmarks/accuracy.py --measurements PATH [PATH ...] [--new PATH ...] [--curves DIR] [--profiles DIR] \\
        [--calibrate] [--scorer SCORE.py] --out PRED.csv

PATH is a CSV file or a folder of them; each row states a run with its whole question (benchmarks/published_rows.py). If
there is no such file, the script says so and predicts nothing. Every row gets a line in PRED.csv: dataset, row_id,
pred_step_s, pred_mem_gib, shares of the step by origin and by part, the plan, what is not modelled, and the reason if
it cannot be predicted. ``--new`` are sources that no formula was checked against: their intervals are as wide as the other
new sources lie off. PRED.csv is never calibrated; --calibrate prints a table of its own.
"""

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measured_times import measured_times  # noqa: E402
from benchmarks.published_rows import Pricing, RowPrediction, read_rows  # noqa: E402
from benchmarks.row_calibration import CALIBRATED, LARGE, calibration_lines, large_from_small_lines  # noqa: E402
from benchmarks.row_scores import NEW, coverage_lines, gap_lines, interval, memory_gib, residual_lines  # noqa: E402
from benchmarks.source_spread import spread_lines, spreads_without  # noqa: E402
from solver.estimate import STEP_PARTS  # noqa: E402
from solver.problem.interval import SourceSpread  # noqa: E402
from solver.times.step_parts import CARRIED  # noqa: E402
from spec.files import atomic_path  # noqa: E402
from spec.origin import Origin  # noqa: E402
from spec.program.command import exit_status  # noqa: E402

ORIGINS = tuple(origin.name.lower() for origin in Origin)
COLUMNS = (
    "dataset",
    "row_id",
    "pred_step_s",
    "pred_mem_gib",
    "standard_error_s",
    "carried_error_s",
    "interval_low_s",
    "interval_high_s",
    *(f"share_{name}" for name in ORIGINS),
    *(f"part_{name}" for name in STEP_PARTS),
    "plan",
    "missing",
    "reason",
)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="accuracy against published training runs")
    parser.add_argument("--measurements", type=Path, nargs="+", required=True, help="CSV files or folders")
    parser.add_argument("--new", type=Path, nargs="+", default=[], help="the same, of sources that nobody looked at")
    parser.add_argument("--curves", type=Path, help="folder of measured curves in the generic CSV form")
    parser.add_argument("--profiles", type=Path, help="folder of measured profiles, such as prof_data")
    parser.add_argument("--calibrate", action="store_true", help="fit factors to a few rows of each source")
    parser.add_argument("--seed", type=int, default=0, help="which rows (default 0)")
    parser.add_argument("--seeds", type=int, default=40, help="draws that are averaged (default 40)")
    parser.add_argument("--scorer", type=Path, help="a script that is handed PRED.csv to judge it")
    parser.add_argument("--out", type=Path, required=True, help="predictions, one line a row")
    return parser.parse_args(argv)


def as_cells(one: RowPrediction, spread: SourceSpread | None) -> dict[str, str]:
    """One line of the predictions file; numbers with all their digits. ``spread`` of a new source."""
    cells = {"dataset": one.row.dataset, "row_id": one.row.row_id, "reason": one.reason}
    cells["missing"] = "; ".join(one.gaps)
    if one.answer is None:
        return cells
    answer = one.answer
    cells["pred_step_s"] = f"{one.step_s:.15g}"
    cells["pred_mem_gib"] = f"{memory_gib(one):.15g}"
    cells["standard_error_s"] = f"{answer.standard_error_s:.15g}"
    cells["carried_error_s"] = f"{answer.errors_s.get(CARRIED, 0.0):.15g}"
    bounds = interval(one, spread)
    if bounds is not None:
        cells["interval_low_s"], cells["interval_high_s"] = (f"{bound:.15g}" for bound in bounds)
    cells["plan"] = answer.plan.label()
    for name in ORIGINS:
        cells[f"share_{name}"] = f"{answer.origins_s.get(name, 0.0) / answer.step_s:.15g}"
    for name in STEP_PARTS:
        cells[f"part_{name}"] = f"{answer.parts_s[name] / answer.step_s:.15g}"
    return cells


def write(path: Path, predictions: Sequence[RowPrediction], spreads: Mapping[str, SourceSpread]) -> None:
    """Writes the predictions file, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(as_cells(one, spreads.get(one.row.dataset)) for one in predictions)


def main(argv: Sequence[str] | None = None) -> int:
    """Read, price, write, print."""
    options = arguments(argv)
    began = time.perf_counter()
    missing = [str(path) for path in (*options.measurements, *options.new) if not path.exists()]
    if missing:
        print(f"skipped: there is no {', '.join(missing)}")
        return 0
    rows, new_rows = (read_rows(paths) for paths in (options.measurements, options.new))
    pricing = Pricing(cost_model=measured_times(options.curves, options.profiles).cost_model)
    known, new = pricing.predict(rows), pricing.predict(new_rows)
    spreads = spreads_without(new)
    write(options.out, [*known, *new], spreads)
    predictions = [*known, *new]
    priced = sum(one.answer is not None for one in predictions)
    print(f"{len(predictions)} rows, {priced} priced, {time.perf_counter() - began:.1f} s -> {options.out}\n")
    print("\n".join(gap_lines(predictions)), end="\n\n")
    print("\n".join(residual_lines(predictions)))
    print("\n" + "\n".join(coverage_lines(known)))
    if new:
        print("\n" + "\n".join(coverage_lines(new, NEW, spreads)))
        print("\n" + "\n".join(spread_lines(new)))
    if options.calibrate:
        seeds = range(options.seed, options.seed + options.seeds)
        for more, ones in (("", known), (", new", new)):
            tables = calibration_lines(ones, CALIBRATED + more, seeds, spreads)
            print("\n" + "\n".join([*tables, "", *large_from_small_lines(ones, LARGE + more)]), flush=True)
    return run_scorer(options.scorer, options.out) if options.scorer else 0


def run_scorer(scorer: Path, predictions: Path) -> int:
    """The exit status of the scorer, which prints its own table: strict, with out-of-memory verdicts."""
    print(flush=True)
    command = [sys.executable, str(scorer), str(predictions), "--split", "dev", "--strict", "--oom"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(exit_status(main))
