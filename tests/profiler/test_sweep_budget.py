"""How long a run may take: when it stops, what it keeps for fits and pictures, and where it counts from."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from profdb.cases import HostCase
from profiler import sweep as sweeping
from profiler.profiling_run import RunOptions, run_in
from profiler.sweep import Budget, sweep
from tests.profiler.fakes import FakeClock, FakeLauncher, fake_bench, single_world

ROOT = Path(__file__).resolve().parents[2]


def test_a_spent_budget_stops_before_the_next_case(tmp_path: Path) -> None:
    bench = fake_bench()
    spent = Budget(seconds=1.0, started=-1e9)
    assert not Budget().spent(10**6)
    result = sweep([HostCase(kind="launch")] * 3, bench, None, spent, "")
    assert (result.num_remaining, sum(result.statuses.values())) == (3, 0)


@pytest.mark.parametrize(
    ("seconds", "elapsed_s", "samples", "spent"),
    [(100.0, 79.0, 2000, False), (100.0, 79.0, 3000, True), (4.0, 1.9, 10**6, False), (4.0, 2.1, 10**6, True)],
)
def test_a_budget_keeps_time_for_fits_and_pictures(
    seconds: float, elapsed_s: float, samples: int, spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight seconds and five milliseconds a sample, at most half of the budget."""
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: elapsed_s))
    assert Budget(seconds=seconds, started=0.0).spent(samples) is spent


@pytest.mark.parametrize(("before_s", "spent_before", "launched"), [(0.0, "", 1), (95.0, "", 0), (0.0, "95", 0)])
def test_a_budget_counts_from_the_programs_start_and_on_through_restarts(
    before_s: float, spent_before: str, launched: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILER_SPENT_S", spent_before)
    # real clocks around calls that take no time read noise alone
    monkeypatch.setattr("profiler.sweep.noisy_cases", lambda samples: [])
    launcher = FakeLauncher(clock=FakeClock())
    began = time.monotonic() - before_s
    options = RunOptions(output=tmp_path / "data.pt", root=ROOT, device="cpu", budget_s=100.0, began=began)
    report = run_in(single_world(), options, [HostCase(kind="launch")], launcher)
    assert report is not None
    assert (len(launcher.launched), report.sweep.num_remaining) == (launched, 1 - launched)
