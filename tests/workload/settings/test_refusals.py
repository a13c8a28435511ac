"""Plans, jobs and models that a framework does not run: one row each, refused in a line that names what it is."""

from dataclasses import replace
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from spec.errors import ExportError
from spec.mixers.attention import QkNormWeights
from spec.model import MlpSpec, NormKind, PositionKind
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT, small_model, with_block
from tests.workload.random_plans import EXPERTS, LATENT
from tests.workload.settings.problems import asked, known
from workload.launch_files import EXPORTERS

SMALL = small_model(layers=8)
MIXER = SMALL.blocks[0].block.mixer
ROUTED = with_block(SMALL, mlp=None, moe=EXPERTS)
BIASED = with_block(SMALL, mixer=replace(MIXER, qkv_bias=True))
CAPACITY = {"moe_capacity_factor": 1.5}
SHARED = replace(EXPERTS, shared_ffn_hidden=2 * EXPERTS.expert_ffn_hidden)
LLAMA = read_config(ROOT / "configs" / "8B_llama3.py").model
HALF = dict.fromkeys(("compute", "parameter", "activation", "attention", "linear", "parameter_gather"), "fp16")
AHEAD = {"data_parallel.overlap_grad_reduce": True}
TORCHTITAN = Plan(
    strategy="fsp", preset="torchtitan", tp=2, dp=8, zero_stage=3, zero_size=8, micro_batch=2, num_micro=4
)
PLANS = {
    "megatron": Plan(strategy="fsp", preset="megatron"),
    "zero-bubble": Plan(strategy="fsp", preset="zero-bubble", pp=4, num_micro=8, schedule=Schedule.ZB_H1),
    "megatron-bridge": Plan(strategy="fsp", preset="megatron-bridge"),
    "swift": Plan(strategy="fsp", preset="megatron", tp=2, dp=4, zero_stage=1, zero_size=4, num_micro=4),
    "internevo": Plan(strategy="msp", preset="internevo", num_micro=2),
    "deepspeed": Plan(strategy="mtp", preset="deepspeed", num_micro=2),
    "accelerate": Plan(strategy="mtp", preset="fsdp", dp=8, zero_stage=3, zero_size=8, micro_batch=2, num_micro=3),
    "torchtitan": TORCHTITAN,
}
NAMES = {"zero-bubble": "megatron", "megatron-bridge": "bridge"}
"""Exporters that are not called as the plans above."""

Row = tuple[str, dict[str, Any], dict[str, Any], str]


def of(name: str, *rows: tuple[dict[str, Any], dict[str, Any], str]) -> list[Row]:
    return [(name, *row) for row in rows]


# Changes of the plan, of the problem, and what the refusal says.
NO_PLAN: list[Row] = [
    *of(
        "megatron",
        ({"strategy": "isp"}, {}, "no setting for isp"),
        ({"schedule": Schedule.ZB_H1}, {}, "schedule = zb-h1"),
        ({"zero_stage": 2, "dp": 2, "zero_size": 2}, {}, "ZeRO stage 2"),
        ({"cp": 3}, {}, "1024 tokens over 2 x cp 3"),
        ({"preset": "internevo"}, {}, "--framework megatron"),
        ({"optimizer_offload": 0.5}, {}, "not distributed"),
        ({}, {"job": {"moments": "bf16"}}, "narrow optimizer states"),
        ({}, {"job": {"cuda_graphs": frozenset({"full_iteration"})}}, "iteration that checks for NaN"),
        ({}, {"job": {"cuda_graphs": frozenset({"moe_router"})}}, "router without experts"),
        ({}, {"model": ROUTED, "job": {"cuda_graphs": frozenset({"mlp"})}}, "dense layers in a model of experts"),
        ({}, {"model": ROUTED, "job": {"cuda_graphs": frozenset({"moe_preprocess"})}}, "without moe_router"),
        (
            {},
            {"model": ROUTED, "job": {"cuda_graphs": frozenset({"moe_router", "moe_preprocess"}), **CAPACITY}},
            "moe_preprocess beside a capacity",
        ),
        ({}, {"model": BIASED, "job": {"cuda_graphs": frozenset({"attn"}), "delay_wgrad": True}}, "with biases beside"),
        ({}, {"job": {"cuda_graphs": frozenset({"attn", "full_iteration"})}}, "iteration and of parts"),
        (
            {"recompute": Recompute.SELECTIVE},
            {"job": {"cuda_graphs": frozenset({"attn"}), "dropout": True}},
            "recomputed with its dropout",
        ),
        (
            {"offload_modules": ("core_attn",)},
            {"preset": {"host.checks_numbers": False}, "job": {"cuda_graphs": frozenset({"full_iteration"})}},
            "offloaded modules inside",
        ),
        ({"pp": 2, "num_micro": 2, "offloaded_layers": 2}, {}, "beside pipeline stages"),
        ({"strategy": "mtp", "tp": 2}, {"model": ROUTED}, "without sequence parallelism"),
        ({}, {"model": ROUTED, "job": HALF}, "experts in fp16"),
        ({}, {"model": ROUTED, "job": {"overlap_expert_a2a": True}}, "without ep"),
        (
            {"ep": 2, "dp": 2, "pp": 2, "num_micro": 2},
            {"model": ROUTED, "job": {"overlap_expert_a2a": True}},
            "stages of one chunk",
        ),
    ),
    *of(
        "zero-bubble",
        ({"dp": 2}, {"preset": AHEAD}, "overlap-grad-reduce"),
        ({"pp": 1}, {}, "on 1 stages"),
        ({"vpp": 2}, {}, "2 chunks"),
        ({"pp": 3}, {}, "pipeline-model-parallel-layout"),
        ({"preset": "megatron"}, {}, "--framework zero-bubble"),
        ({}, {"job": {"cuda_graphs": frozenset({"attn"})}}, "what --cuda-graph-impl says"),
    ),
    *of("megatron-bridge", ({"preset": "megatron"}, {}, "--framework megatron-bridge")),
    *of(
        "internevo",
        ({"recompute": Recompute.SELECTIVE}, {}, "selective parts"),
        ({"optimizer_offload": 1.0, "zero_stage": 1, "dp": 2, "zero_size": 2}, {}, "optimizer_offload = 1"),
        ({"offloaded_layers": 2}, {}, "offloaded_layers = 2"),
        ({"zero_stage": 2, "dp": 2, "zero_size": 2}, {}, "ZeRO stage 2"),
        ({"preset": "megatron"}, {}, "--framework internevo"),
    ),
    *of(
        "deepspeed",
        # runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
        ({"pp": 2, "dp": 2, "zero_stage": 2, "zero_size": 2}, {}, "pipeline stages beside ZeRO-2"),
        ({"strategy": "fsp"}, {}, "fsp sharding"),
        ({"dp": 4, "zero_stage": 1, "zero_size": 2}, {}, "2 of 4"),
        ({"strategy": "ulysses", "tp": 2, "dp": 2, "zero_stage": 1, "zero_size": 2}, {}, "2 of 4"),
        ({"tp": 4, "etp": 2}, {}, "experts over tp 2 beside tp 4"),
        ({"preset": "megatron"}, {}, "--framework deepspeed"),
        ({"dp": 2, "zero_stage": 2, "zero_size": 2, "optimizer_offload": 0.5}, {}, "0.5 of the optimizer"),
        ({"dp": 2, "zero_stage": 2, "zero_size": 2, "offloaded_layers": 2}, {}, "offloaded_layers = 2"),
        # "unsupported mix of model_dtype and grad_accum_dtype" (runtime/engine.py, _do_optimizer_sanity_check)
        ({}, {"job": {"gradient": "fp32"}}, "gradients in fp32 without ZeRO"),
    ),
    *of(
        "accelerate",
        ({"pp": 2}, {}, "pp = 2"),
        ({"strategy": "fsp", "tp": 2}, {}, "fsp sharding"),
        ({"cp": 2, "dp": 4, "zero_size": 3}, {}, "shards over 3 ranks beside cp 2"),
        ({"cp": 2, "dp": 4, "zero_size": 2}, {}, "4 replicas"),
        ({"zero_stage": 0, "zero_size": 1, "tp": 2}, {}, "without FSDP2"),
        ({"preset": "megatron"}, {}, "--framework accelerate or fsdp"),
    ),
    *of(
        "torchtitan",
        ({"zero_stage": 1}, {"model": LLAMA}, "ZeRO-1"),
        ({"zero_stage": 0, "zero_size": 1, "cp": 2}, {"model": LLAMA}, "cp without sharding"),
        ({"cp": 2, "zero_size": 3}, {"model": LLAMA}, "shards over 3 ranks beside cp 2"),
        ({"etp": 2}, {"model": LLAMA}, "etp = 2"),
        ({"preset": "megatron"}, {"model": LLAMA}, "--framework torchtitan"),
    ),
]


@pytest.mark.parametrize(("name", "changes", "problem", "match"), NO_PLAN)
def test_plans_that_are_not_run(name: str, changes: dict[str, Any], problem: dict[str, Any], match: str) -> None:
    plan = replace(PLANS[name], **changes)
    with pytest.raises(ExportError, match=match):
        EXPORTERS[NAMES.get(name, name)].compose[PLANS[name].preset](asked(plan, **problem), plan)


# Jobs and models that are refused before there is a plan: changes of the job, of all blocks or of the model.
NO_JOB: list[Row] = [
    *of(
        "megatron",
        ({"compute": "fp32"}, {}, "products in fp32"),
        ({"linear": "fp8", "scaling": "row"}, {}, "scaled by row"),
        ({"attention": "fp8"}, {}, "attention"),
        ({"gradient": "fp32", "reduce": "bf16"}, {}, "summed in fp32, reduced in bf16"),
        ({"gradient": "fp16", "reduce": "fp16"}, {}, "gradients in fp16"),
        ({"parameter_gather": "fp32"}, {}, "gathered parameters"),
        ({"low_precision_parameters": True}, {}, "parameters held narrow"),
        ({"linear": "fp8", "low_precision_head": True}, {}, "a low-precision head that is not in MXFP8"),
        ({"master": ""}, {}, "no copy"),
        ({"moe_dispatcher": "deepep", "overlap_shared_experts": True}, {"mlp": None, "moe": EXPERTS}, "beside deepep"),
        (
            {"overlap_expert_a2a": True, "overlap_shared_experts": True},
            {"mlp": None, "moe": EXPERTS},
            "shared experts overlapped",
        ),
        ({}, {"norm": NormKind.LAYER}, "norms of two kinds"),
        ({}, {"mlp": MlpSpec(ffn_hidden=64, gated=True, activation="gelu")}, "gates by gelu"),
        ({}, {"mlp": MlpSpec(ffn_hidden=64, gated=False, activation="relu")}, "activations by relu"),
        ({}, {"mlp": None, "moe": replace(EXPERTS, bias=True)}, "biases"),
        ({}, {"mlp": None, "moe": replace(EXPERTS, clamped=True)}, "clamped"),
        ({}, {"mlp": None, "moe": replace(EXPERTS, router_bias=True)}, "softmax router"),
        ({}, {"mixer": replace(MIXER, v_dim=32)}, "another width"),
    ),
    *of(
        "swift",
        ({"gradient": "bf16", "reduce": "bf16"}, {}, "gradients of bf16 products in bf16"),
        ({"gradient": "fp32", "reduce": "fp32", "moe_dispatcher": "hybridep"}, {}, "hybridep"),
    ),
    *of(
        "internevo",
        ({"dropout": True}, {}, "dropout"),
        ({"optimizer": "muon"}, {}, "another optimizer than Adam"),
        ({"linear": "fp8"}, {}, "fp8 products"),
        ({}, {"mixer": LATENT}, "the attention of"),
        (
            {},
            {"mlp": None, "moe": SHARED, "mixer": replace(MIXER, qk_norm=True, qk_norm_weights=QkNormWeights.NONE)},
            "one weight vector",
        ),
        ({}, {"mixer": replace(MIXER, qk_norm=True)}, "dense layers"),
        ({}, {"mixer": replace(MIXER, qk_dim=128, v_dim=128)}, "heads of 128 channels"),
        ({}, {"mlp": MlpSpec(ffn_hidden=512, gated=False, activation="gelu")}, "without a gate"),
        ({}, {"mlp": None, "moe": replace(SHARED, activation="gelu")}, "gates by gelu"),
        ({}, {"mlp": None, "moe": replace(SHARED, bias=True)}, "biases of experts"),
        ({}, {"mlp": None, "moe": replace(SHARED, router_bias=True)}, "score corrections"),
        ({}, {"mlp": None, "moe": EXPERTS}, "another width"),
        ({}, {"mlp": None, "moe": SHARED, "mixer": replace(MIXER, qk_norm=True)}, "these shared experts"),
        ({}, {"position": PositionKind.NONE}, "rotary positions"),
        ({}, {"blocks": (*SMALL.blocks, *with_block(SMALL, norm=NormKind.LAYER).blocks)}, "mixed layers"),
    ),
    *of(
        "deepspeed",
        ({"compute": "fp32"}, {}, "bf16 and fp16"),
        ({"optimizer": "muon"}, {}, "Muon"),
        ({"linear": "fp8"}, {}, "fp8 products"),
        ({"moments": "bf16"}, {}, "optimizer states in bf16"),
        ({"gradient": "fp8"}, {}, "gradients in fp8"),
    ),
    *of(
        "accelerate",
        ({"compute": "fp32"}, {}, "products in fp32"),
        ({"linear": "fp8"}, {}, "fp8 products"),
        ({"reduce": "fp32"}, {}, "reduced in fp32"),
        ({"moments": "bf16"}, {}, "fp32 master weights beside moments in bf16"),
        ({"optimizer": "muon"}, {}, "Muon"),
    ),
    *of(
        "torchtitan",
        ({"compute": "fp16"}, {}, "products in fp16"),
        ({"reduce": "bf16"}, {}, "--framework torchtitan"),
        ({"moments": "bf16"}, {}, "fp32 master weights beside moments in bf16"),
        ({"linear": "fp8", "scale_recipe": "block"}, {}, "fp8 products scaled by block"),
        ({"moe_dispatcher": "all_gather"}, {}, "reached by all_gather"),
        ({"cuda_graphs": frozenset({"attn"})}, {}, "CUDA graphs of attn"),
        ({"optimizer": "muon"}, {}, "Muon"),
    ),
]


@pytest.mark.parametrize(("name", "job", "changes", "match"), NO_JOB)
def test_jobs_and_models_that_are_not_run(name: str, job: dict[str, Any], changes: dict[str, Any], match: str) -> None:
    model = LLAMA if name == "torchtitan" else replace(SMALL, tied_embeddings=False)
    of_model = changes.keys() & {"position", "blocks"}
    model = replace(model, **changes) if of_model else with_block(model, **changes)
    plan = PLANS[name]
    with pytest.raises(ExportError, match=match):
        EXPORTERS[NAMES.get(name, name)].check[plan.preset](*known(plan, model=model, job=job))
