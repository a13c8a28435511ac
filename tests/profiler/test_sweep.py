"""The stored key is what was launched, for every benchmark, through journal and profile."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from profdb.cases import Case, GemmCase, HostCase
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile
from profdb.store.journal import journal_path, read_journal
from profiler import profiling_run
from profiler.benchmarks.launched import Launched
from profiler.cases.sweep_plan import BENCHMARKS, SweepPlan, benchmark_of, gpu_compute, gpu_step_parts, plan_cases
from profiler.cases.tiers import in_order
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.journal import Journal
from profiler.measurement import Bench, measure
from profiler.profiling_run import RunOptions, run_in
from profiler.sweep import Budget, sweep
from spec.errors import ProfileError
from tests.profiler.fakes import FakeClock, FakeLauncher, device_like, fake_bench, raising, seconds_of, single_world

ROOT = Path(__file__).resolve().parents[2]
GPU_PLAN = SweepPlan(device_kind="cuda", domain_ranks=2, domains=2, node_ranks=2)
GPU_CASES = [item.case for item in in_order([*gpu_compute(), *gpu_step_parts(GPU_PLAN)])]
CPU_CASES = plan_cases(SweepPlan(device_kind="cpu", domain_ranks=2, domains=2))


@pytest.fixture(autouse=True)
def no_second_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real clocks around calls that take no time read noise alone (tests/profiler/test_sample_quality.py)."""
    monkeypatch.setattr("profiler.sweep.noisy_cases", lambda samples: [])


def samples_of_each_benchmark(count: int) -> list[Case]:
    """The first cases of every benchmark, of the GPU's lists and the processor's."""
    chosen: list[Case] = []
    taken: Counter[str] = Counter()
    for case in [*GPU_CASES, *CPU_CASES]:
        if taken[benchmark_of(case)] < count:
            taken[benchmark_of(case)] += 1
            chosen.append(case)
    assert set(taken) == set(BENCHMARKS)
    return chosen


def run_fake(cases: list[Case], output: Path, *, resume: bool = False) -> tuple[ProfileDatabase, FakeLauncher]:
    """A whole run with the fake launcher; times come from real clocks around calls that take none, so
    only keys are looked at."""
    launcher = FakeLauncher(clock=FakeClock())
    options = RunOptions(output=output, root=ROOT, device="cpu", resume=resume)
    assert run_in(single_world(), options, cases, launcher) is not None
    return load_profile(output), launcher


def test_every_sample_holds_the_time_of_its_own_case(tmp_path: Path) -> None:
    cases = samples_of_each_benchmark(12)
    bench = fake_bench()
    path = tmp_path / "data.pt.journal"
    journal = Journal.open(path, "fake")
    sweep(cases, bench, journal, Budget(), "2026-01-01")
    journal.close()
    stored = read_journal(path).samples
    assert [sample.case for sample in stored] == cases
    for sample in stored:
        assert sample.trials_s == pytest.approx([seconds_of(sample.case)] * len(sample.trials_s), rel=1e-6)


def test_the_profile_holds_exactly_what_was_launched(tmp_path: Path) -> None:
    cases = samples_of_each_benchmark(6)
    profile, launcher = run_fake(cases, tmp_path / "data.pt")
    assert {sample.case for sample in profile.samples} == set(launcher.launched) == set(cases)
    assert not journal_path(tmp_path / "data.pt").exists()
    assert set(profile.fits) == {family.value for family in profile.tables}


def test_a_launcher_that_runs_something_else_is_stored_under_what_it_ran() -> None:
    asked = GemmCase(m=8, k=8, n=8)
    ran = GemmCase(m=16, k=8, n=8)
    bench = fake_bench()
    inner = bench.launcher

    class Substitute:
        def launch(self, case: Case) -> object:
            return inner.launch(ran)

    swapped = Bench(world=bench.world, launcher=Substitute(), device_clock=bench.device_clock)  # type: ignore[arg-type]
    sample = measure(asked, swapped, "2026-01-01")
    assert sample.case == ran
    assert sample.median_s == pytest.approx(seconds_of(ran), rel=1e-6)


def test_resume_measures_only_what_is_missing(tmp_path: Path) -> None:
    cases = samples_of_each_benchmark(3)
    before, _ = run_fake(cases[:7], tmp_path / "data.pt")
    after, launcher = run_fake(cases, tmp_path / "data.pt", resume=True)
    assert launcher.launched == cases[7:]
    assert len(after.samples) == len(cases)
    known = {sample.case: sample.trials_s for sample in after.samples}
    assert all(known[sample.case] == sample.trials_s for sample in before.samples)


def test_a_second_run_is_merged_never_overwritten(tmp_path: Path) -> None:
    cases = samples_of_each_benchmark(2)
    run_fake(cases, tmp_path / "data.pt")
    after, _ = run_fake(cases, tmp_path / "data.pt")
    assert len(after.samples) == 2 * len(cases)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_what_stops_a_program_stops_a_sweep(stop: BaseException, tmp_path: Path) -> None:
    bench = fake_bench()
    bench.launcher.before = raising(stop)  # type: ignore[attr-defined]
    journal = Journal.open(tmp_path / "journal", "fake")
    with pytest.raises(type(stop)):
        sweep([GemmCase(m=8, k=8, n=8)], bench, journal, Budget(), "")
    journal.close()
    # a case that Ctrl-C meets is none that took the process with it
    given_up = isinstance(stop, KeyboardInterrupt)
    assert (read_journal(tmp_path / "journal").unended is None) is given_up


def test_a_lost_device_starts_the_program_again_behind_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[Case] = [GemmCase(m=8 * size, k=8, n=8) for size in (1, 2, 3)]
    started: list[float] = []

    def again(spent_s: float) -> NoReturn:
        started.append(spent_s)
        raise SystemExit

    monkeypatch.setattr(profiling_run, "restart_program", again)
    options = RunOptions(output=tmp_path / "data.pt", root=ROOT, device="cpu")
    problem = RuntimeError("CUDA error: an illegal memory access was encountered")
    launcher = FakeLauncher(clock=FakeClock(), before=lambda case: raising(problem)(case) if case == cases[1] else None)
    world = World(layout=RankLayout(), device=device_like("cpu", answers=lambda _: False))
    with pytest.raises(SystemExit):
        run_in(world, options, cases, launcher)
    assert len(started) == 1
    monkeypatch.setenv("PROFILER_RESTARTS", "1")
    again_launcher = FakeLauncher(clock=FakeClock())
    report = run_in(single_world(), options, cases, again_launcher)
    assert again_launcher.launched == cases[2:]
    assert report is not None
    states = {sample.case: sample for sample in report.profile.samples}
    assert [states[case].status for case in cases] == ["ok", "failed", "ok"]
    assert "illegal memory access" in str(states[cases[1]].launched["reason"])
    monkeypatch.setenv("PROFILER_RESTARTS", "50")
    launcher.launched.clear()
    with pytest.raises(ProfileError, match="was lost 50 times, last in linear"):
        run_in(world, replace(options, output=tmp_path / "other.pt"), cases, launcher)


def test_the_case_that_took_the_process_with_it_is_passed_over(tmp_path: Path) -> None:
    cases: list[Case] = [GemmCase(m=8 * size, k=8, n=8) for size in (1, 2, 3)]
    path = journal_path(tmp_path / "data.pt")
    first, _ = run_fake(cases[:1], tmp_path / "first.pt")
    journal = Journal.open(path, first.machine.gpu)
    journal.append(first.samples[0])
    journal.begin(cases[1])
    journal.close()
    profile, launcher = run_fake(cases, tmp_path / "data.pt", resume=True)
    assert launcher.launched == cases[2:]
    assert [sample.status for sample in profile.samples] == ["ok", "failed", "ok"]
    assert profile.samples[1].launched["reason"] == "the process ended during this case"


def test_only_a_run_that_goes_on_passes_over_a_case(tmp_path: Path) -> None:
    """One that was not asked to tries every case: what ended the process may have been mended."""
    cases: list[Case] = [GemmCase(m=8 * size, k=8, n=8) for size in (1, 2)]
    first, _ = run_fake(cases[:1], tmp_path / "first.pt")
    journal = Journal.open(journal_path(tmp_path / "data.pt"), first.machine.gpu)
    journal.begin(cases[0])
    journal.close()
    profile, launcher = run_fake(cases, tmp_path / "data.pt")
    assert launcher.launched == cases
    assert [sample.status for sample in profile.samples] == ["ok", "ok"]


def test_an_output_is_this_runs_until_its_samples_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = profiling_run.merge_into
    refused: list[str] = []

    def meanwhile(output: Path, profile: ProfileDatabase) -> object:
        with pytest.raises(ProfileError, match="another run is writing it") as found:
            Journal.open(journal_path(output), profile.machine.gpu)
        refused.append(str(found.value))
        return merge(output, profile)

    monkeypatch.setattr(profiling_run, "merge_into", meanwhile)
    run_fake([HostCase(kind="launch")], tmp_path / "data.pt")
    assert len(refused) == 1


def test_a_call_of_two_operations_is_timed_by_the_operation() -> None:
    bench = fake_bench()
    inner = bench.launcher

    class Twice:
        def launch(self, case: Case) -> Launched:
            launched = inner.launch(case)
            return replace(launched, calls=(lambda: [call() for call in launched.calls * 2],), operations=2)

    bench.launcher = Twice()
    case = GemmCase(m=8, k=8, n=8)
    sample = measure(case, bench, "")
    assert sample.median_s == pytest.approx(seconds_of(case), rel=1e-6)
