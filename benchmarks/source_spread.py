"""How far sources of runs lie off that no formula was checked against (solver.problem.interval.NEW_SOURCES), from the sources
themselves, and from the others when one is predicted."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.stats import chi2, t

from benchmarks.published_rows import RowPrediction
from benchmarks.row_scores import measured_step_s
from solver.problem.interval import NEW_SOURCES, UNPRICED, SourceSpread
from spec.arrays import FloatArray

# Of sources that share a machine, which their rows do not say: CINECA's Leonardo.
SAME_MACHINE = {"modalities_8b": "leonardo", "modalities_leonardo": "leonardo"}
# Assumption: rows of one machine and software scatter by 10 %, about what WIDTHS have.
SCATTER = 0.1
SHARES = np.linspace(0.0, 1.0, 41)
SPREADS = np.geomspace(0.03, 0.6, 40)

Misses = Mapping[str, FloatArray]
"""log(measured / predicted) of the rows of each source, about UNPRICED."""


def misses_by(predictions: Iterable[RowPrediction], *, machine: bool = False) -> dict[tuple[str, ...], FloatArray]:
    """Returns the misses by source, or by ``machine`` and software."""
    result: dict[tuple[str, ...], list[float]] = {}
    for one in predictions:
        row, measured_s = one.row, measured_step_s(one.row)
        if one.answer is None or not measured_s:
            continue
        key: tuple[str, ...] = (row.dataset,)
        if machine:
            own = SAME_MACHINE.get(row.dataset, f"{row.dataset} {row.text('cluster')}")
            key = (own, f"{row.dataset} {row.text('framework')}")
        result.setdefault(key, []).append(float(np.log(measured_s / one.step_s)) - UNPRICED)
    return {key: np.array(values) for key, values in result.items()}


def spread_of(biases: Sequence[float], machine: float = NEW_SOURCES.machine) -> SourceSpread:
    """Returns the spread of sources with these mean misses."""
    count = len(biases)
    std = float(np.sqrt(np.mean(np.square(biases))))
    return SourceSpread(std=std, sources=count, reach=float(t.ppf(0.9, count)), machine=machine)


def spreads_without(predictions: Iterable[RowPrediction]) -> dict[str, SourceSpread]:
    """Returns for each source the spread of the others; empty for fewer than two sources."""
    biases = {name: float(misses.mean()) for (name,), misses in misses_by(predictions).items()}
    others = {name: [bias for other, bias in biases.items() if other != name] for name in biases}
    return {name: spread_of(each) for name, each in others.items() if each}


def machine_share(predictions: Iterable[RowPrediction]) -> tuple[float, float, float]:
    """Returns the expected share of the spread's variance that belongs to the machine, and the bounds of its 80 % interval.

    A mean miss is the sum of two normal parts, share * tau^2 of variance for its machine and (1 - share) * tau^2 for its
    software; share and log tau are uniform a priori."""
    misses = misses_by(predictions, machine=True)
    means = np.array([each.mean() for each in misses.values()])
    noise = np.diag([SCATTER**2 / len(each) for each in misses.values()])
    machines, software = (
        np.array([[one[part] == other[part] for other in misses] for one in misses], dtype=np.float64)
        for part in (0, 1)
    )
    logs = np.empty((len(SHARES), len(SPREADS)))
    for at, share in enumerate(SHARES):
        common = share * machines + (1.0 - share) * software
        for column, tau in enumerate(SPREADS):
            variance = tau**2 * common + noise
            logs[at, column] = -0.5 * (np.linalg.slogdet(variance)[1] + means @ np.linalg.solve(variance, means))
    weights = np.exp(logs - logs.max()).sum(axis=1)
    weights /= weights.sum()
    low, high = (float(SHARES[np.searchsorted(weights.cumsum(), quantile)]) for quantile in (0.1, 0.9))
    return float(weights @ SHARES), low, high


def spread_lines(predictions: Sequence[RowPrediction]) -> list[str]:
    """Returns the spread in use and as these sources have it, how uncertain it is, and what each source adds."""
    biases = {name: float(misses.mean()) for (name,), misses in misses_by(predictions).items()}
    if len(biases) < 2:
        return []
    own = spread_of(list(biases.values()))
    share, lower, upper = machine_share(predictions)
    # The variance of a normal, scaled inverse chi-squared a posteriori (Gelman et al. sec. 2.6).
    low, high = own.std * np.sqrt(own.sources / chi2.ppf([0.9, 0.1], own.sources))
    lines = [
        f"spread between {own.sources} new sources: {own.std:.3f} in log, 80 % of it {low:.3f}..{high:.3f} (in use {NEW_SOURCES.std:.3f})",
        f"of the machine, share of its variance: {share:.2f}, 80 % of it {lower:.2f}..{upper:.2f} (in use {NEW_SOURCES.machine:.2f})",
        f"{'new source':24} {'mean log ratio':>15} {'spread of others':>17}",
    ]
    others = spreads_without(predictions)
    return lines + [f"{name:24} {bias:+15.3f} {others[name].std:17.3f}" for name, bias in biases.items()]
