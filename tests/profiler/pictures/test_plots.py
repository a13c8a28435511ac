"""Pictures: every one that the profile has data for, under its agreed name."""

from pathlib import Path

import numpy as np
import pytest

import gen_profiler_data
from profdb.cases import AttentionCase, CollectiveCase, Family, GemmCase, HostCase
from profdb.cost_model import ProfileCostModel
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile
from profiler.cases.sweep_plan import SweepPlan, plan_cases
from profiler.pictures.collective_plots import all_series, draw_bandwidth, fitted_curve, worth_drawing
from profiler.pictures.compute_plots import draw_linear_rates, dtypes_of
from profiler.pictures.plot_style import (
    byte_label,
    count_label,
    legend_above,
    new_figure,
    rate_label,
    time_label,
    usable,
)
from profiler.pictures.plots import draw_attention_overview, draw_profile
from pss.profile import draw_pictures
from spec.collectives import TRAINING_COLLECTIVES, Collective
from tests.profiler.fakes import seconds_of

MACHINE = MachineFacts(gpu="a machine", date="2026-01-01", best_flops={"bf16": 1e12})


def sampled(plan: SweepPlan, but: tuple[Collective, ...] = ()) -> ProfileDatabase:
    cases = [case for case in plan_cases(plan) if not (isinstance(case, CollectiveCase) and case.collective in but)]
    samples = tuple(Sample(case=case, trials_s=(seconds_of(case),) * 3) for case in cases)
    return ProfileDatabase(machine=MACHINE, samples=samples)


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_pictures")
def test_every_picture_has_its_name(tmp_path: Path) -> None:
    plan = SweepPlan(device_kind="cpu", domain_ranks=2, domains=1, max_bytes=1 << 18)
    assert {one.name for one in all_series(sampled(plan))} >= {
        f"{kind.value}_intra_2_inter_1" for kind in TRAINING_COLLECTIVES
    }
    # One of them is drawn as the others are.
    drawn = draw_profile(sampled(plan, but=TRAINING_COLLECTIVES[1:]), tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in drawn} == {
        "overview.jpg",
        "cal/linear.jpg",
        "cal/attention.jpg",
        "cal/memory_bound.jpg",
        f"comm/{TRAINING_COLLECTIVES[0].value}_intra_2_inter_1.jpg",
    }
    for path in drawn:
        assert path.read_bytes()[:2] == b"\xff\xd8"  # a JPEG begins so


def test_a_profile_of_little_draws_what_it_has(tmp_path: Path) -> None:
    samples = (Sample(case=HostCase(kind="launch"), trials_s=(1e-6,)),)
    drawn = draw_profile(ProfileDatabase(machine=MACHINE, samples=samples), tmp_path)
    assert [path.name for path in drawn] == ["overview.jpg"]


@pytest.mark.usefixtures("quick_pictures")
def test_a_gpu_with_fp16_and_unfused_attention_alone_is_drawn(tmp_path: Path) -> None:
    cases = [GemmCase(m=m, k=256, n=256, layout="NT", dtype_in="fp16", dtype_out="fp16") for m in (256, 512)]
    sizes = {"heads": 8, "kv_heads": 8, "qk_dim": 64, "v_dim": 64, "dtype": "fp16", "kernel": "core"}
    attention = [AttentionCase(batch=1, q_len=length, kv_len=length, **sizes) for length in (256, 512)]
    samples = tuple(Sample(case=case, trials_s=(1e-3,)) for case in (*cases, *attention))
    profile = ProfileDatabase(machine=MACHINE, samples=samples)
    assert {path.stem for path in draw_profile(profile, tmp_path)} == {"linear", "attention", "overview"}
    products = usable(profile, Family.GEMM)
    assert products is not None
    _, (axes,) = new_figure(1)
    draw_linear_rates(axes, products, dtypes_of(products)[0])
    assert axes.get_title().startswith("fp16")
    assert len(axes.lines) == 2  # the samples and their median
    _, (axes,) = new_figure(1)
    draw_attention_overview(axes, profile)
    assert [line.get_label() for line in axes.lines] == ["core, forward"]


def test_the_shipped_pictures_are_those_of_the_default_profile() -> None:
    folder = Path(gen_profiler_data.__file__).parent / "prof_data"
    series = worth_drawing(all_series(load_profile(folder / "data.pt")))
    assert {path.stem for path in (folder / "pics" / "comm").iterdir()} == {one.name for one in series}
    assert {path.stem for path in (folder / "pics" / "cal").iterdir()} == {"linear", "attention"}


@pytest.mark.parametrize(("name", "folder"), [("data.pt", "pics"), ("b200.pt", "pics/b200")])
def test_each_profile_is_drawn_into_its_own_folder(name: str, folder: str, tmp_path: Path) -> None:
    samples = (Sample(case=HostCase(kind="launch"), trials_s=(1e-6,)),)
    draw_pictures(tmp_path / name, ProfileDatabase(machine=MACHINE, samples=samples), enabled=True)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jpg")] == [f"{folder}/overview.jpg"]


def test_bandwidths_are_those_of_nccl_tests() -> None:
    # nccl-tests PERFORMANCE.md: busbw of all_reduce = size / time x 2 (n - 1) / n; 1 GB in 10 ms on 4
    # ranks is 100 GB/s algbw and 150 GB/s busbw
    cases = [
        CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=size, intra=4, inter=1) for size in (10**6, 10**9)
    ]
    samples = tuple(Sample(case=case, trials_s=(case.size_bytes / 1e11,)) for case in cases)
    profile = ProfileDatabase(machine=MACHINE, samples=samples)
    (series,) = all_series(profile)
    _, (axes, _) = new_figure(2)
    sizes = series.size_bytes
    draw_bandwidth(axes, series, fitted_curve(ProfileCostModel(profile), series, sizes))
    busbw, algbw = (np.asarray(line.get_ydata()) for line in axes.lines[:2])
    assert busbw == pytest.approx([150.0, 150.0])
    assert algbw == pytest.approx([100.0, 100.0])


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_legends_cover_no_curve(scale: str) -> None:
    figure, (axes,) = new_figure(1)
    axes.set_yscale(scale)
    for number in range(6):
        axes.plot([1.0, 2.0], [10.0 + number, 1.0], label=f"curve {number}")
    legend_above(axes)
    figure.draw_without_rendering()
    legend = axes.get_legend()
    assert legend is not None
    top_of_curves = axes.transData.transform((1.0, 15.0))[1]
    assert legend.get_window_extent().ymin >= top_of_curves


@pytest.mark.parametrize(
    ("label", "value", "text"),
    [
        (byte_label, 1024, "1 KiB"),
        (byte_label, 12, "12 B"),
        (time_label, 1e-6, "1 us"),
        (count_label, 131072, "128k"),
        (count_label, 512, "512"),
        (rate_label, 2e12, "2T"),
        (rate_label, 7.0, "7"),
    ],
)
def test_labels_are_read_at_a_glance(label: object, value: float, text: str) -> None:
    assert label(value) == text  # type: ignore[operator]
