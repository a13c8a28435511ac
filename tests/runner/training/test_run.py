"""Training runs from the command line: one process, a plan that is refused on all ranks, ranks that go wrong."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from profiler.distributed.rank_layout import RankLayout
from runner.traces.launches import step_launches
from runner.traces.trace_file import Part, read_trace
from runner.training.run import TrainOptions, place_of, run_training
from runner.training.task import TrainRequest
from spec.errors import UserError
from spec.frameworks import framework_preset
from spec.job import JobSpec, precision_of
from spec.readers.read_config import read_config
from tests.patience import patiently
from tests.profiler.distributed.test_world import environment, free_port
from tests.solver.questions import ROOT, model_flops

CONFIG = ROOT / "configs" / "tiny_internlm2.py"
PATIENCE_S = 300.0
CPU_PEAK_FLOPS = 160e9  # configs/clusters/cpu.toml


def torchrun(ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += [f"--master-port={free_port()}", str(ROOT / "run_workload.py"), "train", "--device", "cpu", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def ran(program: str, *words: str) -> list[Any]:
    """What a program beside this test prints, a JSON object a line."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(program)), *words]
    ended = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def test_one_process_trains_and_writes_what_it_measured(tmp_path: Path) -> None:
    printed: list[str] = []
    request = TrainRequest(root=ROOT, config=CONFIG, plan="micro_batch=2", micro_batches=2, seq_len=32, dtype="fp32")
    options = TrainOptions(
        request=request,
        device="cpu",
        steps=3,
        warmup=1,
        results=tmp_path / "results",
        trace=tmp_path / "traces",
        metrics=tmp_path / "train.prom",
        say=printed.append,
    )
    lines = run_training(options, RankLayout())
    assert printed == [printed[0]]
    assert "4,065,536 parameters" in printed[0]
    (written,) = tmp_path.glob("results/*_train.json")
    record = json.loads(written.read_text())
    assert len(record["steps_s"]) == len(record["losses"]) == 3
    # every thread as much CPU time as goes by, or less
    both = zip(record["steps_cpu_s"], record["steps_s"], strict=True)
    assert all(0 < cpu_s < 1.1 * torch.get_num_threads() * wall_s for cpu_s, wall_s in both)
    (traced,) = tmp_path.glob("traces/*_rank0.trace.json.gz")
    trace = read_trace(traced)
    products = [one for one in step_launches(trace).launches if one.key.part is Part.PRODUCT]
    # two steps of two micro-batches through 4 layers of 7 products and the head, each with two gradients
    assert (len(trace.steps), len(products)) == (2, 2 * 2 * 3 * (4 * 7 + 1))
    assert record["step_s"] == pytest.approx(sum(record["steps_s"]) / 3)
    assert record["tokens_per_gpu_per_s"] == pytest.approx(4 * 32 / record["step_s"])
    model, preset = read_config(CONFIG).model, framework_preset("internevo")
    job = JobSpec(
        world_size=1, seq_len=32, global_batch_tokens=128, preset=preset, precision=precision_of(preset, "fp32")
    )
    flops = 4 * model_flops(model, job)
    assert record["mfu"] == pytest.approx(flops / CPU_PEAK_FLOPS / record["step_s"])
    assert (record["allocated_bytes"], record["reserved_bytes"]) == (None, None)
    assert record["resident_bytes"] > 3 * 4 * 4_065_536  # weights and two moments
    # ln(1024) = 6.93: nothing can be learnt of random tokens.
    assert record["losses"] == [pytest.approx(6.93, abs=0.3)] * 3
    # what compare prices: torch's layers, whatever the preset fuses
    assert (record["job"]["host.code"], record["job"]["layers.norm_kernel"]) == ("torch", "torch")
    assert record["attention_kernel"] in ("flash_attention_for_cpu", "attention_math")
    assert "attention_kernel" not in record["job"]
    state = (tmp_path / "train.prom").read_text()
    assert "pss_steps_total{run=" in state
    assert state.endswith("# EOF\n")
    (steps,) = tmp_path.glob("results/*_steps.csv")
    rows = list(csv.DictReader(steps.open()))
    assert [float(row["loss"]) for row in rows] == pytest.approx(record["losses"], abs=1e-5)
    assert any(line.startswith("step ") for line in lines)


@pytest.mark.parametrize("option", ["json", "metrics"])
def test_a_file_that_cannot_be_written_is_refused_before_the_steps(option: str, tmp_path: Path) -> None:
    printed: list[str] = []
    request = TrainRequest(root=ROOT, config=CONFIG, plan="micro_batch=1", micro_batches=1, seq_len=32, dtype="fp32")
    options = TrainOptions(request=request, device="cpu", say=printed.append)
    with pytest.raises(UserError, match=f"--{option}: output path"):
        run_training(replace(options, **{option: tmp_path / "no" / "file"}), RankLayout())
    assert printed == []


def test_a_plan_for_another_number_of_ranks_is_refused() -> None:
    options = TrainOptions(request=TrainRequest(root=ROOT, config=CONFIG, plan="tp=2,dp=2"), device="cpu")
    with pytest.raises(UserError, match=r"divisor of the world size 1"):
        run_training(options, RankLayout())


@pytest.mark.nightly
def test_compiled_blocks_lose_as_plain_ones_do(tmp_path: Path) -> None:
    losses = []
    for compiled in (False, True):
        request = TrainRequest(
            root=ROOT, config=CONFIG, plan="micro_batch=1", micro_batches=2, seq_len=32, dtype="fp32", compiled=compiled
        )
        options = TrainOptions(request=request, device="cpu", steps=2, warmup=1, json=tmp_path / "step.json")
        run_training(options, RankLayout())
        record = json.loads((tmp_path / "step.json").read_text())
        assert record["compiled"] is compiled
        losses.append(record["losses"])
    # the last has two updates behind it, of gradients that were compiled too
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.nightly
@pytest.mark.distributed
def test_ranks_train_and_rank_zero_says_it(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    words = ["--config", str(CONFIG), "--plan", "tp=2,strategy=msp,zero_stage=1", "--seq_len", "32"]
    ran = torchrun(4, *words, "--steps", "2", "--warmup", "1", "--json", str(path))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("\nmfu ") == 1
    record = json.loads(path.read_text())
    assert (record["plan"]["dp"], record["plan"]["tp"], record["dtype"]) == (2, 2, "bf16")
    assert record["losses"][1] < 7.0


@pytest.mark.nightly
@pytest.mark.distributed
def test_all_ranks_end_with_one_line_for_a_plan_that_cannot_be_run() -> None:
    words = ["--config", str(CONFIG), "--plan", "strategy=isp,tp=2"]
    ran = torchrun(2, *words)
    assert ran.returncode != 0
    assert [line for line in ran.stderr.splitlines() if line.startswith("error:")] == [
        "error: train: strategy = 'isp': mtp, msp or fsp; cp exchanges heads with --job context_parallel=all_to_all "
        "(train supports no other)"
    ]
    # torchrun ends the other rank where that is slower.
    codes = re.findall(r"(?m)^ +exitcode\s*: (-?\d+)", ran.stderr)
    assert "2" in codes
    assert set(codes) <= {"2", "-15"}


@pytest.mark.nightly
@pytest.mark.distributed
def test_a_rank_that_goes_wrong_ends_the_run_with_one_line() -> None:
    def check(limit_s: float) -> None:
        result = ran("going_wrong.py", str(limit_s), "dies", "hangs", "fills")
        runs = {each["way"]: (each["statuses"], each["said"].splitlines()) for each in result}
        patterns = {
            "dies": ([2, 7], r"error: rank 1 exited or stopped in step 2 \(rank 0: the backward: .*\)"),
            "hangs": (
                [2, 2],
                r"error: no rank makes progress \(rank 0 in step 2, in reduce_scatter\w* over cp \(ranks 0, 1\) in "
                r"the backward; rank 1 in step 2, in FeedForward of blocks\.\d\) in step 2",
            ),
            "fills": (
                [2, 2],
                r"error: rank 1: out of memory in step 2, in FeedForward of blocks\.3 \(Tried to allocate 20\.00 GiB\)",
            ),
        }
        assert list(runs) == list(patterns)
        for way, (statuses, pattern) in patterns.items():
            assert runs[way][0] == statuses
            assert len(runs[way][1]) == 1
            assert re.fullmatch(pattern, runs[way][1][0]), runs[way]

    patiently(8.0, check)


# What a rank is inside of, told from its frames.


def frame_in_torch(group: object) -> FrameType:
    """A frame of a function all_reduce of torch.distributed that holds ``group``."""
    names: dict[str, Any] = {"__name__": "torch.distributed.distributed_c10d"}
    exec("def all_reduce(group):\n    import sys\n    return sys._getframe()\n", names)  # noqa: S102
    frame = names["all_reduce"](group)
    assert isinstance(frame, FrameType)
    return frame


def test_the_group_of_an_operation_is_named_where_torch_knows_it() -> None:
    for group in (dist.ProcessGroup(0, 2), None):  # the first is being taken apart
        assert place_of([frame_in_torch(group)]) == "all_reduce"
