"""docs/tutorial.md and docs/troubleshooting.md: the tutorial's commands run one after another in a fresh copy
of the project and print what it shows (--update-golden writes what they print now); refusals are quoted as
they are printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simulation_train_formulaic import main
from tests.architecture import ROOT, copy_project
from tests.test_questions_page import BLOCK, heads

TUTORIAL = ROOT / "docs" / "tutorial.md"
ASKED = ["--config", "configs/8B_llama3.py", "--run_all_solu"]
BATCH = ["--global_batch_size", "4194304"]


@pytest.mark.nightly
@pytest.mark.distributed
def test_the_tutorial_runs_from_its_first_command_to_its_last(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    copy_project(tmp_path)
    text = TUTORIAL.read_text(encoding="utf-8")
    python = shlex.quote(sys.executable)
    launcher = f"{python} -m torch.distributed.run"
    printed = []
    for match in BLOCK.finditer(text):
        line = match[1].replace("\\\n", " ")
        line = re.sub(r"\btorchrun ", f"{launcher} ", re.sub(r"\bpython ", f"{python} ", line))
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{match[1]}\n{ran.stderr[-2000:]}"
        assert ran.stdout.strip(), match[1]
        printed.append(re.sub(r"[ \t]+$", "", ran.stdout, flags=re.MULTILINE))
    if request.config.getoption("--update-golden"):
        for match, found in reversed(list(zip(BLOCK.finditer(text), printed, strict=True))):
            text = text[: match.start(2)] + found + text[match.end(2) :]
        TUTORIAL.write_text(text, encoding="utf-8")
        return
    for match, found in zip(BLOCK.finditer(text), printed, strict=True):
        assert heads(match[2]) <= heads(found), match[1]


@pytest.mark.parametrize(
    "typed",
    [
        [*ASKED, *BATCH, "--world_size", "12"],
        [*ASKED, "--world_size", "8", "--global_batch_size", "1000"],
        [*ASKED, *BATCH, "--world_size", "8", "--cluster", "h10"],
        [*ASKED, *BATCH, "--world_size", "8", "--framework", "megatronn"],
        [*ASKED, *BATCH, "--world_size", "8", "--precision", "fp5"],
        [*ASKED, *BATCH, "--world_size", "8", "--cluster", "a100-sxm-80g", "--precision", "fp8-current"],
        [*ASKED, *BATCH, "--world_size", "8", "--job", "dropuot=true"],
        [*ASKED[:2], *BATCH, "--world_size", "8", "--plan", "tp=8,pp=2"],
        [*ASKED, *BATCH, "--world_size", "8", "--plan", "tp=8"],
        [*ASKED, *BATCH, "--world_size", "8", "--pre_profiling_data_path", "README.md"],
        [*ASKED, *BATCH, "--world_size", "8", "--json", "no/such/folder/a.json"],
        [*ASKED, *BATCH, "--world_size", "8", "--json", "a.out", "--csv", "a.out"],
    ],
    ids=lambda typed: " ".join(typed[-2:]),
)
def test_a_refusal_is_quoted_as_it_is_printed(
    typed: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(typed) == 2
    said = capsys.readouterr().err
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [row.split("`")[1] for row in page.splitlines() if row.startswith("| `")]
    fits = [quote for quote in quoted if all(part in said for part in quote.split("..."))]
    assert len(fits) == 1, said
    assert not os.path.exists("a.out")
