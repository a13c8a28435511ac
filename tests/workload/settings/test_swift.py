"""A plan as MS-Swift's Megatron arguments: they read back, and what it has no argument for is refused or named."""

from dataclasses import replace

import pytest
from hypothesis import given

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.errors import ExportError
from tests.solver.questions import small_model, with_block
from tests.workload.random_plans import EXPERTS, Case, cases
from tests.workload.settings.accepted.lists import parse_flags
from tests.workload.settings.problems import asked, known, says, under
from workload.settings.megatron_flags import Flags
from workload.settings.swift import check_swift, swift_arguments, swift_settings

PLAN = Plan(strategy="fsp", preset="megatron", tp=2, dp=4, zero_stage=1, zero_size=4, num_micro=4)
WIDE = {"gradient": "fp32", "reduce": "fp32"}
ROUTED = with_block(small_model(layers=8), mlp=None, moe=EXPERTS)


@given(case=cases())
def test_arguments_read_back_as_the_plan(case: Case) -> None:
    question, plan = under(case, "megatron", **WIDE)
    try:
        text = swift_settings(question, plan).text
    except ExportError:
        return
    read = parse_flags("ms-swift", text)
    assert says(vars(read), plan)
    assert read.max_length == question.job.seq_len


def arguments(problem: Problem, plan: Plan) -> Flags:
    return swift_arguments(problem, plan)[0]


def test_what_is_on_unless_told_is_told() -> None:
    plain = replace(PLAN, zero_stage=0, zero_size=1, tp=1)
    written = arguments(asked(plain, job=WIDE), plain)
    assert written["--use_distributed_optimizer"] == "false"
    assert written["--recompute_granularity"] == "none"
    assert written["--cross_entropy_loss_fusion"] == "false"
    assert written["--apply_rope_fusion"] == "true"
    unfused = asked(plain, job={**WIDE, "unfused": frozenset({"rotary"})})
    assert arguments(unfused, plain)["--apply_rope_fusion"] == "false"
    routed = asked(PLAN, model=ROUTED, job=WIDE)
    assert arguments(routed, PLAN)["--moe_router_dtype"] == "none"


def test_what_it_cannot_be_told_is_named() -> None:
    buckets = {"data_parallel.bucket_elements": 50_000_000}
    notes = swift_settings(asked(PLAN, job=WIDE, preset=buckets), PLAN).notes
    assert "left out: gradient buckets of 50000000 elements, which it leaves to Megatron-Core" in notes
    assert notes[0].startswith("set --model")
    graphs = {**WIDE, "cuda_graphs": frozenset({"attn"})}
    assert "left out: CUDA graphs by transformer_engine" in swift_settings(asked(PLAN, job=graphs), PLAN).notes


def test_adapters_are_arguments() -> None:
    job = {**WIDE, "adapter_rank": 16, "adapted": frozenset({"down", "qkv"}), "adapter_dtype": "fp32"}
    read = parse_flags("ms-swift", swift_settings(asked(PLAN, job=job), PLAN).text)
    assert (read.tuner_type, read.lora_rank, read.lora_dropout, read.lora_dtype) == ("lora", 16, 0.0, "float32")
    assert read.target_modules == ["linear_qkv", "linear_fc2"]
    dropped = arguments(asked(PLAN, job={**job, "adapter_dropout": True}), PLAN)
    assert "--lora_dropout" not in dropped  # its own 0.05
    assert "--tuner_type" not in arguments(asked(PLAN, job=WIDE), PLAN)
    for changes, match in (
        ({"adapted": frozenset({"q_k_v"})}, "queries, keys and values apart"),
        ({"frozen": "nf4"}, "frozen weights in nf4"),
    ):
        with pytest.raises(ExportError, match=match):
            check_swift(*known(PLAN, job={**job, **changes}))
    with pytest.raises(ExportError, match="beside experts"):
        check_swift(*known(PLAN, model=ROUTED, job=job))


def test_a_task_is_its_entry_point() -> None:
    for task, entry in (("pretrain", "pt"), ("sft", "sft"), ("lora", "sft")):
        text = swift_settings(asked(PLAN, job={**WIDE, "task": task, "document_tokens": 8}), PLAN)
        assert f"megatron {entry} --model NAME" in text.text
        assert any("document_tokens" in note for note in text.notes) is (task == "pretrain")


def test_plans_that_it_has_no_argument_for() -> None:
    part = replace(PLAN, zero_size=2)
    with pytest.raises(ExportError, match="--num-distributed-optimizer-instances"):
        arguments(asked(part, job=WIDE), part)
    spread = replace(PLAN, ep=4)
    question = asked(spread, model=ROUTED, job={**WIDE, "overlap_expert_a2a": True})
    with pytest.raises(ExportError, match="--overlap-moe-expert-parallel-comm"):
        arguments(question, spread)
