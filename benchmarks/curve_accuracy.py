"""Accuracy of the curves on times that the fits never saw, for any folder of measured curves.

    python benchmarks/curve_accuracy.py --curves DIR [--seed N] [--draws N]

DIR holds CSV files in the generic form of docs/data_format.md; other files are listed and skipped. Prints errors of
held-out times, of times modelled from the hardware specs, and of times transferred from one GPU to another. Exits with 1
when a target is missed.

Held out are whole (n, k) pairs of GEMM, whole (heads, kv_heads, head_dim) families of attention and whole message sizes of
collectives, a random fifth of each; and 8 GPUs are predicted from 2 and 4. Every time comes from ProfileCostModel, as in
a search.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import modelled_accuracy
from benchmarks.measured_times import read_folder, tables_by_gpu
from profdb.cases import Family
from profdb.cost_model import ProfileCostModel
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery, TimeEstimate
from profdb.sample import MachineFacts, ProfileDatabase, Samples
from profdb.store.columns import SampleTable, label_names
from spec.arrays import BoolArray, FloatArray
from spec.collectives import Collective
from spec.errors import MissingCurveError, ProfileError
from spec.origin import Origin
from spec.program.command import exit_status
from spec.units import MIB

HOLDOUT_SHARE = 0.2
SMALLEST_TOKENS = 512

COLLECTIVE_DRAWS = 10
"""Fewest splits of message sizes: a fifth of some twenty sizes is four, too few for a single split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutResult:
    """Errors |predicted / measured - 1| of one test on one GPU, and its targets (0: none); ``within_std`` is the share of
    errors below the predicted standard error (normal distribution: 0.68)."""

    test: str
    gpu: str
    errors: FloatArray
    measured_share: float
    within_std: float
    target_median: float
    target_p90: float = 0.0

    @property
    def points(self) -> int:
        """Number of errors."""
        return int(self.errors.size)

    @property
    def median(self) -> float:
        """Median error."""
        return float(np.median(self.errors))

    @property
    def p90(self) -> float:
        """90th percentile of the errors."""
        return float(np.quantile(self.errors, 0.9))

    @property
    def passed(self) -> bool:
        """True if the errors are within the targets."""
        return self.median <= self.target_median and (not self.target_p90 or self.p90 <= self.target_p90)


def cost_model_without(gpu: str, table: SampleTable, hidden: BoolArray) -> ProfileCostModel:
    """A cost model fitted to the rows that are not hidden."""
    seen = table.take(np.flatnonzero(~hidden).astype(np.int64))
    return ProfileCostModel(ProfileDatabase(machine=MachineFacts(gpu=gpu), samples=Samples({table.family: seen})))


def random_hidden(keys: np.ndarray, rng: np.random.Generator) -> BoolArray:
    """Rows whose key (one row of ``keys``) falls into a random fifth of the different keys."""
    different, which = np.unique(keys, axis=0, return_inverse=True)
    chosen = rng.permutation(different.shape[0])[: round(HOLDOUT_SHARE * different.shape[0])]
    return np.isin(which.reshape(-1), chosen)


def ask_gemm(cost_model: ProfileCostModel, table: SampleTable) -> TimeEstimate:
    """The cost model's times for the table's matrix products (all of one dtype and layout)."""
    query = LinearQuery(
        **{name: table.numbers[name] for name in ("batch", "m", "k", "n")},
        layout=table.labels["layout"].labels()[0],
        dtype=table.labels["dtype_in"].labels()[0],
    )
    return times_or_nan(lambda: cost_model.linear_s(query), table.size)


def ask_attention(cost_model: ProfileCostModel, table: SampleTable) -> TimeEstimate:
    """The cost model's times for the table's attention calls (all of one kind)."""
    labels = {name: table.labels[name].labels()[0] for name in label_names(Family.ATTENTION)}
    query = AttentionQuery(**table.numbers, **labels)
    return times_or_nan(lambda: cost_model.attention_s(query), table.size)


def times_or_nan(ask: Callable[[], TimeEstimate], size: int) -> TimeEstimate:
    """The times; NaN if too few samples are left for a curve."""
    try:
        return ask()
    except MissingCurveError:
        return TimeEstimate(
            seconds=np.full(size, np.nan), relative_std=np.zeros(size), origin=np.zeros(size, dtype=np.int64)
        )


def ask_collectives(cost_model: ProfileCostModel, table: SampleTable) -> TimeEstimate:
    """The cost model's times for the table's collectives, one query for each kind."""
    seconds, spread = np.zeros(table.size), np.zeros(table.size)
    origin = np.zeros(table.size, dtype=np.int64)
    kinds = table.labels["collective"]
    for name in kinds.values:
        rows = np.flatnonzero(kinds.equals(name))
        sizes = {column: values[rows] for column, values in table.numbers.items()}
        query = CollectiveQuery(collective=Collective(name), **sizes)
        predicted = times_or_nan(partial(cost_model.collective_s, query), len(rows))
        seconds[rows], spread[rows], origin[rows] = (predicted.seconds, predicted.relative_std, predicted.origin)
    return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)


def compare(
    gpu: str,
    table: SampleTable,
    hidden: BoolArray,
    scored: BoolArray,
    ask: Callable[[ProfileCostModel, SampleTable], TimeEstimate],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(errors, whether each origin is measured, whether each error is within its standard error) of the hidden rows that
    are scored and that the other rows make a curve for."""
    scored_rows = table.take(np.flatnonzero(hidden & scored).astype(np.int64))
    predicted = ask(cost_model_without(gpu, table, hidden), scored_rows)
    finite = np.flatnonzero(np.isfinite(predicted.seconds))
    errors = np.abs(predicted.seconds / scored_rows.medians_s() - 1.0)[finite]
    measured = (predicted.origin[finite] == int(Origin.MEASURED)).astype(np.float64)
    return errors, measured, (errors <= predicted.relative_std[finite]).astype(np.float64)


def holdout_results(gpu: str, tables: dict[Family, SampleTable], seed: int, draws: int) -> list[HoldoutResult]:
    """The results of all tests that the tables of one GPU allow; errors are pooled over ``draws`` random splits."""
    results: list[HoldoutResult] = []
    splits = {
        Family.GEMM: ("gemm (n, k)", ("n", "k"), ask_gemm, (0.04, 0.12)),
        Family.ATTENTION: ("attention family", ("heads", "kv_heads", "qk_dim"), ask_attention, (0.04, 0.12)),
        Family.COLLECTIVE: ("collective sizes", ("size_bytes",), ask_collectives, (0.05, 0.15)),
    }
    for family, (test, names, ask, targets) in splits.items():
        if family not in tables:
            continue
        table = tables[family]
        rng = np.random.default_rng(seed)
        keys = np.stack([table.numbers[name] for name in names], axis=1)
        times = max(draws, COLLECTIVE_DRAWS) if family is Family.COLLECTIVE else draws
        hidden_rows = [random_hidden(keys, rng) for _ in range(times)]
        counted = large_enough(table)
        pooled = [compare(gpu, table, each, counted, ask) for each in hidden_rows if can_be_scored(each, counted)]
        if not sum(draw[0].size for draw in pooled):
            continue
        results.append(
            HoldoutResult(
                test=test,
                gpu=gpu,
                errors=np.concatenate([draw[0] for draw in pooled]),
                measured_share=float(np.mean(np.concatenate([draw[1] for draw in pooled]))),
                within_std=float(np.mean(np.concatenate([draw[2] for draw in pooled]))),
                target_median=targets[0],
                target_p90=targets[1],
            )
        )
    if Family.COLLECTIVE in tables:
        results += eight_from_fewer(gpu, tables[Family.COLLECTIVE])
    return results


def can_be_scored(hidden: BoolArray, scored: BoolArray) -> bool:
    """Returns True if there is something to fit and something to score."""
    return bool(np.any(hidden & scored) and not np.all(hidden))


def large_enough(table: SampleTable) -> BoolArray:
    """The rows that are scored: m (GEMM) or tokens (attention) of at least 512; every collective."""
    if table.family is Family.GEMM:
        return np.asarray(table.numbers["m"] >= SMALLEST_TOKENS)
    if table.family is Family.ATTENTION:
        return np.asarray(table.numbers["batch"] * table.numbers["q_len"] >= SMALLEST_TOKENS)
    return np.ones(table.size, dtype=np.bool_)


def eight_from_fewer(gpu: str, table: SampleTable) -> list[HoldoutResult]:
    """The result for 8 GPUs predicted from 2 and 4, above 1 MiB, over the kinds that both were measured with."""
    kinds = table.labels["collective"]
    eight = np.asarray(table.numbers["intra"] == 8)
    fewer = np.zeros(table.size, dtype=np.bool_)
    for name in kinds.values:
        rows = kinds.equals(name)
        fewer |= rows & bool(np.any(rows & ~eight))
    scored = fewer & (table.numbers["size_bytes"] > MIB)
    if not can_be_scored(eight, scored):
        return []
    errors, measured, within = compare(gpu, table, eight, scored, ask_collectives)
    if not errors.size:
        return []
    return [
        HoldoutResult(
            test="8 GPUs from 2 and 4",
            gpu=gpu,
            errors=errors,
            measured_share=float(measured.mean()),
            within_std=float(within.mean()),
            target_median=0.15,
        )
    ]


def as_line(result: HoldoutResult) -> str:
    """One row of the printed table."""
    limit = f"{100 * result.target_median:.0f}"
    if result.target_p90:
        limit += f" / {100 * result.target_p90:.0f}"
    return (
        f"{result.test:20} {result.gpu:14} {result.points:8d} {100 * result.median:7.1f} "
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
    options = parser.parse_args()
    started = time.perf_counter()
    samples, passed_over = read_folder(options.curves)
    results: list[HoldoutResult] = []
    print(
        f"{'held out':20} {'gpu':14} {'points':>8} {'median%':>7} {'p90%':>7}   {'limit':8} {'meas.%':>6} {'1std%':>6}"
    )
    by_gpu = tables_by_gpu(samples)
    for gpu, tables in sorted(by_gpu.items()):
        for result in holdout_results(gpu, tables, options.seed, options.draws):
            results.append(result)
            print(as_line(result), flush=True)
    scores = modelled_accuracy.all_scores(by_gpu)
    if not results and not scores:
        raise ProfileError(f"{options.curves}: {modelled_accuracy.NOTHING_TO_SCORE}")
    print("\n" + "\n".join(modelled_accuracy.score_lines(scores)) + "\n")
    elapsed_s = time.perf_counter() - started
    if passed_over:
        print(f"skipped (not in the generic form): {', '.join(passed_over)}")
    print(f"seed {options.seed}, {options.draws} draws, {elapsed_s:.0f} s on {platform.processor() or 'CPU'}")
    return 0 if all(one.passed for one in (*results, *scores)) else 1


if __name__ == "__main__":
    sys.exit(exit_status(main))
