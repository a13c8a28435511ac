"""benchmarks/same_predictions.py: numbers by tolerance, words and rows exactly."""

from pathlib import Path

import pytest

from benchmarks.same_predictions import main

HEAD = "dataset,row_id,pred_step_s,plan\n"
ROW = "a,1,2.0,mtp dp8\n"


def compared(folder: Path, before: str, after: str) -> int:
    (folder / "before.csv").write_text(HEAD + before)
    (folder / "after.csv").write_text(HEAD + after)
    return main([str(folder / "before.csv"), str(folder / "after.csv")])


@pytest.mark.parametrize("after", [ROW, "a,1,2.000000001,mtp dp8\n", "a,1,2,mtp dp8\n"])
def test_rounding_is_the_same(after: str, tmp_path: Path) -> None:
    assert compared(tmp_path, ROW, after) == 0


@pytest.mark.parametrize(
    "after",
    [
        "a,1,2.00000001,mtp dp8\n",
        "a,1,2.0,mtp dp4\n",
        "a,1,,mtp dp8\n",
        "a,2,2.0,mtp dp8\n",
        ROW + "b,1,1,x\n",
        "",
    ],
)
def test_anything_else_is_not(after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, ROW, after) == 1
    assert "NOT the same" in capsys.readouterr().out


def test_a_row_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="twice"):
        compared(tmp_path, ROW + ROW, ROW)
