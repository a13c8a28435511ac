"""What is task_of of a training run, and what is refused with one line."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from profiler.device import Device
from runner.training.task import TrainRequest, TrainTask, check_model, check_plan, read_task
from spec.errors import ConfigError
from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.model import ModelSpec, NormPlace
from tests.solver.questions import ROOT

CPU = Device(kind="cpu")


def task_of(world_size: int = 4, config: str = "tiny_internlm2.py", **options: Any) -> TrainTask:
    return read_task(TrainRequest(root=ROOT, config=ROOT / "configs" / config, **options), CPU, world_size)


def test_the_config_says_plan_batch_and_format() -> None:
    result = task_of()
    plan = result.plan
    assert (plan.strategy, plan.tp, plan.dp, plan.zero_stage, plan.zero_size) == ("msp", 2, 2, 1, 2)
    assert (plan.micro_batch, plan.num_micro, result.training.seq_len) == (1, 4, 256)
    assert (result.dtype, result.training.compute) == ("bf16", torch.bfloat16)
    assert result.training.tokens_sharded


def test_a_typed_plan_may_say_dp() -> None:
    assert task_of(plan="tp=2,dp=2").plan.dp == 2
    assert task_of(plan="dp=4").plan.dp == 4
    assert not task_of(plan="tp=2").training.tokens_sharded


def test_micro_batches_make_the_batch() -> None:
    result = task_of(plan="pp=2,micro_batch=2", micro_batches=6, seq_len=64)
    assert result.plan.num_micro == 6
    assert result.problem.job.global_batch_tokens == 2 * 2 * 6 * 64


def test_the_format_asked_for_is_that_of_everything() -> None:
    result = task_of(dtype="fp32")
    assert result.training.compute is result.training.reduce is torch.float32
    assert result.problem.job.precision.compute == "fp32"


def changed(**fields: Any) -> ModelSpec:
    """The tiny model, its attention otherwise where the field is one of attention."""
    model = task_of().problem.model
    block = model.blocks[0].block
    assert isinstance(block.mixer, AttentionSpec)
    of_model = {key: value for key, value in fields.items() if hasattr(model, key)}
    of_block = {key: value for key, value in fields.items() if hasattr(block, key) and key not in of_model}
    rest = {key: value for key, value in fields.items() if key not in (*of_model, *of_block)}
    made = replace(block, mixer=replace(block.mixer, **rest), **of_block)
    return replace(model, blocks=(replace(model.blocks[0], block=made),), **of_model)


@pytest.mark.parametrize(
    ("fields", "error_text"),
    [
        ({"softcap": True}, "softcap = True: none"),
        ({"alibi": True}, "alibi = True: none"),
        ({"chunk": 64}, "chunk = 64: none"),
        ({"sinks": True}, "sinks = True: none"),
        ({"logit_softcap": True}, "logit_softcap = True: false"),
        ({"norm_place": NormPlace.AFTER}, "norm_place = 'after': before"),
        ({"qk_norm": True, "qk_norm_weights": QkNormWeights.ALL_HEADS}, "qk_norm_weights = 'all_heads': head"),
    ],
)
def test_models_that_it_is_not_are_refused(fields: dict[str, Any], error_text: str) -> None:
    with pytest.raises(ConfigError, match=error_text):
        check_model(changed(**fields), "x")


def test_windows_norms_of_heads_and_tied_ends_are_run() -> None:
    model = changed(window=64, qk_norm=True, tied_embeddings=True)
    check_model(model, "x")
    training = replace(task_of(plan="pp=2").training, model=model)
    with pytest.raises(ConfigError, match=r"pp, zero_stage = .*: pp 1 and ZeRO 0 or 1 with tied embeddings"):
        check_plan(training, task_of().problem.job)


@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        ({"plan": "tp=2,dp=4"}, "dp = 4: 2, what tp 2 x pp 1 x cp 1 leave of 4 processes"),
        ({"plan": "dp=0"}, "dp=N once"),
        ({"plan": "tp=2,dp=2", "world_size": 3}, "a divisor of the world size 3"),
        ({"plan": "strategy=isp,tp=2,wp=2"}, "strategy = 'isp': mtp, msp or fsp"),
        ({"plan": "strategy=ulysses,tp=2"}, "strategy = 'ulysses': mtp, msp or fsp"),
        ({"plan": "pp=2,schedule=zb-h2"}, "schedule = 'zb-h2': one of 1f1b, gpipe, looped-bfs, zb-h1, zb-1p, "),
        ({"plan": "pp=2,schedule=zb-1p,zero_stage=2"}, "0 or 1 with zb-1p: FSDP2 takes no split backward"),
        ({"plan": "pp=2,schedule=zb-1p", "compiled": True}, "no compiled blocks with zb-1p"),
        ({"plan": "pp=2,schedule=zb-1p", "micro_batches": 5}, "with zb-1p a multiple of 2, its rounds"),
        ({"plan": "pp=2,vpp=2,schedule=zb-interleaved", "micro_batches": 5}, "with zb-interleaved a multiple of 2"),
        ({"plan": "pp=2,vpp=2,schedule=zb-v,zero_stage=3"}, "0 or 1 with zb-v: FSDP2 takes no split backward"),
        ({"plan": "pp=2,schedule=zb-v"}, "zb-v and DualPipe need an even number of virtual stages"),
        ({"plan": "pp=2,vpp=2,schedule=gpipe"}, "schedules but 1f1b need several stages"),
        ({"plan": "pp=4", "micro_batches": 2}, "micro-batches = 2: pp 4 or more"),
        ({"plan": "pp=2,vpp=2", "micro_batches": 3}, "with vpp a multiple of pp 2"),
        ({"plan": "pp=2,vpp=3", "micro_batches": 4}, "layers = 4: a multiple of pp x vpp = 6"),
        ({"plan": "cp=2"}, "context_parallel = 'ring'"),
        (
            {"plan": "cp=4", "job": {"context_parallel": "all_gather"}, "seq_len": 100, "micro_batches": 1},
            "seq_len = 100: a multiple of 8",
        ),
        (
            {"plan": "cp=4,tp=2", "job": {"context_parallel": "all_to_all"}, "world_size": 8},
            "num_kv_heads = 4: a multiple of the 8 ranks that share the heads",
        ),
        ({"plan": "tp=8", "world_size": 8}, "num_kv_heads = 4"),
        ({"plan": "ep=2"}, "ep = 2: 1 for a model without experts"),
        ({"plan": "ep=4,tp=2", "config": "8x7B_mixtral.py"}, "msp or fsp with experts"),
        ({"plan": "ep=2,zero_stage=1,zero_size=2", "config": "8x7B_mixtral.py"}, "zero_size = 2: with experts"),
        ({"plan": "recompute=selective", "framework": "fsdp"}, "selective of every_second_product"),
        ({"plan": "tp=2", "job": {"optimizer": "muon"}}, "optimizer = 'muon': adamw"),
        ({"plan": "tp=2", "job": {"dropout": True}}, "dropout = True: none"),
        (
            {"plan": "tp=2", "config": "671B_deepseek_v3.toml", "global_batch_tokens": 1 << 16},
            "mixer = 'mla': multi-head or grouped-query attention",
        ),
        (
            {"plan": "tp=2", "config": "7B_gpt.toml", "global_batch_tokens": 1 << 16},
            "position = 'learned': rotary or none",
        ),
    ],
    ids=str,
)
def test_what_is_not_run_is_refused(options: dict[str, Any], error_text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        task_of(**options)
    assert error_text in str(refused.value)
    assert "\n" not in str(refused.value)
