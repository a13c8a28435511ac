"""Recipes as rows: what is said of them to the solver, what is refused, and what is printed."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.recipe_recall import main, one_each
from benchmarks.recipes import TunedRecipe, problem_of, read_recipes, recipe_plan, settings_of
from ops.recompute import Recompute
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from spec.program.command import exit_status

ROOT = Path(__file__).parents[2]
CELLS = """
recipe=small_pretrain kind=perf task=pretrain model=llama3_8b params_total= layers=8 hidden=1024 ffn=4096 heads=8
kv_heads=8 head_dim=128 vocab=32000 seq_len=4096 gpu=h100 num_gpus=8 precision=bf16 tp=1 pp=1 vpp=1 cp=1 ep=1
micro_batch=1 global_batch=16 recompute=none fsdp=0 distributed_optimizer=1 moe_dispatcher= needs=
"""
LLAMA = dict(cell.split("=") for cell in CELLS.split())


def recipe(**cells: str) -> TunedRecipe:
    return TunedRecipe(path=Path("recipes.csv"), line=2, cells=LLAMA | cells)


def written(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "recipes.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, LLAMA)
        writer.writeheader()
        writer.writerows(LLAMA | row for row in rows)
    return path


@pytest.mark.parametrize(
    ("model", "experts", "fsdp", "router"),
    [
        ("deepseek_v3", "256", "", "fp32"),
        ("deepseek_v3", "256", "1", "none"),
        ("qwen3_next_80b", "512", "", "fp32"),
        ("qwen3_30b", "128", "", "none"),
        ("nemotron_h", "", "", "none"),
    ],
)
def test_recipes_route_as_their_models_do(model: str, experts: str, fsdp: str, router: str) -> None:
    """But for DeepSeek-V3 under FSDP."""
    said = settings_of(recipe(model=model, experts=experts, fsdp=fsdp))
    assert said["precision.router"] == router


def test_a_recipe_is_asked_in_its_own_settings() -> None:
    """MXFP8 weights are held narrow and travel in 16 bits, those of current scaling in 8; layers kept on the host and
    modules run again are the plan's; matrices of dist_muon have owners, and FSDP shards everything."""
    cluster = read_cluster("b300", root=ROOT)
    beside = {"gpu": "b300", "param_gather_low_precision": "1"}
    for word, gathered in (("fp8mx", "bf16"), ("fp8cs", "fp8"), ("nvfp4", "fp4")):
        job = problem_of(recipe(precision=word, **beside), cluster).job
        assert (job.precision.low_precision_parameters, job.precision.parameter_gather) == (True, gathered)
    wide = problem_of(recipe(precision="fp8cs", param_gather_low_precision="0", gpu="b300"), cluster).job.precision
    assert (wide.low_precision_parameters, wide.parameter_gather) == (False, "bf16")
    whole = {"precision": "fp8mx", "cuda_graph_impl": "full_iteration", "gpu": "b300"}
    for model, expected in (
        ("llama3_8b", (False, "bf16")),
        ("deepseek_v3", (True, "fp8")),
        ("qwen3_30b", (False, "fp8")),
    ):
        formats = problem_of(recipe(model=model, **whole), cluster).job.precision
        assert (formats.low_precision_head, formats.attention) == expected
    changed = recipe(fsdp="1", activation_offload="layers:5", recompute="selective:layernorm+mlp", gpu="b300")
    plan = recipe_plan(changed, problem_of(changed, cluster))
    assert (plan.preset, plan.zero_stage, plan.offloaded_layers) == ("megatron-fsdp", 3, 5)
    assert (plan.recompute, set(plan.recompute_modules)) == (Recompute.NONE, {"layernorm", "mlp"})
    parts = recipe(activation_offload="moe_act+expert_fc1", gpu="b300")
    assert recipe_plan(parts, problem_of(parts, cluster)).offload_modules == ("expert_fc1", "moe_act")
    with pytest.raises(ConfigError, match="expert_fc3"):
        recipe_plan(recipe(activation_offload="expert_fc3", gpu="b300"), problem_of(parts, cluster))
    changed = recipe(optimizer="dist_muon", distributed_optimizer="0")
    assert recipe_plan(changed, problem_of(changed, cluster)).zero_stage == 1
    assert problem_of(changed, cluster).job.optimizer == "muon"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"needs": "vlm"}, "needs = 'vlm'"),
        ({"precision": "int8"}, "precision = 'int8'"),
        ({"params_total": "8030261248"}, "params_total"),
        ({"tp": "x"}, "tp = 'x'"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(cells: dict[str, str], said: str) -> None:
    asked = recipe(**cells)
    with pytest.raises(ConfigError, match=rf"recipes\.csv:2: {said}"):
        recipe_plan(asked, problem_of(asked, read_cluster("h100-sxm", root=ROOT)))


def test_only_tuned_pretraining_on_a_gpu_with_a_sheet_counts(tmp_path: Path) -> None:
    rows = ({}, {"kind": "library"}, {"task": "sft"}, {"gpu": "r100"})
    assert [one.counts for one in read_recipes(written(tmp_path, *rows))] == [True, False, False, False]


def test_recipes_are_expressed_accepted_and_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that fits is ranked; one of too large micro-batches does not fit; one that needs more is not expressed."""
    path = written(
        tmp_path,
        {"num_gpus": "2", "global_batch": "2"},
        {"recipe": "large", "micro_batch": "64", "global_batch": "512"},
        {"recipe": "more", "needs": "diffusion"},
    )
    out = tmp_path / "out.json"
    assert main(["--recipes", str(path), "--json", str(out)]) == 0
    fitting, large, more = json.loads(out.read_text())
    assert fitting["accepted"]
    assert fitting["rank"] >= 1
    assert (fitting["rank"] == 1) == (fitting["behind_percent"] == 0.0)
    for whose, step_s in (("", fitting["step_s"]), ("winner_", None)):
        told_s = sum(fitting[f"{whose}parts_s"].values())
        assert told_s == pytest.approx(step_s or fitting["step_s"] / (1.0 + fitting["behind_percent"] / 100.0))
    assert fitting["winner_gib"] <= fitting["usable_gib"]
    assert (large["expressed"], large["accepted"], large["reason"]) == (True, False, "does not fit in memory")
    assert large["needed_gib"] > large["usable_gib"]
    assert (more["expressed"], more["rank"]) == (False, None)
    printed = capsys.readouterr().out
    assert "accepted: 1 of 3 (33%)" in printed
    assert "CPU seconds of 1 searches: " in printed


def test_one_recipe_stands_for_its_model_gpu_and_precision() -> None:
    """Of the fewest GPUs, no variant where there is one, and none that is not expressed."""
    recipes = [
        recipe(recipe="wide", num_gpus="16"),
        recipe(recipe="tuned", num_gpus="4", variant="large_scale"),
        recipe(recipe="plain"),
        recipe(recipe="narrow", precision="fp8cs"),
        recipe(recipe="more", gpu="b200", needs="vlm"),
    ]
    assert [one.name for one in one_each(recipes)] == ["plain", "narrow"]


def test_without_the_file_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipes", str(tmp_path / "none.csv")]) == 0
    assert capsys.readouterr().out.startswith("skipped: there is no ")


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    assert exit_status(lambda: main(["--recipes", str(path)])) == 2
    assert "also recipe" in capsys.readouterr().err
