"""The model that is run is the one that is priced, and a step of it trains."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu_step
from benchmarks.gpu_steps import one_row
from benchmarks.gpu_steps.case import DecoderShape, StepCase
from benchmarks.gpu_steps.one_row import LAUNCHES, measured
from benchmarks.gpu_steps.rows import MODEL, price_case
from benchmarks.gpu_steps.training import PlainTrainer
from profiler.device import Device
from profiler.distributed.rank_layout import RankLayout
from solver.problem.request import Request
from spec.parameters import num_parameters
from spec.readers.read_config import read_config

SHAPE = DecoderShape(hidden=32, layers=2, heads=4, kv_heads=2, ffn=64, vocab=96, seq_len=16)
CPU = Device(kind="cpu")


def training(**changes: object) -> PlainTrainer:
    torch.manual_seed(0)
    return PlainTrainer(StepCase(shape=SHAPE, micro_batch=2, **changes), CPU)  # type: ignore[arg-type]


def test_it_has_the_parameters_that_are_priced(tmp_path: Path) -> None:
    path = tmp_path / "decoder.toml"
    path.write_text(MODEL.format(**{name: getattr(SHAPE, name) for name in SHAPE.__slots__}))
    priced = read_config(path).model
    held = sum(weight.numel() for weight in training().weights)
    assert held == num_parameters(priced).total


def test_steps_lower_the_loss() -> None:
    one = training(num_micro=2)
    for group in one.optimizer.param_groups:
        group["lr"] = 1e-2
    batch = one.words[0]

    def loss() -> float:
        with torch.no_grad():
            return float(one.loss(one.model(batch), one.labels[0]))

    before = loss()
    for _ in range(5):
        one.passes()
        one.update()
    assert loss() < 0.8 * before
    assert all(torch.equal(weight, master.bfloat16()) for weight, master in zip(one.weights, one.masters, strict=True))


def test_recomputation_changes_no_gradient() -> None:
    plain, again = training(), training(recompute=True)
    for one in (plain, again):
        one.passes()
    for left, right in zip(plain.weights, again.weights, strict=True):
        assert torch.equal(left.grad, right.grad)


def test_a_step_is_measured_and_predicted() -> None:
    case = StepCase(shape=SHAPE, micro_batch=1, steps=3, warmup=1)
    result = measured(case, CPU)
    assert result["status"] == "ok"
    assert len(result["trials"]["step_s"]) == 3
    assert all(0.0 < seconds < 10.0 for seconds in result["trials"]["step_s"])
    # a product, an attention call and a kernel before each step, none of them the step's time
    assert np.shape(result["reference_s"]) == (3, 3, LAUNCHES)
    assert 0.0 < np.min(result["reference_s"]) < np.max(result["reference_s"]) < 10.0
    request = Request(root=gpu_step.ROOT, cluster="cpu")
    prediction = price_case(case, 1, request)
    assert sum(prediction.parts_s.values()) == pytest.approx(prediction.step_s)
    repeated = price_case(StepCase(shape=SHAPE, micro_batch=1, recompute=True), 1, request)
    twice = price_case(StepCase(shape=SHAPE, micro_batch=1, num_micro=2), 1, request)
    copied = price_case(case, 2, request)
    assert prediction.step_s < repeated.step_s < twice.step_s
    assert copied.parts_s["dp_comm"] > 0.0 == prediction.parts_s["dp_comm"]


def test_out_of_memory_is_found_and_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(case: StepCase, device: Device) -> None:
        raise torch.OutOfMemoryError("no room for 64 GiB\nmore words")

    monkeypatch.setattr(one_row, "measured", full)
    monkeypatch.setattr("sys.argv", ["one_row.py", "cpu", StepCase(shape=SHAPE, micro_batch=1).as_text()])
    one_row.main(RankLayout())
    assert json.loads(capsys.readouterr().out) == {"status": "oom", "reason": "no room for 64 GiB"}
