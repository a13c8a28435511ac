"""docs/published.md: its questions are answered as shown, numbers to within 2 %, since they move with the
physics; and each is feasible that the page does not call otherwise."""

import re
import shlex

import pytest

import simulation_train_formulaic as script
from tests.pages import ROOT, commands

ASKED = commands("published.md", fence="```console")
NUMBER = re.compile(r"[\d.,]+(\.\.[\d.,]+)?%?")


def without_numbers(line: str) -> str:
    """Of a row of an answer the plan and what is said in words."""
    words = ["#" if NUMBER.fullmatch(word.rstrip(",:;()")) else word for word in line.split()]
    return " ".join(words)


def numbers(line: str) -> list[float]:
    """Those that ``without_numbers`` leaves out, an interval's ends apart."""
    words = [word.rstrip(",:;()%") for word in line.split()]
    ends = [end for word in words if NUMBER.fullmatch(word) for end in word.replace(",", "").split("..")]
    return [float(end) for end in ends]


@pytest.mark.parametrize(("command", "shown"), ASKED, ids=[str(place) for place in range(len(ASKED))])
def test_a_published_question_is_answered_as_the_page_shows(
    command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    python, program, *words = shlex.split(command)
    assert (python, program) == ("python", "simulation_train_formulaic.py")
    status = script.main(words)
    printed = {without_numbers(line): line for line in capsys.readouterr().out.splitlines()}
    missing = [line for line in shown if without_numbers(line) not in printed]
    assert not missing
    for line in shown:
        assert numbers(line) == pytest.approx(numbers(printed[without_numbers(line)]), rel=0.02, abs=0.5), line
    infeasible = any(line.startswith("not feasible") for line in shown)
    assert status == (3 if infeasible else 0)


def test_the_page_asks_what_it_promises() -> None:
    assert len(ASKED) == 9
    assert sum("megatron-bridge" in command for command, _ in ASKED) == 6
