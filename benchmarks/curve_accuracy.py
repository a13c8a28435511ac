"""How well the curves tell times they never saw, on any folder of measured curves.

    python benchmarks/curve_accuracy.py --curves DIR [--seed N] [--draws N] [--json FILE]

DIR holds CSV files in the generic form of docs/data_format.md; other files in it are named and passed
over. Prints three tables: times left out of the fits, times modelled from the hardware sheets, and times
measured on one GPU and restated for another. Exits with 1 when a target is missed.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import modelled_accuracy
from benchmarks.held_out import HeldOut, held_out
from benchmarks.measured_times import read_folder, tables_by_gpu
from spec.errors import ProfileError, UserError


def as_plain(result: HeldOut) -> dict[str, object]:
    """One row for the JSON file."""
    return {
        "test": result.test,
        "gpu": result.gpu,
        "points": int(result.errors.size),
        "median": result.median,
        "p90": result.p90,
        "called_measured": result.measured_share,
        "within_told_error": result.within_std,
        "target_median": result.target_median,
        "target_p90": result.target_p90 or None,
        "passed": result.passed,
    }


def as_line(result: HeldOut) -> str:
    """One row of the printed table."""
    limit = f"{100 * result.target_median:.0f}"
    if result.target_p90:
        limit += f" / {100 * result.target_p90:.0f}"
    return (
        f"{result.test:20} {result.gpu:14} {result.errors.size:8d} {100 * result.median:7.1f} "
        f"{100 * result.p90:7.1f}   {limit:8} {100 * result.measured_share:6.0f} "
        f"{100 * result.within_std:6.0f}   "
        f"{'ok' if result.passed else 'MISSED'}"
    )


def main() -> int:
    """Read, split, fit, print."""
    parser = argparse.ArgumentParser(description="accuracy of the curves on held-out measurements")
    parser.add_argument("--curves", type=Path, required=True, help="folder of generic CSV files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=3, help="random splits that are pooled (default 3)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    started = time.perf_counter()
    samples, passed_over = read_folder(given.curves)
    results: list[HeldOut] = []
    print(
        f"{'held out':20} {'gpu':14} {'points':>8} {'median%':>7} {'p90%':>7}   {'limit':8} {'meas.%':>6} {'1std%':>6}"
    )
    by_gpu = tables_by_gpu(samples)
    for gpu, tables in sorted(by_gpu.items()):
        for result in held_out(gpu, tables, given.seed, given.draws):
            results.append(result)
            print(as_line(result), flush=True)
    scores = modelled_accuracy.all_scores(by_gpu)
    if not results and not scores:
        raise ProfileError(f"{given.curves}: {modelled_accuracy.NOTHING_TO_SCORE}")
    print("\n" + "\n".join(modelled_accuracy.score_lines(scores)) + "\n")
    elapsed_s = time.perf_counter() - started
    if passed_over:
        print(f"passed over (not in the generic form): {', '.join(passed_over)}")
    print(f"seed {given.seed}, {given.draws} draws, {elapsed_s:.0f} s on {platform.processor() or 'CPU'}")
    if given.json:
        document = {
            "date": datetime.date.today().isoformat(),
            "machine": platform.platform(),
            "seed": given.seed,
            "draws": given.draws,
            "seconds": elapsed_s,
            "rows": [as_plain(result) for result in results],
            "modelled": [modelled_accuracy.as_plain(score) for score in scores],
        }
        temporary = given.json.with_name(f".{given.json.name}.tmp")
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, given.json)
    return 0 if all(one.passed for one in (*results, *scores)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
