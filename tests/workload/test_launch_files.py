"""Launch files: all of them or none, of the framework that the plan was priced for."""

from dataclasses import replace
from pathlib import Path

import pytest

import simulation_train_formulaic as script
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from tests.solver.questions import small_model
from tests.workload.generating import ROOT
from tests.workload.settings.asking import asked, known, with_block
from workload.launch_files import (
    EXPORTERS,
    check_exports,
    write_launch_files,
)
from workload.settings.frameworks import WRITTEN

PLAN = Plan(strategy="fsp", preset="megatron", tp=2, dp=2)


def test_files_are_written_and_their_notes_returned(tmp_path: Path) -> None:
    files = {"megatron": tmp_path / "m.txt", "trace": tmp_path / "t.json"}
    written, notes = write_launch_files(asked(PLAN), PLAN, files)
    assert written == list(files.values())
    assert "--sequence-parallel\n" in files["megatron"].read_text()
    assert notes == [f"{files['megatron']}: set CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell"]


def test_adapters_are_no_flags_of_a_launch(tmp_path: Path) -> None:
    question = asked(PLAN)
    question = replace(question, job=replace(question.job, adapter_rank=16))
    with pytest.raises(ExportError, match="--export_megatron: adapters"):
        write_launch_files(question, PLAN, {"megatron": tmp_path / "m.txt"})
    assert not list(tmp_path.iterdir())
    write_launch_files(question, PLAN, {"trace": tmp_path / "t.json"})
    wide = replace(question.job.precision, gradient="fp32", reduce="fp32")
    question = replace(question, job=replace(question.job, precision=wide))
    write_launch_files(question, replace(PLAN, zero_stage=1, zero_size=2), {"swift": tmp_path / "s.txt"})
    assert "--lora_rank 16\n" in (tmp_path / "s.txt").read_text()


@pytest.mark.parametrize("preset", ["deepspeed", "internevo"])
def test_muon_is_megatrons(tmp_path: Path, preset: str) -> None:
    plan = Plan(strategy="mtp", preset=preset)
    question = asked(plan)
    question = replace(question, job=replace(question.job, optimizer="muon"))
    with pytest.raises(ExportError, match=r"optimizer|Muon"):
        write_launch_files(question, plan, {preset: tmp_path / "settings"})


@pytest.mark.parametrize("preset", ["megatron", "deepspeed", "internevo"])
def test_the_allocators_setting_is_the_environments(tmp_path: Path, preset: str) -> None:
    plan = Plan(strategy="mtp", preset=preset)
    question = asked(plan)
    question = replace(question, job=replace(question.job, expandable_segments=True))
    path = tmp_path / "settings"
    _, notes = write_launch_files(question, plan, {preset: path})
    assert any("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in note for note in notes)
    assert "expandable_segments:True" in path.read_text()


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


def test_a_plan_that_breaks_a_rule_of_its_framework_is_not_written(tmp_path: Path) -> None:
    uncut = replace(PLAN, tp=3)  # 8 heads
    with pytest.raises(ExportError, match="--export_megatron: megatron does not run this plan: heads do not"):
        write_launch_files(asked(uncut), uncut, {"megatron": tmp_path / "m.txt"})
    assert not list(tmp_path.iterdir())
    write_launch_files(asked(uncut), uncut, {"trace": tmp_path / "t.json"})


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
    odd = {
        "megatron": "parallel residuals",
        "zero-bubble": "parallel residuals",
        "internevo": "parallel residuals",
    }
    if preset in odd:
        model = with_block(small_model(layers=8), parallel_residual=True)
        with pytest.raises(ExportError, match=odd[preset]):
            check_exports([exporter], *known(plan, model=model))
    with pytest.raises(ExportError, match="products"):
        check_exports([exporter], *known(plan, job={"linear": "fp4"}))


def test_the_command_writes_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--config {ROOT}/configs/tiny_internlm2.py --world_size 8 --framework megatron --plan tp=2,pp=2,strategy=fsp "
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
