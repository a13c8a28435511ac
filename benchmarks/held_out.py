"""Times that the fits never saw, told by the fits: the split, and the errors per GPU.

Whole (n, k) pairs of GEMM, whole (heads, kv_heads, head_dim) families of attention and whole message
sizes of collectives are left out, a fifth of each at random; and 8 GPUs are told from 2 and 4. Every
price goes through ProfileCostModel, as in a search.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from profdb.cases import Family
from profdb.cost_model import ProfileCostModel
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery, TimeEstimate
from profdb.sample import MachineFacts, ProfileDatabase, Samples
from profdb.store.columns import SampleTable, label_names
from spec.arrays import BoolArray, FloatArray
from spec.collectives import Collective
from spec.errors import MissingCurveError
from spec.origin import Origin
from spec.units import MIB

LEFT_OUT = 0.2
SMALLEST_TOKENS = 512

COLLECTIVE_DRAWS = 10
"""Splits of the message sizes at least: a fifth of some twenty sizes are four, and one draw of four
decides too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors |predicted / measured - 1| of one test on one GPU, against its targets (0: none);
    ``within_std`` is the share of them below the standard error told beside the time (normal: 0.68)."""

    test: str
    gpu: str
    errors: FloatArray
    measured_share: float
    within_std: float
    target_median: float
    target_p90: float = 0.0

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
        """Whether the errors are within the targets."""
        return self.median <= self.target_median and (not self.target_p90 or self.p90 <= self.target_p90)


def book_without(gpu: str, table: SampleTable, hidden: BoolArray) -> ProfileCostModel:
    """A cost model fitted to the rows that are not hidden."""
    seen = table.take(np.flatnonzero(~hidden).astype(np.int64))
    return ProfileCostModel(
        ProfileDatabase(machine=MachineFacts(gpu=gpu), samples=Samples({table.family: seen}))
    )


def random_hidden(keys: np.ndarray, rng: np.random.Generator) -> BoolArray:
    """Rows whose key (one row of ``keys``) falls into a random fifth of the different keys."""
    different, which = np.unique(keys, axis=0, return_inverse=True)
    chosen = rng.permutation(different.shape[0])[: round(LEFT_OUT * different.shape[0])]
    return np.isin(which.reshape(-1), chosen)


def ask_gemm(cost_model: ProfileCostModel, table: SampleTable) -> TimeEstimate:
    """The cost model's times for the table's matrix products (all of one dtype and layout)."""
    query = LinearQuery(
        **{name: table.numbers[name] for name in ("batch", "m", "k", "n")},
        layout=table.labels["layout"].labels()[0],
        dtype=table.labels["dtype_in"].labels()[0],
    )
    return told_or_not(lambda: cost_model.linear_s(query), table.size)


def ask_attention(cost_model: ProfileCostModel, table: SampleTable) -> TimeEstimate:
    """The cost model's times for the table's attention calls (all of one kind)."""
    labels = {name: table.labels[name].labels()[0] for name in label_names(Family.ATTENTION)}
    query = AttentionQuery(**table.numbers, **labels)
    return told_or_not(lambda: cost_model.attention_s(query), table.size)


def told_or_not(ask: Callable[[], TimeEstimate], size: int) -> TimeEstimate:
    """The answer; seconds of NaN where too little is left to make a curve of."""
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
        predicted = told_or_not(partial(cost_model.collective_s, query), len(rows))
        seconds[rows], spread[rows], origin[rows] = (
            predicted.seconds,
            predicted.relative_std,
            predicted.origin,
        )
    return TimeEstimate(seconds=seconds, relative_std=spread, origin=origin)


def compare(
    gpu: str,
    table: SampleTable,
    hidden: BoolArray,
    scored: BoolArray,
    ask: Callable[[ProfileCostModel, SampleTable], TimeEstimate],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(errors, whether each was called measured, whether it is within the error told) of the hidden rows
    that are scored and that the others make a curve for."""
    asked = table.take(np.flatnonzero(hidden & scored).astype(np.int64))
    predicted = ask(book_without(gpu, table, hidden), asked)
    told = np.flatnonzero(np.isfinite(predicted.seconds))
    errors = np.abs(predicted.seconds / asked.medians_s() - 1.0)[told]
    measured = (predicted.origin[told] == int(Origin.MEASURED)).astype(np.float64)
    return errors, measured, (errors <= predicted.relative_std[told]).astype(np.float64)


def held_out(gpu: str, tables: dict[Family, SampleTable], seed: int, draws: int) -> list[HeldOut]:
    """All tests that the tables of one GPU allow; errors are pooled over ``draws`` random splits. A test with
    nothing to fit or nothing to score is left out."""
    results: list[HeldOut] = []
    splits = {
        Family.GEMM: ("gemm (n, k)", ("n", "k"), ask_gemm, (0.04, 0.12)),
        Family.ATTENTION: (
            "attention family",
            ("heads", "kv_heads", "qk_dim"),
            ask_attention,
            (0.04, 0.12),
        ),
        Family.COLLECTIVE: ("collective sizes", ("size_bytes",), ask_collectives, (0.05, 0.15)),
    }
    for family, (test, names, ask, targets) in splits.items():
        if family not in tables:
            continue
        table = tables[family]
        rng = np.random.default_rng(seed)
        keys = np.stack([table.numbers[name] for name in names], axis=1)
        times = max(draws, COLLECTIVE_DRAWS) if family is Family.COLLECTIVE else draws
        drawn = [random_hidden(keys, rng) for _ in range(times)]
        counted = large_enough(table)
        found = [compare(gpu, table, each, counted, ask) for each in drawn if tells(each, counted)]
        if not sum(draw[0].size for draw in found):
            continue
        results.append(
            HeldOut(
                test=test,
                gpu=gpu,
                errors=np.concatenate([draw[0] for draw in found]),
                measured_share=float(np.mean(np.concatenate([draw[1] for draw in found]))),
                within_std=float(np.mean(np.concatenate([draw[2] for draw in found]))),
                target_median=targets[0],
                target_p90=targets[1],
            )
        )
    if Family.COLLECTIVE in tables:
        results += eight_from_fewer(gpu, tables[Family.COLLECTIVE])
    return results


def tells(hidden: BoolArray, scored: BoolArray) -> bool:
    """Whether there is something to fit and something to score."""
    return bool(np.any(hidden & scored) and not np.all(hidden))


def large_enough(table: SampleTable) -> BoolArray:
    """Rows that count: m (GEMM) or tokens (attention) of at least 512; every collective."""
    if table.family is Family.GEMM:
        return np.asarray(table.numbers["m"] >= SMALLEST_TOKENS)
    if table.family is Family.ATTENTION:
        return np.asarray(table.numbers["batch"] * table.numbers["q_len"] >= SMALLEST_TOKENS)
    return np.ones(table.size, dtype=np.bool_)


def eight_from_fewer(gpu: str, table: SampleTable) -> list[HeldOut]:
    """8 GPUs told from 2 and 4, above 1 MiB, pooled over the kinds that both were measured with."""
    kinds = table.labels["collective"]
    eight = np.asarray(table.numbers["intra"] == 8)
    fewer = np.zeros(table.size, dtype=np.bool_)
    for name in kinds.values:
        rows = kinds.equals(name)
        fewer |= rows & bool(np.any(rows & ~eight))
    scored = fewer & (table.numbers["size_bytes"] > MIB)
    if not tells(eight, scored):
        return []
    errors, measured, within = compare(gpu, table, eight, scored, ask_collectives)
    if not errors.size:
        return []
    return [
        HeldOut(
            test="8 GPUs from 2 and 4",
            gpu=gpu,
            errors=errors,
            measured_share=float(measured.mean()),
            within_std=float(within.mean()),
            target_median=0.15,
        )
    ]
