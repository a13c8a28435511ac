"""What becomes of the first launch of a case."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from profdb.cases import Case, CollectiveCase, GemmCase
from profiler.benchmarks.launched import Launched
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.measurement import Bench, measure, note_ranks
from spec.collectives import Collective
from tests.profiler.fakes import FakeClock, single_world

CASE = GemmCase(m=8, k=8, n=8)


class Compiling:
    """Its first launch takes ``first_s``, each further one ``then_s``."""

    def __init__(self, first_s: float, then_s: float) -> None:
        self.clock = FakeClock()
        self.first_s, self.then_s = first_s, then_s
        self.count = 0

    def launch(self, case: Case) -> Launched:
        def call() -> None:
            self.count += 1
            self.clock.now_s += self.first_s if self.count == 1 else self.then_s

        return Launched(case=case, calls=(call,), implementation="fake")


@pytest.mark.parametrize(("first_s", "then_s"), [(3.0, 5e-6), (0.2, 2e-3)])
def test_a_launch_that_compiles_says_nothing_of_how_long_the_others_take(first_s: float, then_s: float) -> None:
    """Bursts as long, and trials as many, as of a kernel that was ready."""
    found = []
    for one_s in (first_s, then_s):
        launcher = Compiling(one_s, then_s)
        bench = Bench(world=single_world(), launcher=launcher, device_clock=launcher.clock)
        sample = measure(CASE, bench, "2026-01-01")
        assert sample.median_s == pytest.approx(then_s)
        found.append((len(sample.trials_s), sample.launched["launches_per_trial"]))
    assert found[0] == pytest.approx(found[1], abs=1)  # a burst of 100 us is 20 calls or, rounded up, 21


def test_a_call_that_takes_long_by_itself_is_warmed_up_twice() -> None:
    launcher = Compiling(0.5, 0.5)
    bench = Bench(world=single_world(), launcher=launcher, device_clock=launcher.clock)
    assert launcher.count == 0
    sample = measure(CASE, bench, "2026-01-01")
    assert launcher.count == 2 + len(sample.trials_s)


class FourRanks(World):
    """Rank 0 of 4 whose peers' medians are known."""

    def gather_rows(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        return [*([float(one) for one in row] for row in rows), [3.0], [2.0], [9.0]]


def test_a_measurement_says_which_rank_took_how_long() -> None:
    layout = RankLayout(rank=0, size=4, local_rank=0, local_size=4)
    bench = Bench(
        world=FourRanks(layout=layout, device=single_world().device, domain_ranks=4), launcher=Compiling(1.0, 1.0)
    )
    notes = note_ranks(CASE, bench, 4.0)
    assert notes == {"rank_min_s": 2.0, "rank_median_s": 3.5, "rank_max_s": 9.0, "fastest_rank": 2, "slowest_rank": 3}
    alone = CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=8, intra=2, inter=1, siblings=1)
    # two of the four ranks rest: their seconds say nothing
    assert note_ranks(alone, bench, 4.0) == {}
    note_ranks(replace(alone, siblings=2), bench, 4.0)
    assert list(bench.ranks.sums) == ["gemm", "collectives inside a domain"]
