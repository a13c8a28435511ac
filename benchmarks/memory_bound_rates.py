"""How close the modelled rate of memory-bound kernels comes to a measured one.

    python benchmarks/memory_bound_rates.py --operations FILE

FILE is a CSV of layer operations of a serving engine (columns gpu, model, tp, op, num_tokens, latency_us; 16 bits).
Its residual addition is PyTorch's own kernel, the one that training runs too; norms, rotary embedding and activation
are the engine's own and say nothing about training's. ``gpu`` is a100 or h100.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ops.memory_bound import bytes_moved_per_element  # noqa: E402
from profdb.modelled.memory_bound import memory_bound_seconds  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.errors import ProfileError, UserError  # noqa: E402

SHEETS = {"a100": "a100-sxm-80g", "h100": "h100-sxm"}
# Hidden sizes of the models, from their published config.json.
HIDDEN = {
    "CodeLlama-34b-Instruct-hf": 8192,
    "Llama-2-7b-hf": 4096,
    "Llama-2-70b-hf": 8192,
    "Meta-Llama-3-8B": 4096,
    "Meta-Llama-3-70B": 8192,
    "Qwen-72B": 8192,
}
COLUMNS = ("gpu", "model", "op", "num_tokens", "latency_us")
# A tensor of at least this many times the L2 cache has left it when the next kernel reads it.
CACHES = 1.0


def read_operations(path: Path) -> pd.DataFrame:
    """The file's rows. ProfileError for a file that is no CSV, a missing column, or a number that is none."""
    try:
        table = pd.read_csv(path)
        missing = [name for name in COLUMNS if name not in table]
        if missing:
            raise ProfileError(f"{path}: no column {', '.join(missing)}")
        return table.astype({"num_tokens": float, "latency_us": float})
    except ValueError as error:
        raise ProfileError(f"{path}: {str(error).splitlines()[0]}") from error


def compared(table: pd.DataFrame, gpu: str) -> tuple[pd.Series, pd.Series, float]:
    """Told over measured for every addition on ``gpu`` (told, then bytes/s measured), and the sheet's rate."""
    sheet = read_cluster(SHEETS[gpu], root=ROOT).gpu
    rows = table[(table.gpu == gpu) & (table.op == "add") & table.model.isin(HIDDEN)]
    elements = rows.num_tokens * rows.model.map(HIDDEN)
    outside = 2.0 * elements > CACHES * sheet.l2_bytes
    rows, elements = rows[outside], elements[outside].to_numpy(dtype=np.float64)
    predicted = memory_bound_seconds(sheet, "add", "forward", elements, "fp16")
    measured = rows.latency_us * 1e-6
    moved = elements * bytes_moved_per_element("add", backward=False, dtype="fp16")
    return predicted / measured, moved / measured, sheet.memory_bandwidth


def main(argv: Sequence[str] | None = None) -> int:
    """One line for each GPU."""
    parser = argparse.ArgumentParser(description="modelled against measured rate of memory-bound kernels")
    parser.add_argument("--operations", type=Path, required=True, help="CSV of measured layer operations")
    asked = parser.parse_args(argv)
    try:
        table = read_operations(asked.operations)
        print(f"{'gpu':6}{'points':>8}{'of sheet %':>12}{'median %':>10}{'p90 %':>8}{'bias %':>8}")
        for gpu in SHEETS:
            ratio, rate, sheet_rate = compared(table, gpu)
            if not len(ratio):
                print(f"{gpu:6}{0:8}  no addition of a known model larger than the L2 cache")
                continue
            error = 100.0 * (ratio - 1.0).abs()
            print(
                f"{gpu:6}{len(ratio):8}{100.0 * rate.median() / sheet_rate:12.1f}"
                f"{error.median():10.1f}{error.quantile(0.9):8.1f}{100.0 * (ratio.median() - 1.0):8.1f}"
            )
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
