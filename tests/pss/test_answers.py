"""Answers read back from their files."""

import json
from pathlib import Path

import pytest

from pss.answers import read_answer
from pss.command import main
from tests.test_main_command import asked

PLANS = (
    "tp=4,zero_stage=1,recompute=full,recompute_layers=2,micro_batch=1",
    "tp=8,pp=2,layout=Et*16|t*16L,micro_batch=1",
)


def test_answers_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that recomputes some layers and one with a layout; the difference of their questions is named."""
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, plan, world_size in zip(files, PLANS, (16, 32), strict=True):
        main(["price", plan, *asked(world_size), "--framework", "megatron", "--json", str(file)])
    labels = [read_answer(file)[1].plan.label() for file in files]
    assert labels[0].endswith("recompute-block2")
    assert labels[1].endswith("layout=Et*16|t*16L")
    ratio = read_answer(files[1])[1].step_s / read_answer(files[0])[1].step_s
    capsys.readouterr()
    assert main(["compare", *map(str, files)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["world_size", "16", "|", "32"] in lines
    assert ["against", "a.json", "+0.0", "%", f"{100 * (ratio - 1):+.1f}", "%"] in lines
    assert not any(line[:1] == ["cluster"] for line in lines)


@pytest.mark.parametrize(
    ("key", "value"), [("step_s", "fast"), ("memory_bytes", {}), ("mean_parts_s", {}), ("plan", {}), ("slowest", 3)]
)
def test_an_answer_with_a_wrong_figure_is_refused_by_name(
    key: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    main(["price", "tp=2", *asked(16), "--json", str(file)])
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"plan": whole["plan"] | {key: value}}))
    capsys.readouterr()
    assert main(["compare", str(file), str(file)]) == 2
    assert f"{file}: not what --json wrote" in capsys.readouterr().err


def test_a_search_gives_its_best_plan(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    assert main(["search", *asked(16), "--fix", "tp=2,pp=1,micro_batch=1", "--json", str(file)]) == 0
    question, answer = read_answer(file)
    assert (question["world_size"], answer.plan.tp, answer.plan.world_size) == (16, 2, 16)
