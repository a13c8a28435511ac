"""A model's shapes as Megatron-LM's flags; tests/benchmarks/test_handover_exports.py counts what they build."""

from dataclasses import replace
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from spec.cluster.cluster import segmented
from spec.cluster.reader import read_cluster
from spec.errors import ExportError
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.model import BlockRun, MlpSpec, MoeSpec
from tests.solver.questions import ROOT, small_model, with_block
from tests.workload.random_plans import EXPERTS, LATENT
from tests.workload.settings.problems import asked, flags_in, known
from workload.settings.megatron import megatron_settings
from workload.settings.megatron_flags import Flags, job_flags, job_omissions, model_flags, recompute_flags

PLAN = Plan(strategy="fsp", preset="megatron")
SMALL = small_model(layers=8)


def flags_of(**changes: Any) -> dict[str, object]:
    return dict(model_flags(*known(PLAN, model=with_block(SMALL, **changes))))


def test_norms_of_latents_are_asked_for() -> None:
    assert "--qk-layernorm" in flags_of(mixer=LATENT)
    assert "--qk-layernorm" not in flags_of()
    assert "--qk-layernorm" in flags_of(mixer=replace(SMALL.blocks[0].block.mixer, qk_norm=True))


@pytest.mark.parametrize(
    ("mlp", "written"),
    [
        (MlpSpec(ffn_hidden=64, gated=True), {"--swiglu"}),
        (MlpSpec(ffn_hidden=64, gated=False, activation="gelu"), set()),
        (MlpSpec(ffn_hidden=64, gated=False, activation="squared_relu"), {"--squared-relu"}),
    ],
)
def test_activations(mlp: MlpSpec, written: set[str]) -> None:
    flags = flags_of(mlp=mlp)
    assert written == flags.keys() & {"--swiglu", "--squared-relu", "--no-bias-gelu-fusion"}


def test_a_bias_is_fused_with_gelu_alone() -> None:
    attention = replace(SMALL.blocks[0].block.mixer, qkv_bias=True, out_bias=True)
    mlp = MlpSpec(ffn_hidden=64, gated=False, bias=True, activation="squared_relu")
    assert "--no-bias-gelu-fusion" in flags_of(mixer=attention, mlp=mlp)


def test_experts_beside_dense_layers() -> None:
    dense, routed = SMALL.blocks[0].block, replace(SMALL.blocks[0].block, mlp=None, moe=EXPERTS)
    runs = (BlockRun(block=dense, count=1), BlockRun(block=routed, count=7))
    flags = model_flags(*known(PLAN, model=replace(SMALL, blocks=runs)))
    assert flags["--moe-layer-freq"] == "([0]*1+[1]*7)"
    assert flags["--moe-shared-expert-intermediate-size"] == EXPERTS.shared_ffn_hidden
    gated = flags_of(mlp=None, moe=replace(EXPERTS, shared_gate=True))
    assert "--moe-shared-expert-gate" in gated


def test_experts_and_dense_layers_share_their_activation() -> None:
    dense = replace(SMALL.blocks[0].block, mlp=MlpSpec(ffn_hidden=64, gated=False, activation="gelu"))
    routed = replace(SMALL.blocks[0].block, mlp=None, moe=MoeSpec(num_experts=4, topk=1, expert_ffn_hidden=64))
    runs = (BlockRun(block=dense, count=1), BlockRun(block=routed, count=7))
    with pytest.raises(ExportError, match="another activation"):
        model_flags(*known(PLAN, model=replace(SMALL, blocks=runs)))


# Formats, kernels, overlaps and recomputation of a job as Megatron-LM's flags.

ROUTED = with_block(small_model(layers=8), mlp=None, moe=EXPERTS)
HALF = dict.fromkeys(("compute", "parameter", "parameter_gather", "activation", "attention", "linear"), "fp16")


def job_flags_of(job: dict[str, Any], **changes: Any) -> dict[str, object]:
    return dict(job_flags(*known(PLAN, job=job, **changes)))


PLAIN = flags_in("--bf16 --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0")


@pytest.mark.parametrize(
    ("job", "more"),
    [
        ({}, ""),
        ({"flash_attention": False}, "--attention-backend unfused"),
        ({"gradient": "bf16", "reduce": "bf16"}, "--grad-reduce-in-bf16"),
        ({"linear": "fp8", "scaling": "delayed"}, "--fp8-format hybrid --fp8-recipe delayed"),
        ({"linear": "fp8", "scale_recipe": "block"}, "--fp8-format e4m3 --fp8-recipe blockwise"),
        ({"linear": "fp8", "scale_recipe": "mx", "scaling": "block"}, "--fp8-format e4m3 --fp8-recipe mxfp8"),
        (
            {"linear": "fp8", "scale_recipe": "mx", "scaling": "block", "low_precision_parameters": True},
            "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag",
        ),
        (
            {"linear": "fp8", "scale_recipe": "mx", "scaling": "block", "low_precision_head": True},
            "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-output-proj",
        ),
        (
            {"linear": "fp8", "scaling": "current", "high_precision_last_layers": 4},
            "--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 4",
        ),
        (
            {"linear": "fp8", "parameter_gather": "fp8"},
            "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather",
        ),
        (
            {"moments": "bf16", "master": "fp16"},
            "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-params-dtype fp16 --use-precision-aware-optimizer",
        ),
        ({"unfused": frozenset({"rotary", "softmax"})}, "--no-rope-fusion --no-masked-softmax-fusion"),
    ],
)
def test_jobs(job: dict[str, Any], more: str) -> None:
    assert job_flags_of(job) == PLAIN | flags_in(more)


def test_dropout_is_its_own_tenth_unless_told() -> None:
    assert not job_flags_of({"dropout": True}).keys() & {"--attention-dropout", "--hidden-dropout"}


def test_gradients_of_fp16_are_fp32_when_told() -> None:
    flags = job_flags_of({**HALF, "gradient": "fp16", "reduce": "fp16"})
    assert "--fp16" in flags
    assert "--accumulate-allreduce-grads-in-fp32" not in flags
    assert "--accumulate-allreduce-grads-in-fp32" in job_flags_of({**HALF, "gradient": "fp32", "reduce": "fp32"})


def test_the_loss_and_the_search_for_what_is_no_number() -> None:
    assert "--cross-entropy-loss-fusion" in job_flags_of({}, preset={"loss.fused": True})
    assert "--no-check-for-nan-in-loss-and-grad" in job_flags_of({}, preset={"host.checks_numbers": False})


@pytest.mark.parametrize(
    ("job", "more"),
    [
        ({}, "--moe-token-dispatcher-type alltoall"),
        ({"overlap_expert_a2a": True}, "--overlap-moe-expert-parallel-comm"),
        ({"moe_router_fusion": True}, "--moe-router-fusion"),
        ({"router": "fp32"}, "--moe-router-dtype fp32"),
        ({"delay_wgrad": True}, "--delay-wgrad-compute"),
        ({"overlap_shared_experts": True}, "--moe-shared-expert-overlap"),
        ({"moe_dispatcher": "all_gather"}, "--moe-token-dispatcher-type allgather"),
        (
            {"moe_dispatcher": "hybridep"},
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-router-dtype fp32",
        ),
        ({"moe_dispatcher": "deepep"}, "--moe-token-dispatcher-type flex --moe-enable-deepep --moe-router-dtype fp32"),
    ],
)
def test_how_tokens_reach_their_experts(job: dict[str, Any], more: str) -> None:
    usual = flags_in("--moe-grouped-gemm --moe-permute-fusion --moe-token-dispatcher-type alltoall")
    assert job_flags_of(job, model=ROUTED) == PLAIN | usual | flags_in(more)


def test_recomputation() -> None:
    block = replace(PLAN, recompute=Recompute.BLOCK, num_recompute_layers=3)
    assert recompute_flags(ROUTED, block)["--recompute-method"] == "block"
    assert recompute_flags(ROUTED, block)["--recompute-num-layers"] == 3
    assert recompute_flags(ROUTED, replace(PLAN, recompute=Recompute.FULL))["--recompute-num-layers"] == 1
    chosen = replace(PLAN, recompute=Recompute.SELECTIVE, recompute_modules=("mlp", "moe_act"))
    assert recompute_flags(ROUTED, chosen)["--recompute-modules"] == "core_attn mlp moe_act"
    assert recompute_flags(ROUTED, PLAN) == {}
    with pytest.raises(ExportError, match="whole layers beside parts"):
        recompute_flags(ROUTED, replace(block, recompute_modules=("mlp",)))


@pytest.mark.parametrize(
    ("scopes", "flags"),
    [
        ({"attn"}, {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-modules": "attn"}),
        (
            {"moe_router", "moe_preprocess", "attn"},
            {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-modules": "attn moe_preprocess moe_router"},
        ),
        ({"full_iteration"}, {"--cuda-graph-impl": "full_iteration"}),
        (set(), {}),
    ],
)
def test_scopes_of_cuda_graphs_are_modules_or_an_implementation(scopes: set[str], flags: Flags) -> None:
    """Megatron-LM core 0.19, transformer_config.py, cuda_graph_impl: modules only of per-layer graphs."""
    job = asked(PLAN, job={"cuda_graphs": frozenset(scopes)}, preset={"host.checks_numbers": False}).job
    written = job_flags(ROUTED, job)
    assert {flag: value for flag, value in written.items() if "graph" in flag} == flags


def test_graphs_in_expandable_segments_are_not_registered_with_nccl() -> None:
    """Its validate_args wants NCCL_GRAPH_REGISTER=0."""
    for scope, word in (("attn", True), ("full_iteration", False)):
        problem = asked(PLAN, job={"cuda_graphs": frozenset({scope}), "expandable_segments": True})
        assert ("set NCCL_GRAPH_REGISTER=0" in job_omissions(problem, PLAN)) is word


@pytest.mark.parametrize(
    ("job", "note"),
    [
        ({"fp32_norms": True}, "norms that are not fused"),
        ({"attention_kernel": "flash2"}, "flash2 kernel"),
        ({"moe_dispatch": "fp8"}, "dispatch of tokens in fp8"),
    ],
)
def test_what_no_flag_says(job: dict[str, Any], note: str) -> None:
    assert job_omissions(asked(PLAN), PLAN) == ()
    (said,) = job_omissions(asked(PLAN, job=job), PLAN)
    assert note in said


def test_a_segment_of_an_nvlink_domain_is_asked_of_the_scheduler() -> None:
    """128 GPUs on GB200 NVL72 are two segments of 16 nodes of 4."""
    question = asked(PLAN)
    cluster = segmented(read_cluster("gb200-nvl72", root=ROOT), 128)
    job = replace(question.job, world_size=128)
    (said,) = job_omissions(replace(question, cluster=cluster, job=job), PLAN)
    assert "--segment=16" in said


def test_half_blocks_are_a_pattern_and_cut_at_the_stages() -> None:
    """Letters of core/models/hybrid/hybrid_layer_allocation.py; counts by hand."""
    attention = small_model(layers=1).blocks[0].block
    half = replace(attention, mixer=Mamba2Spec(num_heads=16, head_dim=64, state_size=128, num_groups=8), mlp=None)
    runs = ((half, 2), (replace(attention, mlp=None), 1), (replace(attention, mixer=None), 2), (half, 1))
    model = replace(ROUTED, blocks=tuple(BlockRun(block=block, count=count) for block, count in runs))
    flags = model_flags(*known(PLAN, model=model))
    assert flags["--hybrid-layer-pattern"] == "MM*--M"
    assert [flags[f"--mamba-{name}"] for name in ("state-dim", "head-dim", "num-groups", "num-heads")] == [
        128,
        64,
        8,
        16,
    ]
    plan = replace(PLAN, pp=4, num_micro=8)
    assert "--hybrid-layer-pattern M|M*|--|M" in megatron_settings(asked(plan, model=model), plan).text
    whole = replace(model, blocks=(BlockRun(block=replace(half, mlp=attention.mlp), count=2), *model.blocks[1:2]))
    with pytest.raises(ExportError, match="Mamba-2 in layers with"):
        model_flags(*known(PLAN, model=whole))


def test_linear_attention_names_its_layers_and_sizes() -> None:
    block = small_model(layers=1).blocks[0].block
    linear = GatedDeltaSpec(num_key_heads=2, num_value_heads=4, key_dim=32, value_dim=64)
    runs = (BlockRun(block=replace(block, mixer=linear), count=3), BlockRun(block=block, count=1))
    flags = model_flags(*known(PLAN, model=replace(small_model(), blocks=runs)))
    assert flags["--linear-attention-freq"] == "([1]*3+[0]*1)"
    sizes = ("conv-kernel-dim", "key-head-dim", "value-head-dim", "num-key-heads", "num-value-heads")
    assert [flags[f"--linear-{size}"] for size in sizes] == [4, 32, 64, 2, 4]


def test_modules_that_no_layer_has_are_not_recomputed() -> None:
    plan = replace(PLAN, recompute_modules=("moe_act", "mla_up_proj", "mlp"))
    assert recompute_flags(small_model(), plan)["--recompute-modules"] == "mlp"
    assert recompute_flags(ROUTED, plan)["--recompute-modules"] == "mlp moe_act"
