"""docs/questions.md: every command answers, in the lines that the page shows. Times and the plans that win
move with the physics: --update-golden writes what is printed now into the page."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.solver.questions import ROOT

PAGE = ROOT / "docs" / "questions.md"
BLOCK = re.compile(r"^```\n\$ ((?:.*\\\n)*.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def printed(command: str) -> str:
    """What a shell prints of a command of the page."""
    line = re.sub(r"\bpython ", f"{shlex.quote(sys.executable)} ", command.replace("\\\n", " "))
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not ran.stderr, f"{command}\n{ran.stderr}"
    return ran.stdout


def heads(text: str) -> set[str]:
    """The first word of every line, but for those with figures (plans, degrees, numbers of GPUs) and rules,
    as long as figures make a table wide."""
    words = {line.split()[0] for line in text.splitlines() if line.strip("- ")}
    return {word for word in words if not re.search(r"\d", word)} - {"mtp", "fsp", "msp", "isp", "ulysses"}


COMMANDS = [match[1] for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


@pytest.mark.nightly
@pytest.mark.parametrize("at", range(len(COMMANDS)))
def test_a_command_prints_what_the_page_shows(at: int, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = list(BLOCK.finditer(text))[at]
    found = printed(match[1])
    assert found.strip(), match[1]
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text[: match.start(2)] + found + text[match.end(2) :], encoding="utf-8")
        return
    assert heads(match[2]) <= heads(found), match[1]


def test_every_question_is_asked() -> None:
    assert all(command.startswith("python simulation_train_formulaic.py ") for command in COMMANDS)
    assert len(COMMANDS) == PAGE.read_text(encoding="utf-8").count("\n$ ")
