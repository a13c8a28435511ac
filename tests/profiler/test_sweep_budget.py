"""How long a run may take: when it stops, what it keeps for fits and pictures, and where it counts from."""

import time
from pathlib import Path

import pytest

from profdb.cases import HostCase
from profiler.profiling_run import RunOptions, run_in
from profiler.sweep import Budget, sweep
from tests.profiler.fakes import FakeClock, FakeLauncher, fake_bench, single_world

ROOT = Path(__file__).resolve().parents[2]


def test_a_spent_budget_stops_before_the_next_case(tmp_path: Path) -> None:
    bench = fake_bench()
    spent = Budget(seconds=1.0, started=-1e9)
    assert not Budget().spent(10**6)
    result = sweep([HostCase(kind="launch")] * 3, bench, None, spent, "")
    assert (result.left, sum(result.statuses.values())) == (3, 0)


def test_a_budget_keeps_time_for_fits_and_pictures() -> None:
    """Eight seconds and five milliseconds a sample, at most half of the budget."""
    budget = Budget(seconds=100.0, started=time.monotonic() - 79.0)
    assert not budget.spent(2000)
    assert budget.spent(3000)
    assert not Budget(seconds=4.0, started=time.monotonic() - 1.9).spent(10**6)
    assert Budget(seconds=4.0, started=time.monotonic() - 2.1).spent(10**6)


@pytest.mark.parametrize(
    ("before_s", "spent_before", "launched"), [(0.0, "", 1), (95.0, "", 0), (0.0, "95", 0)]
)
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
    assert (len(launcher.launched), report.sweep.left) == (launched, 1 - launched)
