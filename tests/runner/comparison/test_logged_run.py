"""Logs of frameworks: lines made by the formats of their sources (runner.comparison.logged_run names them); the numbers
are made up."""

from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest

from runner.comparison.logged_run import logged_run
from solver.plans.plan_table import Plan
from solver.problem.request import read_request
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.units import GIB, MIB
from tests.runner.comparison import made_logs
from tests.runner.comparison.made_logs import DEEPSPEED, INTERNEVO, MEGATRON, TORCHTITAN
from tests.solver.questions import request

PATH = Path("train.log")
PLAN = Plan(strategy="mtp", preset="megatron", tp=2, dp=2, zero_stage=0, zero_size=1, micro_batch=1, num_micro=4)


@pytest.fixture(scope="module")
def job() -> JobSpec:
    """8 sequences of 256 tokens a step on 4 GPUs."""
    return read_request(request("tiny_internlm2.py", 4, global_batch_tokens=2048, cluster="h100-sxm")).job


def test_megatron(job: JobSpec) -> None:
    run = logged_run(PATH, MEGATRON, job, PLAN)
    # Steps 4 to 7; the first line of step 1 and the two after it are the warm-up.
    assert run.steps_s == pytest.approx((0.104, 0.100, 0.150, 0.102))
    assert (run.form, run.warmup) == ("Megatron-LM log", 3)
    assert run.step_s == pytest.approx(0.103)
    assert run.spread_s == pytest.approx((0.1006, 0.1362))
    assert run.allocated_bytes == pytest.approx(2048.5 * MIB)
    assert run.reserved_bytes == pytest.approx(3072.0 * MIB)


def test_an_interval_counts_where_it_begins_after_the_warm_up(job: JobSpec) -> None:
    lines = [line for line in MEGATRON.splitlines() if "iteration  " in line]
    every = "\n".join(
        lines[0].replace("       1/", f"{step:8}/").replace("900.0", f"{100 + step:.1f}") for step in (1, 10, 20, 30)
    )
    assert logged_run(PATH, every, job, PLAN).steps_s == pytest.approx((0.12, 0.13))
    resumed = every.replace("       1/", "    1000/").replace("      10/", "    1010/")
    resumed = resumed.replace("      20/", "    1020/").replace("      30/", "    1030/")
    assert logged_run(PATH, resumed, job, PLAN).steps_s == pytest.approx((0.11, 0.12, 0.13))
    assert len(logged_run(PATH, every, job, PLAN, warmup=0).steps_s) == 4


@pytest.mark.parametrize(
    ("name", "steps_s", "memory_bytes"),
    [
        # 2048 tokens / (4 GPUs x tokens/s per GPU)
        ("INTERNEVO", (2048 / (4 * 5120), 2048 / (4 * 5000)), (None, None)),
        # on every rank, and in colour
        ("TORCHTITAN", (2048 / (4 * 5120), 2048 / (4 * 4096)), (None, 3.25 * GIB)),
        ("DEEPSPEED", (8 / 64, 8 / 80), (1.75 * GIB, None)),
        ("DEEPSPEED_PIPELINE", (0.104, 0.102), (None, None)),
        ("DEEPSPEED_BEFORE", (8 / 64, 8 / 80), (1.75 * GIB, None)),
        ("BRIDGE", (1.25, 1.1), (1.75e9, 2.5e9)),
        ("NANOTRON", (1.25, 0.988), (1536 * MIB, 2048 * MIB)),
        ("NEMO", (1.25, 1.125), (None, None)),
        ("NEMO_BAR", (1.25, 1.125), (None, None)),
        ("AUTOMODEL", (2048 / 1024,), (1.75 * GIB, None)),
        ("AUTOMODEL_BEFORE", (2048 / 1024,), (1.75 * GIB, None)),
        ("MAXTEXT", (1.25, 1.5), (None, None)),
        ("FOUNDRY", (8 / 6.4, 8 / 8), (1.75e9, 2.5e9)),
        ("FOUNDRY_TOKENS", (8 / 6.4, 8 / 8), (1.75e9, 2.5e9)),
        ("OLMO", (1 / 0.8, 1 / 0.5), (None, 2.5 * GIB)),
        ("SWIFT", (0.5, 0.35), (None, 2.5 * GIB)),
        ("SWIFT_OF_2026", (0.5, 0.35), (None, 2.5 * GIB)),
        ("SWIFT_MEGATRON", (0.5, 0.35), (None, 2.5 * GIB)),
        ("AXOLOTL", (2048 / (4 * 512), 2048 / (4 * 256)), (1.75 * GIB, 2.5 * GIB)),
        ("HUGGINGFACE", (8 / 6.4,), (None, None)),
    ],
)
def test_logs_of_other_frameworks(
    job: JobSpec, name: str, steps_s: tuple[float, ...], memory_bytes: tuple[float | None, float | None]
) -> None:
    run = logged_run(PATH, getattr(made_logs, name), job, PLAN)
    assert run.steps_s == pytest.approx(steps_s)
    assert (run.allocated_bytes, run.reserved_bytes) == memory_bytes


def test_memory_counts_whichever_framework_reports_it(job: JobSpec) -> None:
    """MS-Swift on DeepSpeed: steps of the one, memory of both."""
    run = logged_run(PATH, DEEPSPEED + made_logs.SWIFT, job, PLAN)
    assert run.form == "DeepSpeed log"
    assert (run.allocated_bytes, run.reserved_bytes) == (1.75 * GIB, 2.5 * GIB)


def test_a_line_longer_than_any_step_is_not_searched(job: JobSpec) -> None:
    """950 beginnings without an end took 20 s a line."""
    spoilt = ("step: 1 memory: 1GiB(" * 950 + "tps:\n") * 20
    began = process_time()
    assert logged_run(PATH, spoilt + TORCHTITAN, job, PLAN).steps_s == logged_run(PATH, TORCHTITAN, job, PLAN).steps_s
    assert process_time() - began < 5.0


def test_the_last_of_two_runs_counts(job: JobSpec) -> None:
    twice = MEGATRON.replace("102.0", "555.0") + MEGATRON
    assert logged_run(PATH, twice, job, PLAN).steps_s == logged_run(PATH, MEGATRON, job, PLAN).steps_s


@pytest.mark.parametrize(
    ("text", "plan", "expected"),
    [
        ("hello\n", PLAN, "the JSON of train, or lines of steps"),
        (MEGATRON, replace(PLAN, tp=4, dp=1), "tp = 2: 4, as requested"),
        (MEGATRON.replace("world size: 4", "world size: 8"), PLAN, "world_size = 8: 4, as requested"),
        (MEGATRON.replace("batch size:     8", "batch size:    16"), PLAN, "global batch size = 16: 8 seq"),
        (made_logs.NEMO.replace("size: 8", "size: 16"), PLAN, "global batch size = 16: 8 seq"),
        (INTERNEVO.replace("consumed_tokens=10240", "consumed_tokens=12288"), PLAN, "step 4: tokens of the step"),
        (TORCHTITAN.replace("tps: 5,120", "tps: 0"), PLAN, "tgs = '0': more than 0"),
        (MEGATRON.split("       4/")[0], PLAN, "steps = 3: one after 3 of warm-up"),
    ],
)
def test_one_line_for_what_cannot_be_compared(job: JobSpec, text: str, plan: Plan, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        logged_run(PATH, text, job, plan)
