"""Mocked models run the operations of the op list, and the example of the docs generates, is priced, exported."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given

from spec.frameworks import framework_preset
from spec.parameters import num_parameters
from tests.solver.questions import question
from tests.workload.generator import ROOT, made
from tests.workload.random_plans import Case, cases
from workload.custom_model import MockedModel, MockedTransformer, Workshop
from workload.simai.check import check_simai
from workload.simai.reader import read_simai
from workload.stage_work import StageWork, WorkItem, stage_works


def summed(work: StageWork) -> Counter[tuple[str, str, str]]:
    """Seconds and bytes by phase, kind and axis; rounded so that orders of addition do not matter."""
    total: Counter[tuple[str, str, str]] = Counter()
    for times, item in work.per_step():
        key = (item.phase.value, str(item.collective), str(item.axis))
        total[key] += times * round(item.seconds * 1e15)
        total[(*key[:2], "bytes")] += times * item.total_bytes
    return Counter({key: value for key, value in total.items() if value})


@given(case=cases())
def test_a_mocked_transformer_is_the_models_op_list(case: Case) -> None:
    assume(case.plan.pp == 1)
    work = Workshop(problem=case.problem, plan=case.plan).stage(
        MockedTransformer(Workshop(problem=case.problem, plan=case.plan))
    )
    (expected,) = stage_works(case.problem, case.plan)
    found, wanted = summed(work), summed(expected)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("config", ["7B_llama2.py", "8x7B_mixtral.py", "671B_deepseek_v3.toml"])
def test_parameters_of_one_rank_are_the_models(config: str) -> None:
    result = made(f"--config {ROOT}/configs/{config} --world_size 1 --use_flash_attn")
    model = MockedTransformer(Workshop(problem=result.problem, plan=result.plan))
    count = num_parameters(result.problem.model)
    # Vocabulary padding comes on top; router correction biases (of extra prediction blocks too) are no weights.
    padding = 2 * 128 * result.problem.model.hidden
    biases = sum(
        run.count * run.block.moe.num_experts
        for run in result.problem.model.blocks
        if run.block.moe is not None and run.block.moe.router_bias
    )
    held = sum(each.elements for each in model.parameters())
    assert 0 <= held - (count.total + count.mtp - biases) <= padding


def test_children_run_forward_and_backward_in_opposite_order() -> None:
    asked = question(world_size=1, sequences=4, preset=framework_preset("megatron"))
    result = made("--model_size 7 --world_size 1 --use_flash_attn")
    shop = Workshop(problem=asked, plan=result.plan)

    class Two(MockedModel):
        def __init__(self) -> None:
            self.parts = [shop.norm("first"), shop.norm("second")]

    class Turned(Two):
        def forward(self) -> tuple[WorkItem, ...]:
            return super().forward()[::-1]

    assert [item.name for item in Two().forward()] == ["first", "second"]
    assert [item.name for item in Two().backward()] == ["second", "first"]
    (piece,) = shop.stage(Turned()).pieces
    assert [item.name for item in piece.forward] == ["second", "first"]


def test_the_example_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "adding.md").read_text()
    example = re.search(r"```python\n((?:(?!```).)*?class TwinLayer.*?)```", text, flags=re.DOTALL)
    assert example is not None
    for name in ("configs", "prof_data"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    exec(compile(example[1], "docs/adding.md", "exec"), {})  # noqa: S102
    assert re.fullmatch(r"1,943,113,728 parameters a rank, \d+ rows, \d+\.\d ms\n", capsys.readouterr().out)
    assert check_simai(read_simai(tmp_path / "twin.txt")) == []
