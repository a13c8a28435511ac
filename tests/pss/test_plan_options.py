"""Lists, runs and failures as typed."""

from pathlib import Path

import pytest

from pss.plan_options import options_parser, run_options, sweep_axes, sweep_workers
from solver.analysis.goodput import Reliability, RunTerms
from spec.errors import CommandLineError, ConfigError

ONE = ["--world_size", "8"]


def test_a_comma_means_a_list() -> None:
    typed = ["--world_size", "64,128", "--framework", "fsdp,megatron", "--micro_batch", "2", "--run_all_solu"]
    assert sweep_axes(options_parser().parse_args([*typed, "--config", "7B_gpt,a/b.toml"])) == {
        "model": (Path("7B_gpt"), Path("a/b.toml")),
        "framework": ("fsdp", "megatron"),
        "micro_batch": (2,),
        "world_size": (64, 128),
    }
    assert sweep_axes(options_parser().parse_args([*ONE, "--run_all_solu"])) == {}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--world_size", "8,16"], "^--world_size: world_size = '8,16': a list with --run_all_solu alone"),
        (["--world_size", "8,16", "--run_all_solu", "--export_simai", "a.txt"], "--export_simai: export_simai"),
        (["--world_size", "8,16", "--run_all_solu", "--explain", "tp=2"], "one question"),
    ],
)
def test_a_list_is_a_search_of_its_own(typed: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep_axes(options_parser().parse_args(typed))


@pytest.mark.parametrize(
    ("typed", "workers"),
    [
        (["--world_size", "8,16"], None),
        (["--world_size", "8,16", "--jobs", "2"], 2),
        (["--world_size", "8,16", "--scheduler", "host:8786"], "host:8786"),
        ([*ONE, "--jobs", "2"], "^--jobs: .* for sweeps"),
        ([*ONE, "--scheduler", "host:8786"], "^--scheduler: .* for sweeps"),
        (["--world_size", "8,16", "--scheduler", "host:8786", "--jobs", "2"], "^--jobs: .* not both"),
    ],
)
def test_workers_are_of_sweeps(typed: list[str], workers: str | int | None) -> None:
    options = options_parser().parse_args(typed)
    if not str(workers).startswith("^"):
        assert sweep_workers(options) == workers
        return
    with pytest.raises(ConfigError, match=str(workers)):
        sweep_workers(options)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--world_size", "8,8"], "names a value twice"),
        (["--world_size", "8,"], "not a whole number"),
        ([*ONE, "--tokens", "1X"], "15T"),
        ([*ONE, "--tokens=-1T"], "15T"),
        ([*ONE, "--cluster", ","], "an empty name"),
    ],
)
def test_what_is_no_list_or_number_of_tokens_is_refused(typed: list[str], said: str) -> None:
    with pytest.raises(CommandLineError, match=said):
        options_parser().parse_args(typed)


def test_a_run_and_its_failures_as_stated() -> None:
    typed = [*ONE, "--tokens", "1.5T", "--price_per_gpu_hour", "2", "--spare_nodes", "3", "--repair_hours", "12"]
    typed += ["--mtbf_gpu_hours", "1000", "--restart_minutes", "5", "--checkpoint_gb_per_s", "100"]
    reliability, terms = run_options(options_parser().parse_args(typed))
    assert terms == RunTerms(tokens=1.5e12, price_per_gpu_hour=2.0, spare_nodes=3)
    assert reliability == Reliability(
        mtbf_hours=1000.0, restart_s=300.0, storage_bandwidth=1e11, spare_nodes=3, repair_hours=12.0
    )
    assert run_options(options_parser().parse_args(ONE)) == (None, None)
    assert run_options(options_parser().parse_args([*ONE, "--rank_by", "goodput"]))[0] == Reliability()
    for scale, tokens in (("300B", 3e11), ("2e12", 2e12), ("5M", 5e6), ("7k", 7e3)):
        assert options_parser().parse_args([*ONE, "--tokens", scale]).tokens == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--price_per_gpu_hour", "2"], "together with --tokens"),
        (["--spare_nodes", "2"], "together with --repair_hours"),
        (["--repair_hours", "2"], "together with --repair_hours"),
    ],
)
def test_what_needs_another_option_says_so(typed: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_options(options_parser().parse_args([*ONE, *typed]))
