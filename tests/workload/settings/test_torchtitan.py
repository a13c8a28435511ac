"""A plan as torchtitan's configuration: the model found by its shapes, degrees, tokens, stages by name, and
refusals.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from spec.errors import ExportError
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT
from tests.workload.settings.accepted.lists import check_fields
from tests.workload.settings.made_module import Call, functions_of
from tests.workload.settings.problems import asked, known
from workload.settings.torchtitan import (
    FLAVORS,
    check_torchtitan,
    differences,
    flavor_of,
    parallelism,
    torchtitan_settings,
    training,
)

LLAMA = read_config(ROOT / "configs" / "8B_llama3.py").model
PLAN = Plan(strategy="fsp", preset="torchtitan", tp=2, dp=8, zero_stage=3, zero_size=8, micro_batch=2, num_micro=4)


def made(plan: Plan, folder: Path, patch: pytest.MonkeyPatch, model: ModelSpec = LLAMA, **changes: Any) -> Call:
    """The configuration that the exported module makes, its fields among those that torchtitan has."""
    text = torchtitan_settings(asked(plan, model=model, **changes), plan).text
    config = functions_of(text, folder, patch)["plan"]()  # type: ignore[operator]
    assert isinstance(config, Call)
    for part in ("training", "parallelism", "compile"):
        call = config.parts[part]
        check_fields("torchtitan", {f"{call.called}.{key}": value for key, value in call.given.items()})
    return config


@pytest.mark.parametrize(
    ("config", "flavor"),
    [
        ("8B_llama3.py", ("llama3", "8B")),
        ("70B_llama3.py", ("llama3", "70B")),
        ("405B_llama3.py", ("llama3", "405B")),
        ("16B_deepseek_v2_lite.toml", ("deepseek_v3", "16B")),
        ("236B_deepseek_v2.toml", ("deepseek_v3", "236B")),
        ("671B_deepseek_v3.toml", ("deepseek_v3", "671B")),
        ("32B_qwen3.json", ("qwen3", "32B")),
        ("20B_gpt_oss.json", ("gpt_oss", "20b")),
        ("120B_gpt_oss.json", ("gpt_oss", "120b")),
    ],
)
def test_models_are_found_by_their_shapes(config: str, flavor: tuple[str, str]) -> None:
    """Counted by torchtitan on the meta device, and by us from the config."""
    found = flavor_of(read_config(ROOT / "configs" / config).model)
    assert found is not None
    assert (found.module, found.name) == flavor
    assert not differences(read_config(ROOT / "configs" / config).model, found)


def test_a_model_that_it_lacks_is_refused_by_its_list() -> None:
    model = replace(LLAMA, vocab=LLAMA.vocab + 1)
    with pytest.raises(ExportError, match=r"a model of these shapes \(it has llama3 1B, .*; gpt_oss 20b, 120b\)"):
        check_torchtitan(*known(PLAN, model=model))
    assert len({(one.layers, one.hidden, one.parameters) for one in FLAVORS}) == len(FLAVORS)


def test_the_module_makes_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(PLAN, tmp_path, monkeypatch)
    assert config.called == "llama3_8b"
    spec = config.parts["model_spec"]
    assert (spec.called, spec.words, spec.given) == ("model_registry", ("8B",), {"attn_backend": "varlen"})
    assert config.parts["loss"].called == "ChunkedLossWrapper.Config"
    assert config.parts["activation_checkpoint"] is None
    assert config.parts["compile"].given["components"] == ["model", "loss"]
    tokens = config.parts["training"].given
    seq_len = asked(PLAN).job.seq_len
    assert tokens["num_tokens_per_microbatch_per_dp_rank"] == 2 * seq_len
    assert tokens["num_tokens_per_train_step"] == 2 * 4 * 8 * seq_len
    assert (tokens["dtype"], tokens["mixed_precision_reduce"]) == ("float32", "float32")
    degrees = config.parts["parallelism"].given
    assert degrees == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 8,
        "fsdp_reshard_after_forward": "default",
        "tensor_parallel_degree": 2,
        "enable_sequence_parallel": True,
    }


def test_recomputation_is_an_object_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, called in ((Recompute.FULL, "FullAC.Config"), (Recompute.SELECTIVE, "SelectiveAC.Config")):
        config = made(replace(PLAN, recompute=kind), tmp_path, monkeypatch)
        assert config.parts["activation_checkpoint"].called == called


def test_narrow_products_are_a_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"linear": "fp8", "scale_recipe": "row", "scaling": "row"}
    given = made(PLAN, tmp_path, monkeypatch, job=rows).parts["model_spec"].given
    (converter,) = given["converters"]
    assert (converter.called, converter.given["filter_fqns"]) == ("Float8LinearConverter.Config", ["lm_head"])
    micro = {"linear": "fp8", "scale_recipe": "mx", "scaling": "block"}
    given = made(PLAN, tmp_path, monkeypatch, job=micro).parts["model_spec"].given
    assert given["converters"][0].called == "MXFP8LinearConverter.Config"


def test_replicas_of_shards_and_sequences_cut() -> None:
    """distributed/parallel_dims.py: dp_replicate x dp_shard x cp x tp x pp is the world."""
    plan = replace(PLAN, cp=2, zero_size=4)
    values = parallelism(asked(plan, model=LLAMA, job={"context_parallel": "all_gather"}), plan)
    names = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "context_parallel_degree")
    assert [values[name] for name in names] == [4, 2, 2]
    with pytest.raises(ExportError, match="context parallelism by ring"):
        parallelism(asked(plan, model=LLAMA), plan)
    whole = replace(PLAN, zero_stage=0, zero_size=1)
    values = parallelism(asked(whole, model=LLAMA), whole)
    assert [values[name] for name in names[:2]] == [8, 1]
    shallow = replace(PLAN, zero_stage=2)
    assert parallelism(asked(shallow, model=LLAMA), shallow)["fsdp_reshard_after_forward"] == "never"


def test_stages_hold_modules_by_name() -> None:
    """Cut as they are priced: 32 layers on three stages are 11, 11, 10."""
    plan = replace(PLAN, pp=3, num_micro=6)
    values = parallelism(asked(plan, model=LLAMA), plan)
    parts = values["module_fqns_per_model_part"]
    assert isinstance(parts, list)
    assert [len(part) for part in parts] == [12, 11, 12]
    assert parts[0][:2] == ["tok_embeddings", "layers.0"]
    assert parts[2] == [*(f"layers.{index}" for index in range(22, 32)), "norm", "lm_head"]
    assert (values["pipeline_parallel_schedule"], values["num_pp_microbatches"]) == ("1F1B", 6)
    chunks = replace(PLAN, pp=2, vpp=2)
    values = parallelism(asked(chunks, model=LLAMA), chunks)
    assert values["pipeline_parallel_schedule"] == "Interleaved1F1B"
    in_a_v = replace(chunks, schedule=Schedule.ZB_V)
    assert parallelism(asked(in_a_v, model=LLAMA), in_a_v)["pipeline_parallel_schedule"] == "ZBVZeroBubble"
    with pytest.raises(ExportError, match="schedule gpipe of 2 chunks"):
        parallelism(asked(chunks, model=LLAMA), replace(chunks, schedule=Schedule.GPIPE))
    laid = replace(PLAN, pp=2, stage_layout="Et*20|t*12L")
    parts = parallelism(asked(laid, model=LLAMA), laid)["module_fqns_per_model_part"]
    assert isinstance(parts, list)
    assert parts[1][0] == "layers.20"
    with pytest.raises(ExportError, match="tied embeddings beside pipeline"):
        parallelism(asked(plan, model=replace(LLAMA, tied_embeddings=True)), plan)


def test_graphs_are_of_a_whole_step() -> None:
    graphed = {"cuda_graphs": frozenset({"full_iteration"})}
    assert training(asked(PLAN, job=graphed), PLAN)["disable_cuda_graphs"] is False
    assert training(asked(PLAN), PLAN)["disable_cuda_graphs"] is True
    with pytest.raises(ExportError, match="beside pipeline stages"):
        training(asked(replace(PLAN, pp=2), job=graphed), replace(PLAN, pp=2))
