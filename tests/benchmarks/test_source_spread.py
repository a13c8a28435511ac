"""The spread between sources: what made-up sources of a known spread give, and intervals of a source by the others."""

from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published_rows import PublishedRow, RowPrediction
from benchmarks.row_scores import NEW, coverage_lines, interval
from benchmarks.source_spread import machine_share, spread_lines, spread_of, spreads_without
from solver.problem.interval import NEW_SOURCES, UNPRICED
from tests.benchmarks.made_up_rows import predict, row


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> RowPrediction:
    (one,) = predict(row(tmp_path_factory.mktemp("rows")))
    return one


def run(priced: RowPrediction, dataset: str, miss: float, cluster: str = "a", framework: str = "b") -> RowPrediction:
    """A run that takes exp(``miss``) of what is expected."""
    cells = {
        "dataset": dataset,
        "cluster": cluster,
        "framework": framework,
        "measured_step_s": f"{priced.step_s * exp(UNPRICED + miss):.17g}",
    }
    return replace(priced, row=PublishedRow(path=Path("made_up.csv"), line=1, cells=cells))


def test_a_source_counts_once_and_is_judged_by_the_others(priced: RowPrediction) -> None:
    rows = [run(priced, "one", 0.3), run(priced, "one", 0.1), run(priced, "two", -0.3), run(priced, "three", 0.0)]
    spreads = spreads_without(rows)
    assert spreads["one"].std == pytest.approx(np.sqrt((0.3**2 + 0.0) / 2))
    assert spreads["three"].std == pytest.approx(np.sqrt((0.2**2 + 0.3**2) / 2))
    assert spreads["one"].sources == 2
    assert spread_lines(rows)[0].startswith("spread between 3 new sources: 0.208 in log")
    assert not spreads_without(rows[:1])
    assert not spread_lines(rows[:1])


def test_the_reach_in_use_is_that_of_its_sources() -> None:
    assert spread_of([0.15] * 6) == replace(NEW_SOURCES, reach=pytest.approx(NEW_SOURCES.reach, abs=1e-3))


def test_a_machine_is_told_from_software_by_rows_that_share_one_of_them(priced: RowPrediction) -> None:
    rng = np.random.default_rng(0)
    machines = rng.normal(0.0, 0.3, 6)
    software = rng.permutation(machines)
    pairs = [(machine, program) for machine in range(6) for program in range(6)]

    def share(of_machine: float, of_software: float) -> float:
        misses = [of_machine * machines[m] + of_software * software[p] for m, p in pairs]
        rows = [run(priced, "one", miss, f"{m}", f"{p}") for miss, (m, p) in zip(misses, pairs, strict=True)]
        return machine_share(rows)[0]

    assert share(1.0, 0.0) > 0.9
    assert share(0.0, 1.0) < 0.1
    assert 0.3 < share(1.0, 1.0) < 0.7


def test_a_table_states_share_width_and_score(priced: RowPrediction) -> None:
    """Of two runs one lies inside; the other misses by 0.1 in log, which costs ten times that."""
    spread = spread_of([0.2, 0.2])
    bounds = interval(priced, spread)
    own = interval(priced)
    assert bounds is not None
    assert own is not None
    assert bounds[0] < own[0] < own[1] < bounds[1]
    low, high = (bound / priced.step_s for bound in bounds)
    rows = [run(priced, "one", 0.0), run(priced, "one", np.log(high) - UNPRICED + 0.1)]
    cells = coverage_lines(rows, NEW, {"one": spread})[-1].split()
    assert cells[:5] == ["all", "rows", "2", "0.0", "50.0"]
    width = 100 * np.log(high / low)
    assert float(cells[-1]) == pytest.approx(width + 50.0, abs=0.06)
    assert float(cells[-2]) == pytest.approx(50 * (high - low), abs=0.06)
