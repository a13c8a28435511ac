"""Pictures: every one that the profile has data for, under its agreed name."""

from pathlib import Path

import numpy as np
import pytest

from profdb.cases import CollectiveCase, HostCase
from profdb.curvebook import CurveBook
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profiler.collective_plots import all_series, draw_bandwidth, fitted
from profiler.plot_style import byte_label, count_label, new_figure, rate_label, time_label
from profiler.plots import draw_profile
from profiler.sweep_plan import SweepPlan, plan_cases
from spec.collectives import TRAINING_COLLECTIVES, Collective
from tests.profiler.fakes import seconds_of

MACHINE = MachineFacts(gpu="a machine", date="2026-01-01", best_flops={"bf16": 1e12})


def sampled(plan: SweepPlan) -> ProfileDatabase:
    samples = tuple(Sample(case=case, trials_s=(seconds_of(case),) * 3) for case in plan_cases(plan))
    return ProfileDatabase(machine=MACHINE, samples=samples)


def test_every_picture_has_its_name(tmp_path: Path) -> None:
    plan = SweepPlan(device_kind="cpu", domain_ranks=2, domains=1, max_bytes=1 << 18)
    drawn = draw_profile(sampled(plan), tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in drawn} == {
        "overview.jpg",
        "cal/linear.jpg",
        "cal/attention.jpg",
        "cal/memory_bound.jpg",
        *(f"comm/{kind.value}_intra_2_inter_1.jpg" for kind in TRAINING_COLLECTIVES),
    }
    for path in drawn:
        assert path.read_bytes()[:2] == b"\xff\xd8"  # a JPEG begins so


def test_a_profile_of_little_draws_what_it_has(tmp_path: Path) -> None:
    samples = (Sample(case=HostCase(kind="launch"), trials_s=(1e-6,)),)
    drawn = draw_profile(ProfileDatabase(machine=MACHINE, samples=samples), tmp_path)
    assert [path.name for path in drawn] == ["overview.jpg"]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    # nccl-tests PERFORMANCE.md: busbw of all_reduce = size / time x 2 (n - 1) / n; 1 GB in 10 ms on 4
    # ranks is 100 GB/s algbw and 150 GB/s busbw
    cases = [
        CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=size, intra=4, inter=1)
        for size in (10**6, 10**9)
    ]
    samples = tuple(Sample(case=case, trials_s=(case.size_bytes / 1e11,)) for case in cases)
    profile = ProfileDatabase(machine=MACHINE, samples=samples)
    (series,) = all_series(profile)
    _, (axes, _) = new_figure(2)
    sizes = series.size_bytes
    draw_bandwidth(axes, series, sizes, fitted(CurveBook(profile), series, sizes))
    busbw, algbw = (np.asarray(line.get_ydata()) for line in axes.lines[:2])
    assert busbw == pytest.approx([150.0, 150.0])
    assert algbw == pytest.approx([100.0, 100.0])


@pytest.mark.parametrize(
    ("label", "value", "text"),
    [
        (byte_label, 1024, "1 KiB"),
        (byte_label, 3 << 19, "1.5 MiB"),
        (byte_label, 12, "12 B"),
        (time_label, 1e-6, "1 us"),
        (time_label, 2.5e-3, "2.5 ms"),
        (time_label, 3.0, "3 s"),
        (count_label, 131072, "128k"),
        (count_label, 512, "512"),
        (rate_label, 2e12, "2T"),
        (rate_label, 7.0, "7"),
    ],
)
def test_labels_are_read_at_a_glance(label: object, value: float, text: str) -> None:
    assert label(value) == text  # type: ignore[operator]
