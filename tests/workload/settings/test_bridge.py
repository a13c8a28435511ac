"""A plan as a Megatron-Bridge recipe: fields that it has, of the kinds that they take, and what it is not told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT, small_model, with_block
from tests.workload.random_plans import EXPERTS, Case, cases
from tests.workload.settings.accepted.lists import check_fields
from tests.workload.settings.made_module import Call, fields_of, functions_of
from tests.workload.settings.problems import asked, known, says, under
from workload.settings.bridge import bridge_fields, bridge_settings, check_bridge

PLAN = Plan(strategy="fsp", preset="megatron-bridge", tp=2, dp=4, zero_stage=1, zero_size=4, num_micro=4)
ROUTED = with_block(small_model(layers=8), mlp=None, moe=EXPERTS)


def made(text: str, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, object]:
    """Every field that the recipe sets, checked against the framework's; names of torch and of enums by themselves."""
    config = functions_of(text, folder, patch)["recipe"]("a/model")  # type: ignore[operator]
    assert isinstance(config, Call)
    found = fields_of(config)
    assert found.pop("model.load_weights") is False
    names = {path: value for path, value in found.items() if not path.endswith("attention_backend")}
    check_fields("megatron-bridge", names)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_fields_say_the_plan(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question, plan = under(case, "megatron-bridge")
    try:
        text = bridge_settings(question, plan).text
    except ExportError:
        return
    told = made(text, tmp_path, monkeypatch)
    assert says({path.rpartition(".")[2]: value for path, value in told.items()}, plan)
    assert told["model.seq_length"] == told["dataset.seq_length"] == question.job.seq_len


def test_what_the_common_recipe_has_on_is_said_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both holders of an overlap, as CommOverlapConfig writes its own over the other."""
    plain = replace(PLAN, zero_stage=0, zero_size=1)
    quiet = {"data_parallel.overlap_grad_reduce": False, "data_parallel.overlap_param_gather": False}
    quiet["host.checks_numbers"] = True
    told = made(bridge_settings(asked(plain, preset=quiet), plain).text, tmp_path, monkeypatch)
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        assert told[f"ddp.{name}"] is told[f"comm_overlap.{name}"] is False
    assert told["optimizer.use_distributed_optimizer"] is told["ddp.use_distributed_optimizer"] is False
    assert told["ddp.check_for_nan_in_grad"] is True
    assert told["tokenizer.tokenizer_model"] == "a/model"


@pytest.mark.parametrize(
    ("job", "lines"),
    [
        ({}, "get_mixed_precision_config('bf16_mixed'); grad_reduce_in_fp32 = False"),
        ({"gradient": "fp32", "reduce": "fp32"}, "grad_reduce_in_fp32 = True"),
        (
            {"linear": "fp8", "scaling": "current"},
            "bf16_with_fp8_current_scaling_mixed; first_last_layers_bf16 = False; fp8_param_gather = False",
        ),
        (
            {"linear": "fp8", "scaling": "current", "high_precision_first_layers": 1, "high_precision_last_layers": 2},
            "first_last_layers_bf16 = True; num_layers_at_start_in_bf16 = 1; num_layers_at_end_in_bf16 = 2",
        ),
        ({"linear": "fp8", "scaling": "delayed"}, "bf16_with_fp8_delayed_scaling_mixed"),
        ({"linear": "fp8", "scale_recipe": "block"}, "fp8_subchannel_scaling_mixed; precision.fp8 = 'e4m3'"),
        (
            {"linear": "fp8", "scale_recipe": "mx", "scaling": "block", "low_precision_parameters": True},
            "bf16_with_mxfp8_mixed; fp8_param_gather = True; reuse_grad_buf_for_mxfp8_param_ag = True",
        ),
        (
            {"linear": "fp8", "scale_recipe": "mx", "scaling": "block"},
            "bf16_with_mxfp8_mixed; fp8_param_gather = False; reuse_grad_buf_for_mxfp8_param_ag = False",
        ),
    ],
)
def test_formats_go_by_its_names(
    job: dict[str, Any], lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = bridge_settings(asked(PLAN, job=job), PLAN).text
    assert all(line in text for line in lines.split("; ")), text
    made(text, tmp_path, monkeypatch)


def test_experts_states_and_offload_are_fields_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"moments": "bf16", "moe_dispatcher": "hybridep"}
    plan = replace(PLAN, ep=4, optimizer_offload=0.5, recompute_modules=("moe_act",))
    told = made(bridge_settings(asked(plan, model=ROUTED, job=job), plan).text, tmp_path, monkeypatch)
    assert told["model.moe_flex_dispatcher_backend"] == "hybridep"
    assert told["model.recompute_modules"] == ["moe_act"]
    assert told["optimizer.optimizer_offload_fraction"] == 0.5
    assert str(told["optimizer.exp_avg_dtype"]) == "torch.bfloat16"
    layers = replace(PLAN, offloaded_layers=2)
    told = made(bridge_settings(asked(layers), layers).text, tmp_path, monkeypatch)
    assert (told["model.cpu_offloading"], told["model.cpu_offloading_num_layers"]) == (True, 2)
    parts = replace(PLAN, ep=4, offload_modules=("moe_act", "expert_fc1"))
    told = made(bridge_settings(asked(parts, model=ROUTED), parts).text, tmp_path, monkeypatch)
    assert told["model.fine_grained_activation_offloading"] is True
    assert told["model.offload_modules"] == ["expert_fc1", "moe_act"]
    graphs = {"cuda_graphs": frozenset({"attn", "moe_router"})}
    told = made(bridge_settings(asked(PLAN, model=ROUTED, job=graphs), PLAN).text, tmp_path, monkeypatch)
    assert told["model.cuda_graph_impl"] == "transformer_engine"
    assert told["model.cuda_graph_modules"] == ["attn", "moe_router"]


def test_the_model_is_a_provider_without_what_its_family_has_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """models/deepseek/deepseek_v3_bridge.py: overlapped shared experts, an fp32 router, prediction blocks."""
    text = bridge_settings(asked(PLAN), PLAN).text
    assert "AutoBridge.from_hf_pretrained(hf_model).to_megatron_provider(load_weights=False)" in text
    assert "get_model_config" not in text
    told = made(text, tmp_path, monkeypatch)
    assert told["model.moe_shared_expert_overlap"] is False
    assert told["model.moe_router_dtype"] is told["model.mtp_num_layers"] is None


def test_chunks_are_said_beside_a_layout() -> None:
    plan = replace(PLAN, dp=2, zero_size=2, pp=2, vpp=2, stage_layout="Et|tt|ttt|ttL")
    fields = bridge_fields(asked(plan), plan)
    assert fields["model.pipeline_model_parallel_layout"] == "Et|tt|ttt|ttL"
    assert fields["model.virtual_pipeline_model_parallel_size"] == 2
    assert not [name for name in bridge_fields(asked(PLAN), PLAN) if "virtual" in name]


@pytest.mark.parametrize(
    ("task", "entry", "common"),
    [
        ("pretrain", "pretrain", "_pretrain_common"),
        ("sft", "finetune", "_sft_common"),
        ("lora", "finetune", "_peft_common"),
    ],
)
def test_a_task_has_its_entry_point_and_recipe(
    task: str, entry: str, common: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = 32 * (task == "lora")
    text = bridge_settings(asked(PLAN, job={"task": task, "adapter_rank": rank}), PLAN)
    assert f"{entry}(recipe(NAME), forward_step) of megatron.bridge.training.{entry}" in text.text
    assert f"    config = {common}()" in text.text
    told = made(text.text, tmp_path, monkeypatch)
    targets = ["linear_qkv", "linear_proj"]
    assert (told.get("peft.dim", 0), told.get("peft.target_modules", targets)) == (rank, targets)
    assert any("pretrained_checkpoint" in note for note in text.notes) is (task != "pretrain")


def test_what_it_has_no_field_for_is_refused() -> None:
    for job in (
        {"adapter_rank": 8},
        {"task": "lora"},
        {"task": "lora", "adapter_rank": 8, "adapter_dropout": True},
        {"task": "lora", "adapter_rank": 8, "adapter_dtype": "fp32"},
    ):
        with pytest.raises(ExportError, match=r"adapters"):
            bridge_fields(asked(PLAN, job=job), PLAN)
    hybrid = read_config(ROOT / "configs" / "8B_nemotron_h.json").model
    with pytest.raises(ExportError, match="dense layers in a hybrid model"):
        check_bridge(*known(PLAN, model=hybrid, job={"cuda_graphs": frozenset({"mlp"})}))
    partial = {"tensor_parallel.bulk_dgrad": False, "tensor_parallel.overlap": True}
    with pytest.raises(ExportError, match="--disable-tp-comm-bulk-dgrad"):
        bridge_fields(asked(PLAN, preset=partial), PLAN)


def test_models_without_a_bridge_are_refused_by_their_type() -> None:
    for name in ("mixtral", "internlm2", ""):
        model = replace(small_model(layers=8), model_type=name)
        with pytest.raises(ExportError, match=f"models of type {name or 'no model_type'}"):
            bridge_settings(asked(PLAN, model=model), PLAN)


def test_tuning_over_parts_of_a_sequence_counts_tokens() -> None:
    plan = replace(PLAN, cp=2, zero_size=8)
    fields = bridge_fields(asked(plan, job={"task": "sft"}), plan)
    assert (fields["model.calculate_per_token_loss"], fields["ddp.average_in_collective"]) == (True, False)
    assert "model.calculate_per_token_loss" not in bridge_fields(asked(plan), plan)
    two = replace(PLAN, micro_batch=2)
    with pytest.raises(ExportError, match="2 sequences of chats"):
        bridge_fields(asked(two, job={"task": "sft"}), two)
