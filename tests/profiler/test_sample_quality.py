"""Noise acted on: noisy cases are measured again at the end, the quieter sample kept, and the report counts them."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from profdb.cases import Case, GemmCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile
from profdb.store.journal import read_journal
from profiler.benchmarks.launched import Launched
from profiler.journal import Journal
from profiler.measurement import Bench
from profiler.profiling_run import RunOptions, report_lines, run_in
from profiler.sample_quality import far_above, noisy_cases, quality_lines, quieter_samples, sample_quality
from profiler.sweep import Budget, sweep
from tests.profiler.fakes import FakeClock, single_world

ROOT = Path(__file__).resolve().parents[2]
CASES = [GemmCase(m=64 << step, k=64, n=64) for step in range(6)]
QUIET_S, NOISY_S = 1e-3, 3e-3
RATE = 5e14
TODAY, BEFORE = "2026-11-22", "2026-01-01"


@dataclass
class Disturbed:
    """Launches take QUIET_S, but during the first look at a disturbed case every other one takes NOISY_S."""

    clock: FakeClock
    disturbed: frozenset[Case]
    always: bool = False
    launched: list[Case] = field(default_factory=list)

    def launch(self, case: Case) -> Launched:
        self.launched.append(case)
        noisy = case in self.disturbed and (self.always or self.launched.count(case) == 1)
        calls = 0

        def call() -> None:
            nonlocal calls
            calls += 1
            self.clock.now_s += NOISY_S if noisy and calls % 2 else QUIET_S

        return Launched(case=case, calls=(call,), implementation="fake")


def disturbed_bench(*disturbed: Case, always: bool = False) -> tuple[Bench, Disturbed]:
    clock = FakeClock()
    launcher = Disturbed(clock=clock, disturbed=frozenset(disturbed), always=always)
    return Bench(world=single_world(), launcher=launcher, device_clock=clock), launcher


def test_noisy_cases_are_measured_again_after_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.sweep.LONGEST_SHARE", 1e9)
    bench, launcher = disturbed_bench(CASES[1], CASES[3])
    journal = Journal.open(tmp_path / "j", "fake")
    result = sweep(CASES, bench, journal, Budget(), "2026-01-01")
    journal.close()
    assert launcher.launched == [*CASES, CASES[1], CASES[3]]
    assert (result.noisy, result.again, result.num_remaining) == (2, 2, 0)
    kept = quieter_samples(read_journal(tmp_path / "j").samples)
    assert [sample.case for sample in kept] == CASES
    assert all(sample.trials_s == pytest.approx([QUIET_S] * len(sample.trials_s)) for sample in kept)
    assert kept[1].launched["measured_again"] == "spread"


def test_second_looks_end_with_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.sweep.LONGEST_SHARE", -0.99)
    bench, launcher = disturbed_bench(*CASES)
    result = sweep(CASES, bench, None, Budget(), "2026-01-01")
    assert launcher.launched == CASES
    assert (result.noisy, result.again) == (6, 0)


def test_one_fifth_is_noise() -> None:
    samples = [
        Sample(case=case, trials_s=(1.0,), launched={"spread": spread})
        for case, spread in zip(CASES, (0.19, 0.21, 0.3, 0.0), strict=False)
    ]
    samples.append(Sample(case=CASES[4], trials_s=(), status="oom"))
    assert noisy_cases((sample.case, sample) for sample in samples) == [CASES[2], CASES[1]]


def profile_with(slow: dict[GemmCase, float], date: str = TODAY) -> ProfileDatabase:
    """Products at one rate, but those in ``slow`` so many times slower."""
    samples = [
        Sample(
            case=case,
            trials_s=(2.0 * case.m * case.k * case.n / RATE * slow.get(case, 1.0),),
            date=date if case in slow else BEFORE,
        )
        for m in (1024, 2048, 4096, 8192, 16384)
        for k, n in ((4096, 4096), (4096, 11008), (11008, 4096), (8192, 8192), (8192, 28672))
        for case in [GemmCase(m=m, k=k, n=n)]
    ]
    return ProfileDatabase(machine=MachineFacts(gpu="x"), samples=samples)


def test_a_sample_far_above_its_curve_is_named_at_the_end() -> None:
    odd = GemmCase(m=4096, k=8192, n=8192)
    profile = profile_with({odd: 1.8})
    quality = sample_quality(profile.samples, profile.samples, profile)
    (found,) = quality.far_above
    assert found.case == odd
    assert 1.5 < found.seconds / found.predicted_s < 2.1
    first, named = quality_lines(quality)
    assert first.endswith("1 samples far above their curve:")
    assert named.startswith("  linear(batch=1, m=4096, k=8192, n=8192")


def test_what_is_fast_or_slightly_slow_or_of_another_run_is_not() -> None:
    odd = GemmCase(m=4096, k=8192, n=8192)
    assert far_above(profile_with({odd: 1.3}), TODAY) == []
    assert far_above(profile_with({odd: 1 / 3}), TODAY) == []
    assert far_above(profile_with({odd: 3.0}, date=BEFORE), TODAY) == []


def test_of_two_looks_the_quieter_is_kept() -> None:
    def sample(spread: float, again: bool) -> Sample:
        words = {"spread": spread} | ({"measured_again": "spread"} if again else {})
        return Sample(case=CASES[0], trials_s=(spread,), launched=words)

    assert quieter_samples([sample(0.5, False), sample(0.1, True)])[0].trials_s == (0.1,)
    assert quieter_samples([sample(0.5, False), sample(0.9, True)])[0].trials_s == (0.5,)
    failed = Sample(case=CASES[0], trials_s=(), status="failed", launched={"measured_again": "spread"})
    assert quieter_samples([sample(0.5, False), failed])[0].trials_s == (0.5,)
    # two runs of one case that nobody took again stay two
    assert len(quieter_samples([sample(0.5, False), sample(0.4, False)])) == 2


def test_the_report_counts_what_was_taken_again_and_what_stayed_noisy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiler.sweep.LONGEST_SHARE", 1e9)
    bench, launcher = disturbed_bench(CASES[2], always=True)
    monkeypatch.setattr("profiler.profiling_run.Bench", lambda **_: bench)
    output = tmp_path / "data.pt"
    report = run_in(single_world(), RunOptions(output=output, root=ROOT, device="cpu"), CASES, launcher)
    assert report is not None
    assert (report.quality.for_spread, report.quality.still_noisy, report.quality.for_clock) == (1, 1, 0)
    assert len(load_profile(output).samples) == len(CASES)
    said = quality_lines(report.quality)[0]
    assert said.startswith(
        "measured again: 1 for a spread above 20% (1 still above it), 0 for a falling clock; 0 samples"
    )
    assert said in report_lines(report, output)
