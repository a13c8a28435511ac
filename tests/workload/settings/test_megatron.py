"""A plan as Megatron-LM's flags: what is told reads back, and what it refuses is not written."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from solver.pipeline.stages import layers_per_stage
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.mixers.attention import RopeScaling, RopeSpec
from spec.model import MlpSpec, ModelSpec, MoeSpec
from spec.readers.read_config import read_config
from tests.solver.questions import small_model, with_block
from tests.workload.generator import ROOT
from tests.workload.random_plans import EXPERTS, LATENT, Case, cases
from tests.workload.settings.accepted.lists import parse_flags
from tests.workload.settings.problems import asked, flags_in, says, under
from workload.settings.megatron import fact_flags, fact_omissions, flag_lines, megatron_flags, megatron_settings

LIST = "megatron-core-0.14"
FSP = Plan(strategy="fsp", preset="megatron")


@settings(max_examples=2 * settings.default.max_examples)
@given(case=cases())
def test_flags_read_back_as_the_plan(case: Case) -> None:
    question, plan = under(case, "megatron")
    routed = any(run.block.moe for run in question.model.blocks)
    if plan.strategy not in ("mtp", "fsp") or plan.zero_stage > 1:
        with pytest.raises(ExportError):
            megatron_settings(question, plan)
        return
    if routed and plan.strategy == "mtp" and plan.tp > 1:
        with pytest.raises(ExportError, match="sequence parallelism"):
            megatron_settings(question, plan)
        return
    read = parse_flags(LIST, megatron_settings(question, plan).text)
    assert says(vars(read), plan)
    model = question.model
    assert (read.num_layers, read.hidden_size) == (model.num_layers, model.hidden)
    assert read.multi_latent_attention == (model.blocks[0].block.mixer == LATENT)
    assert (read.num_experts or 0) == (EXPERTS.num_experts if routed else 0)


def flags_of(plan: Plan, **changes: Any) -> dict[str, object]:
    return dict(megatron_flags(asked(plan, **changes), plan))


def test_stages_that_do_not_divide() -> None:
    plan = replace(FSP, pp=3, num_micro=3)
    assert flags_of(plan)["--pipeline-model-parallel-layout"] == "Et*3|t*3|t*2L"
    assert layers_per_stage(8, 3).tolist() == [3, 3, 2]
    laid_out = replace(plan, stage_layout="Et*4|t*3|tL")
    assert flags_of(laid_out)["--pipeline-model-parallel-layout"] == "Et*4|t*3|tL"
    chunks = flags_of(replace(FSP, pp=5, vpp=2, num_micro=5))
    assert chunks["--num-virtual-stages-per-pipeline-rank"] == 2
    assert {f"--account-for-{edge}-in-pipeline-split" for edge in ("embedding", "loss")} <= chunks.keys()
    lighter_last = flags_of(replace(FSP, pp=3, vpp=3, num_micro=3))
    assert lighter_last["--num-virtual-stages-per-pipeline-rank"] == 3
    assert "--account-for-loss-in-pipeline-split" in lighter_last
    assert "--account-for-embedding-in-pipeline-split" not in lighter_last
    uneven = flags_of(replace(FSP, pp=3, vpp=2, num_micro=3))
    assert uneven["--pipeline-model-parallel-layout"] == "Et|t|t|t*2|t*2|tL"
    assert "--num-virtual-stages-per-pipeline-rank" not in uneven


def test_what_the_distributed_optimizer_shares_and_gathers() -> None:
    plan = replace(FSP, dp=8, zero_stage=1, zero_size=2, num_micro=2)
    assert flags_of(plan)["--num-distributed-optimizer-instances"] == 4
    assert {"--overlap-param-gather", "--overlap-grad-reduce"} <= flags_of(plan).keys()
    apart = flags_of(plan, preset={"data_parallel.overlap_param_gather": False})
    assert "--overlap-param-gather" not in apart
    assert "--overlap-param-gather" not in flags_of(replace(FSP, dp=8, num_micro=2))
    # "Must use --overlap-param-gather with --overlap-grad-reduce" (validate_args)
    with pytest.raises(ExportError, match="gathering parameters ahead"):
        flags_of(plan, preset={"data_parallel.overlap_grad_reduce": False})


@pytest.mark.parametrize(
    ("plan", "elements", "written"),
    [
        # Megatron-LM takes max(40e6, 1e6 dp) itself, context-parallel ranks not counted
        (replace(FSP, dp=8), 40_000_000, None),
        (replace(FSP, dp=64), 40_000_000, None),
        (replace(FSP, dp=64, cp=2), 40_000_000, 128_000_000),
        (replace(FSP, dp=8), 2**29, 2**29),
        (replace(FSP, dp=1), 2**29, None),
    ],
)
def test_buckets_are_told_where_they_are_not_its_own(plan: Plan, elements: int, written: int | None) -> None:
    flags = flags_of(plan, preset={"data_parallel.bucket_elements": elements})
    assert flags.get("--ddp-bucket-size") == written


def test_messages_and_collectives_beside_compute() -> None:
    chunked = replace(FSP, pp=4, vpp=2, num_micro=4)
    assert "--no-overlap-p2p-communication" not in flags_of(chunked)
    waits = {"pipeline.overlap_p2p": False}
    assert "--no-overlap-p2p-communication" in flags_of(chunked, preset=waits)
    with pytest.raises(ExportError, match="on 2 stages"):
        flags_of(replace(FSP, pp=2, vpp=2, num_micro=2), preset=waits)
    split = {"tensor_parallel.overlap": True}
    assert "--tp-comm-overlap" in flags_of(replace(FSP, tp=2), preset=split)
    assert "--tp-comm-overlap" not in flags_of(FSP, preset=split)
    assert "--tp-comm-overlap" not in flags_of(replace(FSP, strategy="mtp", tp=2), preset=split)
    for choice in ("overlap_ag", "overlap_rs", "bulk_dgrad", "bulk_wgrad"):
        partly = flags_of(replace(FSP, tp=2), preset=split | {f"tensor_parallel.{choice}": False})
        assert f"--disable-tp-comm-{choice.replace('_', '-')}" in partly
    more = flags_of(replace(FSP, tp=2), preset=split | {"tensor_parallel.overlap_rs_dgrad": True})
    assert "--tp-comm-overlap-rs-dgrad" in more
    assert "--disable-tp-comm-overlap-ag" not in more
    ring = split | {"tensor_parallel.overlap_rs_method": "ring_exchange"}
    with pytest.raises(ExportError, match="ring exchange"):
        flags_of(replace(FSP, tp=2), preset=ring)


def routed(**changes: Any) -> MoeSpec:
    return replace(EXPERTS, **changes)


def test_the_file_says_its_use_its_core_and_what_else_is_needed() -> None:
    plan = replace(FSP, tp=2)
    written = megatron_settings(asked(plan), plan)
    head = [line for line in written.text.splitlines() if line.startswith("#")]
    assert head[0] == "# fsp tp2 mb1x1"
    assert "Megatron-LM core 0.14 or later" in head[1]
    assert "grep -v '^#' FILE" in head[1]
    assert written.notes == ("set CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell",)
    assert head[2:] == [f"# {note}" for note in written.notes]
    attention = replace(small_model().blocks[0].block.mixer, window=512)
    windowed = with_block(small_model(layers=8), mixer=attention)
    text = megatron_settings(asked(FSP, model=windowed), FSP).text
    assert "core 0.15 or later" in text
    assert "--window-size (511,0)\n" in text
    offloads = replace(FSP, offloaded_layers=2)
    offloaded = megatron_settings(asked(offloads), offloads).text
    assert "core 0.16 or later" in offloaded


def test_parts_of_layers_on_the_host() -> None:
    plan = replace(FSP, pp=2, num_micro=2, offload_modules=("core_attn", "attn_proj"))
    written = megatron_settings(asked(plan), plan)
    assert "core 0.16 or later" in written.text
    assert "set NVTE_CPU_OFFLOAD_V1=1 from Transformer Engine 2.10 on" in written.notes
    read = parse_flags("megatron-core-0.19", written.text)
    assert read.fine_grained_activation_offloading
    assert read.offload_modules == ["attn_proj", "core_attn"]
    assert not read.use_transformer_engine_op_fuser
    fused = replace(plan, offload_modules=("fused_group_mlp",))
    assert parse_flags(
        "megatron-core-0.19", megatron_settings(asked(fused), fused).text
    ).use_transformer_engine_op_fuser


def test_instruction_tuning_is_a_flag_with_a_note_on_its_data() -> None:
    """core 0.14 on: pretrain_gpt.py reads chats through datasets/sft_dataset.py."""
    plan = replace(FSP, dp=4)
    written = megatron_settings(asked(plan, job={"task": "sft", "document_tokens": 8}), plan)
    assert parse_flags("megatron-core-0.14", written.text).sft
    assert any("SFTTokenizer" in note for note in written.notes)
    assert not any("document_tokens" in note for note in written.notes)
    plain = megatron_settings(asked(plan, job={"document_tokens": 8}), plan)
    assert not parse_flags("megatron-core-0.14", plain.text).sft
    assert any("document_tokens" in note for note in plain.notes)


def test_gpt_oss_has_windows_in_every_other_layer_sinks_and_clamped_experts() -> None:
    """core 0.19: window_attn_skip_freq (1: a window), softmax_type, quick GEGLU; its router's bias is a linear's."""
    plan = replace(FSP, tp=1, dp=8, ep=2, num_micro=2)
    model = read_config(ROOT / "configs" / "20B_gpt_oss.json").model
    written = megatron_settings(asked(plan, model=model), plan)
    assert "core 0.19 or later" in written.text
    read = parse_flags("megatron-core-0.19", written.text)
    windows = eval(read.window_attn_skip_freq)  # noqa: S307
    assert windows == [1, 0] * 12
    assert (read.window_size, read.softmax_type, read.attention_backend) == ("(127,0)", "learnable", "fused")
    assert (read.quick_geglu, read.activation_func_clamp_value, read.glu_linear_offset) == (True, 7.0, 1.0)
    assert "--disable-bias-linear" not in written.text
    assert "--moe-router-enable-expert-bias" not in written.text
    odd = with_block(model, mixer=replace(model.blocks[0].block.mixer, window=64))
    with pytest.raises(ExportError, match="unequal attention"):
        megatron_settings(asked(plan, model=replace(model, blocks=(*model.blocks[:23], odd.blocks[0]))), plan)


def test_what_core_0_19_brought() -> None:
    """arguments.py: --optimizer takes muon; --attention-output-gate and --moe-latent-size are fields of its config."""
    plan = replace(FSP, dp=4, zero_stage=1, zero_size=4)
    block = small_model().blocks[0].block
    gated = with_block(small_model(layers=8), mixer=replace(block.mixer, output_gate=True))
    question = asked(plan, model=gated)
    question = replace(question, job=replace(question.job, optimizer="muon"))
    text = megatron_settings(question, plan).text
    assert "core 0.19 or later" in text
    read = parse_flags("megatron-core-0.19", text)
    assert (read.optimizer, read.attention_output_gate, read.use_distributed_optimizer) == ("muon", True, True)
    part = replace(plan, zero_size=2)
    with pytest.raises(ExportError, match="Muon over a part"):
        megatron_settings(question, part)
    latent = MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=256, latent_hidden=64)
    routed = with_block(small_model(layers=8), mlp=None, moe=latent)
    assert megatron_flags(asked(FSP, model=routed), FSP)["--moe-latent-size"] == 64


# Rotary base and scaling, epsilons and routers as Megatron-LM is told them, and what it cannot be told.

SMALL = small_model(layers=8)
DEEP = with_block(SMALL, mixer=LATENT)
YARN = RopeScaling(
    kind="yarn", factor=40.0, original_positions=4096, slow=1.0, fast=32.0, mscale=0.707, mscale_all_dim=0.707
)
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_positions=8192, slow=1.0, fast=4.0)


def facts(model: ModelSpec) -> dict[str, str | None]:
    return flags_in(" ".join(flag_lines(fact_flags(model))))


def test_deepseek_as_nvidia_launches_it() -> None:
    """Megatron-LM core 0.19, examples/post_training/modelopt/conf/deepseek-ai/DeepSeek-R1.sh and V2-Lite.sh."""
    third = facts(read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model)
    assert third == flags_in(
        "--norm-epsilon 1e-06 --rotary-base 10000 --rope-type yarn --rotary-scaling-factor 40.0 --mscale 1.0 "
        "--mscale-all-dim 1.0 --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
        "--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-topk-scaling-factor 2.5"
    )
    lite = fact_flags(read_config(ROOT / "configs" / "16B_deepseek_v2_lite.toml").model)
    assert (lite["--mscale"], lite["--mscale-all-dim"]) == ("0.707", "0.707")
    assert "--moe-router-pre-softmax" in lite
    assert not lite.keys() & {"--moe-router-num-groups", "--moe-router-topk-scaling-factor"}


@pytest.mark.parametrize(
    ("model", "rope", "flags"),
    [
        (SMALL, RopeSpec(base=5e5), "--rotary-base 500000"),
        (SMALL, RopeSpec(share=0.25), "--rotary-base 10000 --rotary-percent 0.25"),
        (
            SMALL,
            RopeSpec(base=5e5, scaling=LLAMA3),
            "--rotary-base 500000 --use-rope-scaling --rope-scaling-factor 8.0",
        ),
        (
            SMALL,
            RopeSpec(scaling=RopeScaling(kind="linear", factor=4.0)),
            "--rotary-base 10000 --rotary-seq-len-interpolation-factor 4",
        ),
        # unless told, latent attention runs yarn, and its fused kernel nothing else
        (DEEP, RopeSpec(), "--rotary-base 10000 --rope-type rope --no-rope-fusion"),
    ],
)
def test_rotation(model: ModelSpec, rope: RopeSpec, flags: str) -> None:
    assert facts(replace(model, rope=rope)) == flags_in(flags)
    assert fact_omissions(replace(model, rope=rope)) == ()


@pytest.mark.parametrize(
    ("model", "rope", "note"),
    [
        (SMALL, RopeSpec(base=10_000.5), "rotary base 10000.5"),
        (SMALL, RopeSpec(scaling=YARN), "rotary scaling yarn by 40"),
        (SMALL, RopeSpec(scaling=RopeScaling(kind="dynamic", factor=2.0)), "rotary scaling dynamic by 2"),
        (SMALL, RopeSpec(scaling=RopeScaling(kind="linear", factor=2.5)), "rotary scaling linear by 2.5"),
        (SMALL, RopeSpec(scaling=replace(LLAMA3, slow=2.0)), "llama3's slow 2, here 1"),
        (DEEP, RopeSpec(scaling=replace(YARN, original_positions=8192)), "original positions 8192, here 4096"),
        (DEEP, RopeSpec(scaling=LLAMA3), "rotary scaling llama3 by 8"),
    ],
)
def test_rotation_that_it_cannot_be_told(model: ModelSpec, rope: RopeSpec, note: str) -> None:
    (said,) = fact_omissions(replace(model, rope=rope))
    assert said.startswith("left out: ")
    assert note in said


@pytest.mark.parametrize(
    ("moe", "flags", "notes"),
    [
        (routed(), "", 0),
        (routed(normalized=False), "--moe-router-pre-softmax", 0),
        (routed(topk=1, normalized=False), "--moe-router-pre-softmax", 0),
        # core 0.14 refuses one expert after the softmax
        (routed(topk=1), "--moe-router-pre-softmax", 1),
        (routed(score="sigmoid", normalized=False), "--moe-router-score-function sigmoid", 1),
        (routed(route_groups=4, route_chosen_groups=2), "--moe-router-num-groups 4 --moe-router-group-topk 2", 0),
        (routed(route_scale=2.5), "--moe-router-topk-scaling-factor 2.5", 0),
    ],
)
def test_routers(moe: MoeSpec, flags: str, notes: int) -> None:
    model = with_block(SMALL, mlp=None, moe=moe)
    assert facts(model) == flags_in(flags)
    assert len(fact_omissions(model)) == notes


@pytest.mark.parametrize(
    ("bias", "activation", "notes"),
    [(True, "gelu", 1), (True, "gelu_tanh", 0), (False, "gelu", 0), (False, "gelu_tanh", 1)],
)
def test_which_gelu_is_computed(bias: bool, activation: str, notes: int) -> None:
    """bias_gelu_fusion is the tanh form (core/fusions/fused_bias_gelu.py); without a bias it is torch's own."""
    mlp = MlpSpec(ffn_hidden=64, gated=False, bias=bias, activation=activation)
    assert len(fact_omissions(with_block(SMALL, mlp=mlp))) == notes
