"""A plan as an InternEvo config: it reads back as the plan, and what InternEvo refuses is not written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.problem.requested_plan import plan_of
from spec.errors import ExportError
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind, RopeScaling, RopeSpec
from spec.model import MlpSpec, ModelSpec
from spec.readers.internlm import read_internlm_config
from tests.solver.questions import small_model, with_block
from tests.workload.random_plans import EXPERTS, LATENT, Case, cases
from tests.workload.settings.problems import asked, known
from workload.settings.internevo import (
    check_internevo,
    checkpoint_share,
    internevo_settings,
    model_section,
    model_type,
    omissions,
)

PLAN = Plan(strategy="msp", preset="internevo")
ROUTED = with_block(small_model(layers=8), mlp=None, moe=replace(EXPERTS, shared_ffn_hidden=256))


def as_internevo_has_it(model: ModelSpec) -> ModelSpec:
    """Shared experts of whole widths, heads that are not grouped called so, and a head of its own."""
    runs = []
    for run in model.blocks:
        attention = run.block.mixer
        if attention.kind is AttentionKind.GQA and attention.num_kv_heads == attention.num_heads:
            attention = replace(attention, kind=AttentionKind.MHA)
        moe = run.block.moe and replace(run.block.moe, shared_ffn_hidden=2 * run.block.moe.expert_ffn_hidden)
        runs.append(replace(run, block=replace(run.block, mixer=attention, moe=moe)))
    rope = RopeSpec(base=500_000.0)
    return replace(model, blocks=tuple(runs), rope=rope, norm_epsilon=1e-6, tied_embeddings=False)


@settings(max_examples=2 * settings.default.max_examples)
@given(case=cases())
def test_a_config_reads_back_as_the_plan(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    model, plan = as_internevo_has_it(case.problem.model), case.plan
    question = replace(case.problem, model=model, job=replace(case.problem.job, preset=framework_preset("internevo")))
    assume(plan.vpp == 1 or (plan.pp > 1 and model.num_layers % plan.vpp == 0))
    latent = model.blocks[0].block.mixer == LATENT
    routed = any(run.block.moe for run in model.blocks)
    known = plan.strategy in framework_preset("internevo").tensor_parallel.strategies
    if not known:
        with pytest.raises(ExportError, match="InternEvo has no setting"):
            internevo_settings(question, plan)
        return
    if plan.cp > 1 or plan.zero_stage > 1 or latent or len(model.blocks) > 1:
        with pytest.raises(ExportError, match=r"cp = 2|ZeRO stage|mixed layers|attention of"):
            internevo_settings(question, plan)
        return
    whole = plan.world_size // (plan.pp * plan.wp) if plan.strategy == "isp" else plan.dp
    if routed and plan.zero_size != whole:
        with pytest.raises(ExportError, match="experts beside a zero1"):
            internevo_settings(question, plan)
        return
    path = tmp_path_factory.mktemp("internevo") / f"{model.name}.py"
    path.write_text(internevo_settings(question, plan).text)
    read = read_internlm_config(path)
    assert read.plan is not None
    assert (read.seq_len, read.plan.num_micro) == (question.job.seq_len, plan.num_micro)
    bucket = question.job.preset.data_parallel.bucket_elements
    assert read.framework_job["data_parallel.bucket_elements"] == bucket
    assert replace(plan_of(read.plan, question, "config"), etp=read.plan.etp or 1) == plan
    assert replace(read.model, source="") == replace(model, source="")


def sections(plan: Plan, **changes: Any) -> dict[str, Any]:
    """The names of the config that a plan becomes."""
    names: dict[str, Any] = {}
    exec(internevo_settings(asked(plan, **changes), plan).text, names)  # noqa: S102 - as InternEvo reads it
    return names


@pytest.mark.parametrize(("layers", "pp"), [(32, 1), (32, 4), (80, 8), (49, 1), (22, 3), (126, 16)])
def test_every_share_of_recomputed_layers_is_written_and_read(layers: int, pp: int, tmp_path: Path) -> None:
    sizes = {layers // pp, -(-layers // pp)}
    for count in range(1, layers // pp):
        plan = replace(PLAN, pp=pp, num_micro=pp, recompute=Recompute.BLOCK, num_recompute_layers=count)
        model = replace(small_model(layers=layers), tied_embeddings=False)
        share = sections(plan, model=model)["model"]["checkpoint"]
        assert {int(size * share) for size in sizes} == {count}
        path = tmp_path / "config.py"
        path.write_text(internevo_settings(asked(plan, model=model), plan).text)
        read = read_internlm_config(path).plan
        assert read is not None
        assert (read.recompute, read.recompute_layers) == ("full", count)


def test_a_share_is_the_quotient_where_that_counts_right() -> None:
    assert checkpoint_share(8, frozenset({32})) == 0.25
    # 49 x (1 / 49) is less than 1 in floating point
    assert int(49 * (1 / 49)) == 0
    assert int(49 * checkpoint_share(1, frozenset({49}))) == 1
    with pytest.raises(ExportError, match="7 recomputed layers on stages of 7 or 8"):
        checkpoint_share(7, frozenset({7, 8}))


def test_zero_over_all_ranks_is_minus_one() -> None:
    plan = replace(PLAN, dp=4, zero_stage=1, zero_size=4)
    assert sections(plan, model=ROUTED)["parallel"]["zero1"]["size"] == -1
    assert sections(plan)["parallel"]["zero1"]["size"] == -1
    assert sections(replace(plan, zero_size=2))["parallel"]["zero1"]["size"] == 2
    with pytest.raises(ExportError, match="experts beside a zero1 over 2 of 4"):
        sections(replace(plan, zero_size=2), model=ROUTED)
    shards = Plan(strategy="isp", preset="internevo", tp=2, wp=4, dp=4, zero_stage=1, zero_size=2)
    assert sections(shards, model=ROUTED)["parallel"]["zero1"]["size"] == -1


def test_zero_bubbles_are_its_own_mode() -> None:
    plan = replace(PLAN, pp=2, num_micro=2, schedule=Schedule.ZB_H1)
    apart = {"data_parallel.overlap_grad_reduce": False}
    pipeline = sections(plan, preset=apart)["parallel"]["pipeline"]
    assert pipeline["mode"] == "ZBH1"
    assert sections(replace(PLAN, pp=2, num_micro=2))["parallel"]["pipeline"]["mode"] == "1F1B"
    for changes, preset, match in (
        ({}, {}, "beside overlap_sync_grad"),
        ({"vpp": 2}, apart, "2 chunks a stage"),
        ({"strategy": "isp", "tp": 2, "wp": 2}, apart, "gathers of weights ahead"),
        ({"schedule": Schedule.ZB_2P}, apart, "schedule zb-2p"),
    ):
        with pytest.raises(ExportError, match=match):
            sections(replace(plan, **changes), preset=preset)


def test_experts_overlap_one_of_gradients_and_parameters() -> None:
    both = {"data_parallel.overlap_param_gather": True}
    with pytest.raises(ExportError, match="overlap_sync_grad and overlap_sync_param"):
        check_internevo(*known(PLAN, model=ROUTED, preset=both))


def test_the_file_says_which_internevo_it_needs_and_what_it_leaves_out() -> None:
    plain = internevo_settings(asked(PLAN), PLAN)
    assert plain.text.splitlines()[0] == "# msp mb1x1"
    assert "INTERNLM2 from commit 24180aa" in plain.text.splitlines()[1]
    assert plain.notes == ()
    whole = replace(PLAN, dp=2, zero_stage=1, zero_size=2)
    routed = internevo_settings(asked(whole, model=ROUTED), whole).text
    assert "# Needs InternEvo 0.5.3 of commit 6e591ac" in routed
    scaled = replace(small_model(layers=8), rope=RopeSpec(scaling=RopeScaling(kind="yarn", factor=40.0)))
    written = internevo_settings(asked(PLAN, model=scaled), PLAN)
    assert written.notes == ("left out: rotary scaling yarn by 40",)
    assert "# left out: rotary scaling yarn by 40" in written.text.splitlines()


# A model as InternEvo's types have it, and what they have no key for.

SMALL = small_model(layers=8)
ATTENTION = SMALL.blocks[0].block.mixer
SHARED = replace(EXPERTS, shared_ffn_hidden=2 * EXPERTS.expert_ffn_hidden)


@pytest.mark.parametrize(
    ("changes", "kind", "keys"),
    [
        ({}, "INTERNLM2_PUBLIC", {"no_bias": True}),
        (
            {
                "mixer": replace(ATTENTION, qkv_bias=True, out_bias=True),
                "mlp": MlpSpec(ffn_hidden=512, gated=True, bias=True),
            },
            "INTERNLM2_PUBLIC",
            {"no_bias": False},
        ),
        ({"mixer": replace(ATTENTION, qkv_bias=True)}, "QWEN2", {"qkv_bias": True, "o_bias": False}),
        ({"mlp": MlpSpec(ffn_hidden=512, gated=True, bias=True)}, "QWEN2", {"qkv_bias": False, "mlp_bias": True}),
        ({"mixer": replace(ATTENTION, window=512)}, "QWEN2", {"use_sliding_window": True, "sliding_window": 512}),
        ({"mlp": MlpSpec(ffn_hidden=512, gated=True, activation="gelu")}, "INTERNLM2_PUBLIC", {"use_swiglu": False}),
        ({"mlp": None, "moe": SHARED}, "MIXTRALMOE", {"num_shared_experts": 2, "moe_type": "Dropless"}),
        ({"mlp": None, "moe": replace(SHARED, shared_gate=True)}, "QWEN2MOE", {"num_experts": 8}),
        (
            {"mlp": None, "moe": replace(SHARED, capacity_factor=1.5)},
            "MIXTRALMOE",
            {"moe_type": "GShard", "moe_layer_kwargs": {"capacity_factor": 1.5}},
        ),
        (
            {
                "mixer": replace(ATTENTION, qk_norm=True, qk_dim=128, v_dim=128),
                "mlp": None,
                "moe": replace(EXPERTS, shared_ffn_hidden=0, normalized=False, route_scale=2.5),
            },
            "QWEN3MOE",
            {
                "head_dim": 128,
                "moe_layer_kwargs": {
                    "scoring_func": "softmax",
                    "normalize_expert_weights": False,
                    "routed_scaling_factor": 2.5,
                },
            },
        ),
    ],
)
def test_types(changes: dict[str, Any], kind: str, keys: dict[str, object]) -> None:
    model = with_block(SMALL, **changes)
    assert model_type(model) == kind
    section = model_section(model)
    assert keys == {key: section[key] for key in keys}


def test_facts_of_the_config() -> None:
    model = replace(SMALL, rope=RopeSpec(base=5e5), norm_epsilon=1e-6, max_positions=8192)
    section = model_section(model)
    assert (section["rope_base"], section["layer_norm_epsilon"]) == (500_000, 1e-6)
    assert section["max_position_embeddings"] == 8192
    assert not {"rope_base", "layer_norm_epsilon", "max_position_embeddings"} & model_section(SMALL).keys()


def test_what_it_has_no_key_for() -> None:
    assert omissions(SMALL) == ()
    routed = replace(SHARED, route_groups=4, route_chosen_groups=2, score="sigmoid", normalized=False, route_scale=2.5)
    (groups, score, sums, scale) = omissions(with_block(SMALL, mlp=None, moe=routed))
    assert "2 of 4 groups" in groups
    assert "sigmoid" in score
    assert "divided by their sum" in sums
    assert "times 2.5" in scale
    partial = replace(
        with_block(SMALL, mlp=MlpSpec(ffn_hidden=512, gated=True, activation="gelu_tanh")), rope=RopeSpec(share=0.25)
    )
    (share, form) = omissions(partial)
    assert "0.25 of a head" in share
    assert "tanh form" in form
