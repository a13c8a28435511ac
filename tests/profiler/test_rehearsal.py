"""Before a sweep: what it would measure, and one case of every kind."""

from collections import Counter
from collections.abc import Hashable
from pathlib import Path

import pytest

from profdb.cases import SustainedCase
from profiler.cases.planned import most_informative_first
from profiler.cases.smoke import kind_of, smoke_cases
from profiler.cases.sweep_plan import SweepPlan, gpu_compute, largest_array_bytes, plan_tiers
from profiler.dry_run import dry_run_lines, expected_s, launches_s
from profiler.timing import TrialPlan
from spec.cluster.reader import read_cluster

ROOT = Path(__file__).resolve().parents[2]
GPU_CASES = most_informative_first(gpu_compute())
SHORT_CASES = [case for case in GPU_CASES if not isinstance(case, SustainedCase)]


def test_every_kind_is_smoked_once_by_its_smallest_case() -> None:
    smallest: dict[Hashable, float] = {}
    for case in SHORT_CASES:
        kind = kind_of(case)
        smallest[kind] = min(largest_array_bytes(case), smallest.get(kind, float("inf")))
    smoked = smoke_cases(GPU_CASES)
    assert Counter(kind_of(case) for case in smoked) == dict.fromkeys(smallest, 1)
    assert {kind_of(case): largest_array_bytes(case) for case in smoked} == smallest
    names = [{getattr(case, "kernel", "") for case in cases} for cases in (GPU_CASES, smoked)]
    assert names[0] == names[1]


def test_a_dry_run_counts_every_case_and_adds_up() -> None:
    plans = plan_tiers(SweepPlan(device_kind="cuda", domain_ranks=2))
    sheet = read_cluster("h200", root=ROOT)
    lines = dry_run_lines(plans, sheet, TrialPlan())
    counts = [int(line.split()[2]) for line in lines[:-1]]
    assert sum(counts) == len(plans) == int(lines[-1].split()[0])
    seconds = expected_s([plan.case for plan in plans], sheet, TrialPlan())
    assert lines[-1].endswith(f"about {seconds.sum() / 60:.1f} minutes")
    # a call of 10 ms: three to warm up, one more, then as many trials as 0.15 s hold
    assert launches_s(0.01, TrialPlan()) == pytest.approx(0.01 * (3 + 1 + 15))
