"""skills/plan-training: twelve questions, each with a command that runs and prints what the page says to look for."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "skills" / "plan-training" / "SKILL.md"
SECTION = re.compile(r"^## (\d+)\. (.*?)\n\n    pss (.*?)\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = SECTION.findall(PAGE.read_text(encoding="utf-8"))
# Statuses other than 0, which the page tells.
STATUS = {"8": 2}


def test_the_page_can_be_read_as_a_skill() -> None:
    head = PAGE.read_text(encoding="utf-8").split("---\n")[1]
    said = dict(line.split(": ", 1) for line in head.splitlines())
    assert said["name"] == PAGE.parent.name
    assert 100 < len(said["description"]) < 1024


def test_twelve_questions_have_a_command_each() -> None:
    assert [int(number) for number, *_ in SECTIONS] == list(range(1, 13))
    assert all(title.endswith("?") for _, title, *_ in SECTIONS)


def looked_for(text: str) -> list[str]:
    """What the page says will be printed: words in backticks that are no option, command or file."""
    found = re.findall(r"`([^`]+)`", text)
    return [word for word in found if not re.match(r"-|pss |not feasible|fsp|mtp|cp$", word)]


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "command", "text"), [(n, c, t) for n, _, c, t in SECTIONS])
def test_a_command_answers_its_question(number: str, command: str, text: str, tmp_path: Path) -> None:
    """A file that it writes goes to a folder of its own."""
    words = [
        str(tmp_path / word) if word.endswith(".txt") else word
        for word in shlex.split(command.replace("configs/", f"{ROOT}/configs/"))
    ]
    ran = subprocess.run([sys.executable, "-m", "pss", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == STATUS.get(number, 0), ran.stderr[-1000:]
    assert "Traceback" not in ran.stderr
    said = ran.stdout + ran.stderr
    assert [word for word in looked_for(text) if word not in said] == []
    assert all((tmp_path / Path(word).name).stat().st_size for word in words if word.endswith(".txt"))
