"""Does a GPU whose curves were never used score as well? Fits the constants anew without it.

    python benchmarks/modelled_held_out.py --curves DIR [--steps N] [--seed N]

For each GPU: the constants marked ``Fitted:`` are searched on the other GPUs' curves only, starting
from the middle of their ranges, and scored on the GPU left out. Takes a few minutes.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measured_times import SHEETS, read_folder, tables_by_gpu  # noqa: E402
from benchmarks.modelled_accuracy import frame, price_collectives, price_gemm, sheet_of  # noqa: E402
from profdb.cases import Family  # noqa: E402
from profdb.modelled import gemm  # noqa: E402
from profdb.modelled.cost_model import ModelledCostModel  # noqa: E402
from profdb.modelled.network import links, send_recv  # noqa: E402
from profdb.queries import TimeEstimate  # noqa: E402
from profdb.store.columns import SampleTable  # noqa: E402
from spec.collectives import Collective  # noqa: E402
from spec.errors import UserError  # noqa: E402
from spec.units import MIB  # noqa: E402

FIT_POINTS = 1000
TOO_FEW_GPUS = "no family with large enough points of two GPUs that have a sheet; one is fitted to the others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One fitted constant and the range it is searched in."""

    module: ModuleType
    name: str
    low: float
    high: float


GEMM_CONSTANTS = (
    Constant(module=gemm, name="LAUNCH_S", low=0.5e-6, high=3e-6),
    Constant(module=gemm, name="FILL_CYCLES", low=500.0, high=4000.0),
    Constant(module=gemm, name="TILE_CYCLES", low=500.0, high=4000.0),
    Constant(module=gemm, name="MMA_EFFICIENCY", low=0.75, high=1.0),
    Constant(module=gemm, name="DRAM_EFFICIENCY", low=0.7, high=0.95),
    Constant(module=gemm, name="OVERLAP_LOSS", low=0.0, high=0.3),
    Constant(module=gemm, name="BUSY_SHARE", low=0.1, high=1.0),
    Constant(module=gemm, name="SPLIT_S", low=0.0, high=4e-6),
)
NCCL_CONSTANTS = (
    Constant(module=links, name="LONG_SHARE", low=0.8, high=1.0),
    Constant(module=links, name="OWN_CHUNK", low=0.0, high=1.0),
    Constant(module=links, name="NVLS_SHARE", low=0.6, high=1.0),
    Constant(module=send_recv, name="ALL_TO_ALL_SHARE", low=0.7, high=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A table of measured points, how to price it, and the constants behind the price."""

    name: str
    table: pd.DataFrame
    price: Callable[[ModelledCostModel, pd.DataFrame], TimeEstimate]
    constants: tuple[Constant, ...]

    def error(self, values: np.ndarray, gpu: str, points: int) -> float:
        """Median relative error on one GPU with these constants; ``points`` 0 takes them all."""
        measured = self.table[self.table.gpu == gpu]
        if 0 < points < len(measured):
            measured = measured.sample(points, random_state=1)
        cost_model = ModelledCostModel(cluster=sheet_of(gpu))
        patches = [
            patch.object(constant.module, constant.name, float(value))
            for constant, value in zip(self.constants, values, strict=True)
        ]
        for change in patches:
            change.start()
        try:
            predicted_s = self.price(cost_model, measured).seconds
        finally:
            patch.stopall()
        return float(np.median(np.abs(predicted_s * 1e6 / measured.latency_us.to_numpy() - 1.0)))


def fitted(family: Fitted, gpus: list[str], steps: int, seed: int) -> np.ndarray:
    """Constants with the smallest sum of median errors on ``gpus``: a random walk that only descends."""
    rng = np.random.default_rng(seed)
    low = np.array([constant.low for constant in family.constants])
    high = np.array([constant.high for constant in family.constants])
    best = (low + high) / 2.0
    score = sum(family.error(best, gpu, FIT_POINTS) for gpu in gpus)
    for _ in range(steps):
        moved = rng.choice(len(best), rng.integers(1, 4), replace=False)
        trial = best.copy()
        trial[moved] += rng.normal(size=len(moved)) * (high - low)[moved] * 0.2
        trial = np.clip(trial, low, high)
        predicted = sum(family.error(trial, gpu, FIT_POINTS) for gpu in gpus)
        if predicted < score:
            best, score = trial, predicted
    return best


def families_of(tables: dict[str, dict[Family, SampleTable]]) -> list[Fitted]:
    """Products above 1 GFLOP and collectives above 1 MiB, each where two GPUs with a sheet or more have them."""
    products = frame(tables, Family.GEMM, {"layout": "NT", "dtype_in": "bf16", "scale_recipe": ""})
    if len(products):
        products = products[2.0 * products.m * products.n * products.k > 1e9]
    nccl = frame(tables, Family.COLLECTIVE, {})
    if len(nccl):
        nccl = nccl[(nccl.size_bytes > MIB) & (nccl.collective != Collective.P2P.value)]
    found = [
        Fitted(name="gemm", table=products, price=price_gemm, constants=GEMM_CONSTANTS),
        Fitted(name="nccl", table=nccl, price=price_collectives, constants=NCCL_CONSTANTS),
    ]
    found = [
        replace(one, table=one.table[one.table.gpu.str[:4].isin(list(SHEETS))])
        for one in found
        if len(one.table)
    ]
    return [one for one in found if one.table.gpu.nunique() > 1]


def main() -> int:
    """Print one line for each family and GPU; 2 when a file cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True, help="folder with gemm.csv and nccl.csv")
    parser.add_argument("--steps", type=int, default=300, help="trials of each fit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        tables = tables_by_gpu(read_folder(options.curves)[0])
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    families = families_of(tables)
    if not families:
        print(f"{options.curves}: {TOO_FEW_GPUS}", file=sys.stderr)
        return 2
    for family in families:
        gpus = sorted(family.table.gpu.unique())
        for held_out in gpus:
            values = fitted(family, [gpu for gpu in gpus if gpu != held_out], options.steps, options.seed)
            error = family.error(values, held_out, 0)
            shown = " ".join(
                f"{constant.name}={value:.3g}"
                for constant, value in zip(family.constants, values, strict=True)
            )
            print(f"{family.name:5} {held_out:12} left out: median {error:6.1%}   {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
