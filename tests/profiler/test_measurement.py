"""What becomes of the first launch of a case."""

import pytest

from profdb.cases import Case, GemmCase
from profiler.benchmarks.launched import Launched
from profiler.measurement import Bench, measure
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
