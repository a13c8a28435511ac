"""A plan as launch settings: what a framework is told reads back as the plan."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

import simulation_train_formulaic as script
from ops.recompute.layers import Recompute
from solver.pipeline.stages import layers_per_stage
from solver.plans.plan_table import Plan
from solver.schedules.registry import Schedule
from solver.typed_plan import plan_of
from spec.errors import ExportError
from spec.mixers.attention import AttentionKind
from spec.mixers.rope import RopeSpec
from spec.model import BlockRun, ModelSpec
from spec.presets.registry import PRESETS
from spec.readers.internlm_config import read_internlm_config
from spec.readers.read_config import read_config
from tests.solver.questions import question, small_model
from tests.workload.generating import ROOT
from tests.workload.random_plans import EXPERTS, LATENT, Case, cases
from workload.settings.deepspeed import deepspeed_settings
from workload.settings.internevo import internevo_settings
from workload.settings.launch import LaunchFiles, write_launch_files
from workload.settings.megatron import megatron_settings

FSP = "fsp"


def asked(plan: Plan, *, model: ModelSpec | None = None) -> Case:
    job = question(
        model=model or small_model(layers=8),
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        preset=PRESETS[plan.preset],
    )
    return Case(question=job, plan=plan)


def as_internevo_has_it(model: ModelSpec) -> ModelSpec:
    """Shared experts of whole widths, and heads that are not grouped called so."""
    runs = []
    for run in model.blocks:
        attention = run.block.mixer
        if attention.kind is AttentionKind.GQA and attention.num_kv_heads == attention.num_heads:
            attention = replace(attention, kind=AttentionKind.MHA)
        moe = run.block.moe and replace(run.block.moe, shared_ffn_hidden=2 * run.block.moe.expert_ffn_hidden)
        runs.append(replace(run, block=replace(run.block, mixer=attention, moe=moe)))
    return replace(model, blocks=tuple(runs), rope=RopeSpec(base=500_000.0), norm_epsilon=1e-6)


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_an_internevo_config_reads_back_as_the_plan(
    case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = replace(
        case, question=replace(case.question, job=case.question.job.with_preset(PRESETS["internevo"]))
    )
    model = as_internevo_has_it(case.question.model)
    case = replace(case, question=replace(case.question, model=model))
    latent = case.question.model.blocks[0].block.mixer == LATENT
    known = case.plan.strategy in PRESETS["internevo"].tensor_parallel.strategies
    mixed = len(case.question.model.blocks) > 1
    if not known or case.plan.cp > 1 or case.plan.zero_stage > 1 or latent or mixed:
        with pytest.raises(ExportError, match=r"ulysses|cp = 2|ZeRO stage|mixed layers|attention of"):
            internevo_settings(case.question, case.plan)
        return
    text = internevo_settings(case.question, case.plan)
    assume(case.plan.vpp == 1)  # the reader prices no virtual chunks
    path = tmp_path_factory.mktemp("internevo") / f"{case.question.model.name}.py"
    path.write_text(text)
    read = read_internlm_config(path)
    assert read.plan is not None
    assert (read.seq_len, read.plan.num_micro) == (case.question.job.seq_len, case.plan.num_micro)
    assert read.job.reduce_bucket_size == case.question.job.preset.data_parallel.bucket_elements
    assert replace(plan_of(read.plan, case.question, "config"), etp=read.plan.etp or 1) == case.plan
    assert replace(read.model, source="") == replace(case.question.model, source="")


@pytest.mark.parametrize("config", ["7B_internlm2.py", "70B_llama2.py", "72B_qwen2.py", "8x7B_mixtral.py"])
def test_models_read_back_from_their_internevo_config(config: str, tmp_path: Path) -> None:
    model = read_config(ROOT / "configs" / config).model
    plan = Plan(
        strategy="msp",
        preset="internevo",
        tp=8,
        dp=2,
        num_micro=2,
        etp=8 if model.blocks[0].block.moe else 1,
    )
    path = tmp_path / config
    path.write_text(internevo_settings(asked(plan, model=model).question, plan))
    assert replace(read_internlm_config(path).model, source="") == replace(model, source="")


# Flags of megatron/training/arguments.py with their types.
NUMBERS = str.split(
    "tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size "
    "expert-tensor-parallel-size num-virtual-stages-per-pipeline-rank num-distributed-optimizer-instances "
    "micro-batch-size global-batch-size seq-length recompute-num-layers num-layers hidden-size vocab-size "
    "make-vocab-size-divisible-by max-position-embeddings mtp-num-layers num-attention-heads kv-lora-rank "
    "qk-head-dim qk-pos-emb-head-dim v-head-dim q-lora-rank num-query-groups kv-channels ffn-hidden-size num-experts "
    "moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size"
)
WORDS = str.split(
    "cp-comm-type pipeline-model-parallel-layout attention-backend recompute-granularity recompute-method "
    "recompute-modules position-embedding-type normalization moe-layer-freq moe-token-dispatcher-type window-size "
    "moe-router-score-function moe-expert-capacity-factor"
)
SWITCHES = str.split(
    "sequence-parallel overlap-grad-reduce overlap-param-gather use-distributed-optimizer bf16 swiglu qk-layernorm "
    "untie-embeddings-and-output-weights multi-latent-attention group-query-attention disable-bias-linear add-qkv-bias "
    "moe-grouped-gemm moe-router-enable-expert-bias account-for-embedding-in-pipeline-split "
    "account-for-loss-in-pipeline-split"
)


def megatron(case: Case, folder: Path) -> argparse.Namespace:
    """The flags as Megatron-LM would parse them."""
    path = folder / "flags.txt"
    write_launch_files(case.question, case.plan, LaunchFiles(megatron=path))
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    for name in WORDS:
        parser.add_argument(f"--{name}")
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(path.read_text().split())


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_megatron_flags_read_back_as_the_plan(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = replace(case.plan, preset="megatron")
    case = Case(
        question=replace(case.question, job=case.question.job.with_preset(PRESETS["megatron"])), plan=plan
    )
    if plan.strategy not in ("mtp", FSP) or plan.zero_stage > 1:
        with pytest.raises(ExportError):
            megatron_settings(case.question, plan)
        return
    read = megatron(case, tmp_path_factory.mktemp("megatron"))
    copies = plan.dp * plan.cp
    back = Plan(
        strategy=FSP if read.sequence_parallel else "mtp",
        preset="megatron",
        recompute=Recompute(read.recompute_granularity or "none"),
        tp=read.tensor_model_parallel_size,
        cp=read.context_parallel_size,
        pp=read.pipeline_model_parallel_size,
        vpp=read.num_virtual_stages_per_pipeline_rank or 1,
        ep=read.expert_model_parallel_size or 1,
        etp=read.expert_tensor_parallel_size or 1,
        dp=plan.world_size // (plan.tp * plan.cp * plan.pp),
        zero_stage=int(read.use_distributed_optimizer),
        zero_size=copies // (read.num_distributed_optimizer_instances or 1)
        if read.use_distributed_optimizer
        else 1,
        micro_batch=read.micro_batch_size,
        num_micro=read.global_batch_size // (read.micro_batch_size * plan.dp),
    )
    # with one tensor-parallel rank nothing is cut, whichever way it would be
    assert back == (plan if plan.tp > 1 else replace(plan, strategy="mtp"))
    model = case.question.model
    assert (read.num_layers, read.hidden_size, read.vocab_size) == (
        model.num_layers,
        model.hidden,
        model.vocab,
    )
    assert read.multi_latent_attention == (model.blocks[0].block.mixer == LATENT)
    assert (read.num_experts or 0) == (EXPERTS.num_experts if model.blocks[-1].block.moe else 0)
    if len(model.blocks) > 1:
        assert read.moe_layer_freq == "([0]*1+[1]*7)"


def test_uneven_stages_are_a_layout(tmp_path: Path) -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=3, num_micro=3)
    case = asked(plan)
    layout = megatron(case, tmp_path).pipeline_model_parallel_layout
    assert layout == "Et*3|t*3|t*2L"
    assert layers_per_stage(8, 3).tolist() == [3, 3, 2]


def test_a_layout_as_planned_is_written_as_it_is(tmp_path: Path) -> None:
    plan = Plan(strategy=FSP, preset="megatron", pp=3, num_micro=3, stage_layout="Et*4|t*3|tL")
    assert megatron(asked(plan), tmp_path).pipeline_model_parallel_layout == "Et*4|t*3|tL"


def test_partial_shards_and_edges_that_count_as_layers(tmp_path: Path) -> None:
    plan = Plan(strategy=FSP, preset="megatron", dp=8, zero_stage=1, zero_size=2, num_micro=2)
    assert megatron(asked(plan), tmp_path).num_distributed_optimizer_instances == 4
    plan = Plan(strategy=FSP, preset="megatron", pp=5, vpp=2, num_micro=5)
    read = megatron(asked(plan), tmp_path)
    assert read.num_virtual_stages_per_pipeline_rank == 2
    assert read.account_for_embedding_in_pipeline_split
    assert read.account_for_loss_in_pipeline_split
    plan = Plan(
        strategy=FSP, preset="megatron", pp=2, num_micro=2, recompute=Recompute.BLOCK, num_recompute_layers=3
    )
    read = megatron(asked(replace(plan, stage_layout="Et*3|t*5L")), tmp_path)
    assert read.pipeline_model_parallel_layout == "Et*3|t*5L"
    assert (read.recompute_method, read.recompute_num_layers) == ("block", 3)


@pytest.mark.parametrize(
    "config",
    [
        "16B_deepseek_v2_lite.toml",
        "236B_deepseek_v2.toml",
        "671B_deepseek_v3.toml",
        "175B_gpt.toml",
        "8x7B_mixtral.py",
        "72B_qwen2.py",
        "405B_llama3.py",
    ],
)
def test_models_in_megatron_flags(config: str, tmp_path: Path) -> None:
    model = read_config(ROOT / "configs" / config).model
    plan = Plan(strategy=FSP, preset="megatron", tp=8, etp=1, dp=1)
    read = megatron(asked(plan, model=model), tmp_path)
    attention = model.blocks[0].block.mixer
    assert read.num_attention_heads == attention.num_heads
    assert (
        read.num_query_groups or (read.kv_lora_rank and attention.num_kv_heads) or read.num_attention_heads
    ) == attention.num_kv_heads
    assert read.add_qkv_bias == (config == "72B_qwen2.py")
    assert read.disable_bias_linear == (config != "175B_gpt.toml")
    assert read.swiglu == (config != "175B_gpt.toml")


@pytest.mark.parametrize(
    ("write", "preset", "changes", "match"),
    [
        (megatron_settings, "internevo", {}, "--framework megatron"),
        (megatron_settings, "megatron", {"strategy": "isp"}, "no setting for isp"),
        (megatron_settings, "megatron", {"schedule": Schedule.ZB_H1}, "schedule = zb-h1"),
        (deepspeed_settings, "deepspeed", {"cp": 2}, "cp = 2"),
        (deepspeed_settings, "deepspeed", {"strategy": "fsp", "tp": 2}, "no setting for fsp"),
        (
            deepspeed_settings,
            "deepspeed",
            {"strategy": "ulysses", "tp": 2, "dp": 2, "zero_stage": 1, "zero_size": 2},
            "2 of 4",
        ),
        (deepspeed_settings, "deepspeed", {"dp": 4, "zero_stage": 1, "zero_size": 2}, "2 of 4"),
        (deepspeed_settings, "deepspeed", {"tp": 2, "dp": 2, "zero_stage": 3, "zero_size": 2}, "AutoTP"),
        (internevo_settings, "internevo", {"recompute": Recompute.SELECTIVE}, "selective parts"),
        (internevo_settings, "internevo", {"schedule": Schedule.ZB_2P}, "schedule zb-2p"),
        (internevo_settings, "megatron", {}, "--framework internevo"),
    ],
)
def test_what_a_framework_cannot_be_told_is_refused(
    write: object, preset: str, changes: dict[str, object], match: str
) -> None:
    plan = replace(Plan(strategy="mtp", preset=preset, num_micro=2), **changes)
    with pytest.raises(ExportError, match=match):
        write(asked(plan).question, plan)  # type: ignore[operator]


def test_layers_a_framework_does_not_have_are_refused() -> None:
    plan = Plan(strategy="mtp", preset="megatron")
    model = small_model(layers=8)
    block = model.blocks[0].block
    odd = replace(model, blocks=(BlockRun(block=replace(block, parallel_residual=True), count=8),))
    with pytest.raises(ExportError, match="parallel residuals"):
        megatron_settings(asked(plan, model=odd).question, plan)


def test_the_command_writes_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--config {ROOT}/configs/tiny_internlm2.py --world_size 8 --framework megatron --plan tp=2,pp=2,strategy=fsp "
    words += f"--pre_profiling_data_path {ROOT}/prof_data/data.pt --global_batch_size 65536 "
    words += f"--export_megatron {tmp_path}/m.txt --export_trace {tmp_path}/t.json"
    assert script.main(words.split()) == 0
    assert f"wrote {tmp_path}/m.txt" in capsys.readouterr().out
    assert "--sequence-parallel\n" in (tmp_path / "m.txt").read_text()
    assert script.main([*words.split(), "--export_internevo", f"{tmp_path}/i.py"]) == 2
    assert "--framework internevo" in capsys.readouterr().err
    assert not (tmp_path / "i.py").exists()
