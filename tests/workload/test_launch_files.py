"""Launch files: all of them or none, of the framework that the plan was priced for."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simulation_train_formulaic as script
from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.space import full_space
from solver.problem.problem import Problem
from solver.search import search
from spec.errors import ExportError
from spec.frameworks import framework_preset
from spec.model import MoeSpec
from spec.readers.read_config import read_config
from spec.settings.job import JobRequest, job_of, job_settings
from spec.units import GIB
from tests.solver.questions import ROOT, question, small_model, with_block
from tests.spec.settings.test_job import other_value
from tests.workload.settings.problems import asked, known
from workload.launch_files import EXPORTERS, check_exports, write_launch_files
from workload.settings.deepspeed import deepspeed_json
from workload.settings.frameworks import WRITTEN
from workload.settings.launch_file import PERMITS
from workload.settings.megatron import megatron_flags

PLAN = Plan(strategy="fsp", preset="megatron", tp=2, dp=2)


def test_adapters_and_images_are_no_flags_of_a_launch(tmp_path: Path) -> None:
    question = asked(PLAN)
    question = replace(question, job=replace(question.job, adapter_rank=16))
    with pytest.raises(ExportError, match="--export_megatron: adapters"):
        write_launch_files(question, PLAN, {"megatron": tmp_path / "m.txt"})
    seeing = replace(question, job=replace(question.job, adapter_rank=0, images=2, image_patches=64))
    with pytest.raises(ExportError, match="--export_megatron: images"):
        write_launch_files(seeing, PLAN, {"megatron": tmp_path / "m.txt"})
    assert not list(tmp_path.iterdir())
    write_launch_files(question, PLAN, {"trace": tmp_path / "t.json"})
    wide = replace(question.job.precision, gradient="fp32", reduce="fp32")
    question = replace(question, job=replace(question.job, precision=wide))
    write_launch_files(question, replace(PLAN, zero_stage=1, zero_size=2), {"swift": tmp_path / "s.txt"})
    assert "--lora_rank 16\n" in (tmp_path / "s.txt").read_text()


def test_nothing_is_written_when_one_is_refused(tmp_path: Path) -> None:
    long = replace(PLAN, num_micro=300_000)
    files = {"megatron": tmp_path / "m.txt", "trace": tmp_path / "t.json"}
    files["megatron"].write_text("before")
    with pytest.raises(ExportError, match="trace viewer"):
        write_launch_files(asked(long), long, files)
    assert files["megatron"].read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.txt"]
    lost = {"megatron": files["megatron"], "trace": tmp_path / "nowhere" / "t.json"}
    with pytest.raises(ExportError, match="cannot be written"):
        write_launch_files(asked(PLAN), PLAN, lost)
    assert files["megatron"].read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["m.txt"]


@pytest.mark.parametrize(
    ("framework", "config"),
    [("accelerate", "8B_llama3.py"), ("deepspeed", "8B_llama3.py"), ("torchtitan", "30B_qwen3_moe.json")],
)
def test_what_a_search_returns_is_what_its_framework_takes(framework: str, config: str) -> None:
    model, preset = read_config(ROOT / "configs" / config).model, framework_preset(framework)
    problem = question(model=model, world_size=16, sequences=32, preset=preset, memory_gib=500.0)
    result = search(problem, full_space(model, problem.job), top_k=200, relaxes=False)
    assert len(result.best) > 50
    for answer in result.best:
        EXPORTERS[framework].compose[framework](problem, answer.plan)


def test_a_plan_that_breaks_a_rule_of_its_framework_is_not_written(tmp_path: Path) -> None:
    uncut = replace(PLAN, tp=3)  # 8 heads
    with pytest.raises(ExportError, match="--export_megatron: megatron does not run this plan: heads do not"):
        write_launch_files(asked(uncut), uncut, {"megatron": tmp_path / "m.txt"})
    assert not list(tmp_path.iterdir())
    write_launch_files(asked(uncut), uncut, {"trace": tmp_path / "t.json"})


def test_a_plan_that_does_not_fit_is_written_by_force_alone_and_with_a_warning(tmp_path: Path) -> None:
    question = asked(PLAN)
    gpu = replace(question.cluster.gpu, memory_bytes=2.0 * GIB)
    small = replace(question, cluster=replace(question.cluster, gpu=gpu))
    path = tmp_path / "m.txt"
    with pytest.raises(ExportError, match=r"--export_megatron: fsp tp2 dp2 mb1x1 needs .* GiB of 2\.0: --force writes"):
        write_launch_files(small, PLAN, {"megatron": path})
    assert not path.exists()
    _, notes = write_launch_files(small, PLAN, {"megatron": path}, force=True)
    assert path.read_text().startswith("# WARNING: does not fit: needs ")
    assert "WARNING: does not fit" in notes[0]
    # Nothing is launched by a trace, and JSON has no comments.
    write_launch_files(small, PLAN, {"trace": tmp_path / "t.json"})
    write_launch_files(question, PLAN, {"megatron": path}, force=True)
    assert "WARNING" not in path.read_text()


def test_every_exporter_composes_the_plans_of_its_frameworks() -> None:
    assert {name: tuple(one.compose) for name, one in EXPORTERS.items()} == {
        name: one.frameworks for name, one in WRITTEN.items()
    }
    assert all((one.of_any is None) == bool(one.compose) for one in EXPORTERS.values())
    assert all(one.check.keys() == one.compose.keys() for one in EXPORTERS.values())


@pytest.mark.parametrize("preset", ["megatron", "zero-bubble", "internevo", "deepspeed"])
def test_a_question_that_no_plan_answers_is_refused_before_there_is_one(preset: str) -> None:
    plan = replace(PLAN, preset=preset)
    exporter = next(name for name, one in EXPORTERS.items() if preset in one.compose)
    check_exports([exporter, "trace"], *known(plan))
    odd = {"megatron": "parallel residuals", "zero-bubble": "parallel residuals", "internevo": "parallel residuals"}
    if preset in odd:
        model = with_block(small_model(layers=8), parallel_residual=True)
        with pytest.raises(ExportError, match=odd[preset]):
            check_exports([exporter], *known(plan, model=model))
    with pytest.raises(ExportError, match="products"):
        check_exports([exporter], *known(plan, job={"linear": "fp8", "scaling": "row"}))


def test_the_command_writes_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        f"--config {ROOT}/configs/tiny_internlm2.py --world_size 8 --framework megatron --plan tp=2,pp=2,strategy=fsp "
    )
    words += f"--pre_profiling_data_path {ROOT}/prof_data/data.pt --global_batch_size 65536 "
    words += f"--export_megatron {tmp_path}/m.txt --export_trace {tmp_path}/t.json"
    assert script.main(words.split()) == 0
    out, err = capsys.readouterr()
    assert f"wrote {tmp_path}/m.txt" in out
    assert f"{tmp_path}/m.txt: set CUDA_DEVICE_MAX_CONNECTIONS=1" in err
    assert "--sequence-parallel\n" in (tmp_path / "m.txt").read_text()
    assert script.main([*words.split(), "--export_internevo", f"{tmp_path}/i.py"]) == 2
    assert "--framework internevo" in capsys.readouterr().err
    assert not (tmp_path / "i.py").exists()


# Every setting of a job is in an export, refused by it, or said to be left out.

DENSE = small_model(layers=8)
ROUTED = with_block(DENSE, mlp=None, moe=MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=512))
DEALT = Plan(strategy="fsp", preset="megatron", tp=2, pp=4, dp=2, vpp=2, zero_stage=1, zero_size=2, num_micro=8)
SENT = Plan(strategy="mtp", preset="megatron", cp=2, dp=2, ep=2, zero_stage=1, zero_size=4, num_micro=4)
SHARDED = Plan(strategy="mtp", preset="deepspeed", dp=4, zero_stage=2, zero_size=4, num_micro=4)
GATHERED = Plan(strategy="isp", preset="internevo", tp=2, wp=2, dp=2, zero_stage=1, zero_size=2, num_micro=4)
CASES: dict[tuple[str, str], list[Plan]] = {
    ("megatron", "megatron"): [DEALT, SENT],
    ("megatron", "zero-bubble"): [replace(DEALT, preset="zero-bubble"), replace(SENT, preset="zero-bubble")],
    ("deepspeed", "deepspeed"): [SHARDED],
    ("internevo", "internevo"): [GATHERED, replace(SENT, preset="internevo", cp=1, ep=1, zero_size=2)],
}


@cache
def questions(framework: str, plan: Plan, keys: tuple[str, ...]) -> list[Problem]:
    """The plan on both models, with every switch but ``keys`` as the framework has it."""
    found = []
    for model in (DENSE, ROUTED):
        question = asked(plan, model=model)
        job = question.job
        settings = {key: other_value(key, framework) for key in keys}
        sizes = {name: getattr(job, name) for name in ("world_size", "seq_len", "global_batch_tokens")}
        found.append(replace(question, job=job_of(JobRequest(**sizes, framework=framework, settings=settings))))
    return found


def exports(exporter: str, framework: str, *keys: str) -> list[str]:
    texts = []
    for plan in CASES[exporter, framework]:
        for each in questions(framework, plan, keys):
            try:
                texts.append(EXPORTERS[exporter].compose[framework](each, plan).text)
            except ExportError as error:
                texts.append(str(error))
    return texts


@pytest.mark.parametrize(("exporter", "framework"), CASES)
def test_no_setting_of_a_job_is_passed_over_in_silence(exporter: str, framework: str) -> None:
    own = exports(exporter, framework)
    assert any("has no setting" not in text for text in own)
    silent = [
        key for key in job_settings() if key not in PERMITS | CARRIED and exports(exporter, framework, key) == own
    ]
    assert silent == []


OVERLAPS = tuple(
    f"tensor_parallel.{name}"
    for name in ("overlap_ag", "overlap_rs", "overlap_rs_dgrad", "overlap_rs_method", "bulk_dgrad", "bulk_wgrad")
)


# Adapters are refused before there is an exporter (workload.launch_files.check_exports), scales and
# parameters held narrow act with narrow products, kinds of overlap where there is any, and of two settings of
# a bucket's size the larger.
CARRIED = frozenset(OVERLAPS) | frozenset(
    str.split(
        "adapter_rank adapted adapter_dropout adapter_dtype adapter_code precision.scale_recipe precision.scaling "
        "precision.low_precision_parameters data_parallel.bucket_elements_per_rank"
    )
)


@pytest.mark.parametrize("key", sorted(PERMITS))
def test_what_only_permits_plans_leaves_an_export_as_it_is(key: str) -> None:
    assert exports("megatron", "megatron", key) == exports("megatron", "megatron")


# Offloading as launch settings: each framework's own words, and a refusal where it has none.


def offloading(preset: str, stage: int = 1, **changes: float) -> tuple[Problem, Plan]:
    plan = Plan(strategy="mtp", preset=preset, dp=8, zero_stage=stage, zero_size=8, num_micro=2, **changes)
    return asked(plan), plan


def test_megatrons_flags() -> None:
    flags = megatron_flags(*offloading("megatron", optimizer_offload=0.25, offloaded_layers=3))
    assert flags["--optimizer-offload-fraction"] == "0.25"
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer"} <= flags.keys()
    assert flags["--cpu-offloading-num-layers"] == 3
    assert not [flag for flag in megatron_flags(*offloading("megatron")) if "offload" in flag]


def test_deepspeeds_section() -> None:
    whole = deepspeed_json(*offloading("deepspeed", 2, optimizer_offload=1.0))
    part = deepspeed_json(*offloading("deepspeed", 3, optimizer_offload=0.5))
    none = deepspeed_json(*offloading("deepspeed", 2))
    cpu = {"device": "cpu", "pin_memory": True}
    assert whole["zero_optimization"]["offload_optimizer"] == cpu  # type: ignore[index]
    assert part["zero_optimization"]["offload_optimizer"] == {**cpu, "ratio": 0.5}  # type: ignore[index]
    assert "offload_optimizer" not in none["zero_optimization"]  # type: ignore[operator]


# What a search finds beyond degrees (layers dealt anew, parts or layers run again, layers on the host) in
# every framework's settings: said, or refused in a line that names it; never left out.

STAGED: dict[str, Any] = {"pp": 2, "num_micro": 4, "stage_layout": "Et*14|t*18L"}
FORMS: dict[str, dict[str, Any]] = {
    "layout": STAGED,
    "chunks": {**STAGED, "vpp": 2, "stage_layout": "Et*7|t*8|t*9|t*8L"},
    "modules": {**STAGED, "recompute_modules": ("mlp",)},
    "layers": {**STAGED, "recompute": Recompute.BLOCK, "num_recompute_layers": 3},
    "alone": {"recompute": Recompute.BLOCK, "num_recompute_layers": 8},
    "host": {"offloaded_layers": 3},
}
LAYOUT, PARTS = "pipeline-model-parallel-layout Et*14|t*18L", "recompute-modules mlp"
SOME = ("recompute-granularity full", "recompute-method block", "recompute-num-layers 3")
MEGATRON = {
    "layout": (LAYOUT,),
    "chunks": ("pipeline-model-parallel-layout Et*7|t*8|t*9|t*8L",),
    "modules": (LAYOUT, "recompute-granularity selective", PARTS),
    "layers": (LAYOUT, *SOME),
    "alone": ("recompute-num-layers 8",),
}
SAID: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": {**MEGATRON, "host": ("cpu-offloading-num-layers 3",)},
    "swift": MEGATRON,
    # Modules by name: 14 layers on the first stage, 7 on its first chunk.
    "torchtitan": {"layout": ("'layers.13'], ['layers.14'",), "chunks": ("'layers.6'], ['layers.7'",)},
    # A share of all layers: 8 of 32.
    "internevo": {"alone": ("'checkpoint': 0.25,",)},
}
NAMES = {
    "layout": "layout|pipeline stages",
    "chunks": "layout|vpp|virtual|pipeline stages",
    "modules": "recompute (these )?modules|layout",
    "layers": "recomput|layout|pipeline stages",
    "alone": "recomput|activation",
    "host": "host|offload",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exporter", [name for name in EXPORTERS if WRITTEN[name].frameworks])
def test_what_is_found_is_written_or_refused_by_name(exporter: str, form: str, tmp_path: Path) -> None:
    preset = WRITTEN[exporter].frameworks[0]
    plan = Plan(strategy="mtp", preset=preset, **FORMS[form])
    question = asked(plan, model=read_config(ROOT / "configs" / "8B_llama3.py").model)
    path = tmp_path / "settings"
    words = SAID.get(exporter, {}).get(form)
    if words is None and exporter != "bridge":
        with pytest.raises(ExportError, match=NAMES[form]):
            write_launch_files(question, plan, {exporter: path})
        assert not path.exists()
        return
    # Without parallelism it fits nowhere.
    write_launch_files(question, plan, {exporter: path}, force=True)
    text = path.read_text()
    settled = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    if exporter == "bridge":
        assert FIELDS[form] <= {line.split("=")[0].strip().rpartition(".")[2] for line in settled.splitlines()}
        return
    for word in words or ():
        assert word.replace("-", "_") in settled.replace("-", "_")


FIELDS = {
    "layout": {"pipeline_model_parallel_layout"},
    "chunks": {"pipeline_model_parallel_layout"},
    "modules": {"pipeline_model_parallel_layout", "recompute_modules", "recompute_granularity"},
    "layers": {"pipeline_model_parallel_layout", "recompute_num_layers", "recompute_method"},
    "alone": {"recompute_num_layers", "recompute_method"},
    "host": {"cpu_offloading_num_layers"},
}
