from pathlib import Path

import pytest

from runner.replay.program import Work, planned_work
from solver.request import Request
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
REQUEST = Request(
    root=ROOT,
    config=ROOT / "configs" / "tiny_internlm2.py",
    cluster="h100-sxm",
    framework="megatron",
    missing="modelled",
)


@pytest.fixture(scope="module")
def pipelined() -> Work:
    return planned_work(REQUEST, "tp=1,pp=2,dp=2", 4)


def test_every_stage_has_its_rows(pipelined: Work) -> None:
    assert [program.stage for program in pipelined.programs] == [0, 1]
    assert (pipelined.degrees.dp, pipelined.degrees.pp, pipelined.arguments["world_size"]) == (2, 2, 4)
    kinds = [{launch.item.comm_type for launch in program.everything} for program in pipelined.programs]
    assert all({"isend", "irecv", "computation"} <= each for each in kinds)
    timed = [one.item for one in pipelined.programs[0].everything if one.item.comm_type == "computation"]
    assert all((item.elapsed_ms or 0.0) > 0 for item in timed)
    assert len(pipelined.digest) == 64


def test_attention_and_what_is_no_product_are_rows(pipelined: Work) -> None:
    items = [one.item for one in pipelined.programs[0].everything if one.item.comm_type == "computation"]
    # configs/tiny_internlm2.py: 8 heads, 4 of keys and values, 256 / 8 channels, 256 tokens
    shapes = ((1, 8, 256, 32), (1, 4, 256, 32))
    assert {item.additional for item in items if item.shapes == shapes} == {
        "causal forward flash 0",
        "causal backward flash 0",
    }
    others = [item for item in items if item.shapes is None]
    assert any("norm" in item.stage for item in others)
    assert all(item.msg_size == pytest.approx((item.elapsed_ms or 0.0) * 1e6, abs=1) for item in others)


def test_dp_is_what_is_left(pipelined: Work) -> None:
    with pytest.raises(ConfigError, match="--plan: dp = 4: 2, what tp 1 x pp 2 x cp 1 leave of 4 processes"):
        planned_work(REQUEST, "pp=2,dp=4", 4)


def test_a_plan_that_the_framework_does_not_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="megatron does not run msp"):
        planned_work(REQUEST, "tp=2,strategy=msp", 4)
