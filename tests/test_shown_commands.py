"""Commands that README.md, docs/ and the other pages show: their flags exist, and what names all that it needs runs.

docs/workloads.md, docs/adding.md, docs/published.md, docs/questions.md, docs/tutorial.md and the skill have
tests of their own, which look at what is printed as well; what AGENTS.md shows changes files.
"""

import importlib
import inspect
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from profdb.cases import GemmCase
from profdb.sample import Sample
from profiler.journal import Journal
from tests.architecture import ROOT, copy_project
from tests.fuzz.measured_seeds import STEPS

PAGES = (
    "README.md",
    "AGENTS.md",
    "prof_data/README.md",
    "skills/plan-training/SKILL.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
RECIPES = "docs/adding.md"  # adds programs' flags first
TESTED_APART = (
    *("docs/workloads.md", RECIPES, "docs/published.md", "docs/questions.md", "docs/tutorial.md"),
    *("AGENTS.md", "skills/plan-training/SKILL.md"),
)

# In a block of its own, behind $ or not; or in a sentence, in backticks.
BLOCK = re.compile(r"^(?: {4}|\$ |)(?:\.venv/bin/)?((?:python|torchrun|srun|pss) .*)$", re.MULTILINE)
SENTENCE = re.compile(r"`((?:python|torchrun|srun|pss) [^`]*)`")
# A word that stands for one of the reader's: FILE, A, $DATA/x, <name>, ...
STANDS_FOR = re.compile(r"(?:\$?[A-Z]+(?:\W.*)?|<.*>|\.\.\.)")
SCRIPT = re.compile(r"(?:\w+/)*\w+\.py")
# What a page shows as a mistake.
WRONG_ON_PURPOSE = frozenset({"-model_size"})


def shown(page: str, pattern: re.Pattern[str]) -> list[str]:
    """Commands of a page, each on one line and without what a shell does around it."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / page).read_text(encoding="utf-8"))
    alone = [re.sub(r"\s+(?:#|->|2?>|\||&&).*", "", found) for found in pattern.findall(text)]
    return [re.sub(r"^pss ", "python -m pss ", found) for found in alone]


def of_ours(command: str) -> list[str]:
    """The words from our script or module on; none where it is no program of ours."""
    words = re.sub(r"[][\"']", " ", command).split()
    for place, word in enumerate(words):
        if SCRIPT.fullmatch(word) and not word.startswith("tests/") and (ROOT / word).is_file():
            return words[place:]
        if word == "-m" and (ROOT / words[place + 1].replace(".", "/")).is_dir():
            return words[place:]
    return []


def everything() -> Iterator[tuple[str, str]]:
    """Page and command, of every page."""
    for page in PAGES:
        for command in (*shown(page, BLOCK), *shown(page, SENTENCE)):
            yield page, command


def flags(module: str, verb: tuple[str, ...]) -> frozenset[str]:
    """What ``--help`` of a program or its verb lists."""
    main = importlib.import_module(module).main
    words = [*verb, "--help"]
    with redirect_stdout(io.StringIO()) as said, suppress(SystemExit), patch.object(sys, "argv", [module, *words]):
        main(words) if inspect.signature(main).parameters else main()
    return frozenset(re.findall(r"(?<!\w)--?[a-zA-Z][\w-]*", said.getvalue()))


def asked(words: list[str]) -> tuple[str, tuple[str, ...], set[str]]:
    """The module, its verb and the flags of a command."""
    is_module = words[0] == "-m"
    module = f"{words[1]}.__main__" if is_module else words[0].removesuffix(".py").replace("/", ".")
    rest = words[1 + is_module :]
    # what a launch starts has flags of its own
    rest = rest[: rest.index("--")] if "--" in rest else rest
    depth = 2 if words[:3] == ["-m", "pss", "workload"] else 1
    verb = tuple(rest[:depth]) if rest and re.fullmatch(r"[a-z][a-z-]+", rest[0]) else ()
    typed = {word.split("=")[0] for word in rest if re.fullmatch(r"--?[a-zA-Z][\w-]*(?:=.*)?", word)}
    return module, verb, typed


def test_every_flag_shown_is_one() -> None:
    known: dict[tuple[str, tuple[str, ...]], frozenset[str]] = {}
    wrong = []
    for page, command in everything():
        words = of_ours(command)
        if words and page != RECIPES:
            module, verb, typed = asked(words)
            if (module, verb) not in known:
                known[module, verb] = flags(module, verb) | WRONG_ON_PURPOSE | {"--help"}
            wrong += [f"{page}: {command}: {flag}" for flag in typed - known[module, verb]]
    assert not wrong, "\n".join(wrong)


def test_commands_are_found() -> None:
    found = [" ".join(of_ours(command)) for _, command in everything()]
    for expected in ("gen_profiler_data.py --device cpu", "-m profdb merge A B --into C", "run_workload.py --help"):
        assert expected in found
    assert len(found) > 100


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project in which a command may write, with steps and a journal as somebody measured them."""
    folder = tmp_path / "tree"
    copy_project(folder)
    (folder / "steps.csv").write_bytes(STEPS)
    (folder / "iplist").write_text("node-1\nnode-2\n")
    journal = Journal.open(folder / "data.pt.journal", "Chip")
    journal.append(Sample(case=GemmCase(m=64, k=64, n=64), trials_s=(1e-5, 2e-5)))
    journal.close()
    return folder


def can_run(command: str) -> bool:
    """Whether every word is meant as it stands, and no GPU is needed; of what torchrun starts, steps trained
    on processors, whose results later commands read."""
    words = command.split()
    trains = words[0] == "torchrun" and {"train", "cpu", "--json"} <= set(words)
    starts = words[0] == "python" or trains
    return starts and bool(of_ours(command)) and not any(map(STANDS_FOR.fullmatch, words))


@pytest.mark.nightly
@pytest.mark.parametrize("page", [page for page in PAGES if page not in TESTED_APART])
def test_every_command_runs(page: str, tree: Path) -> None:
    for command in filter(can_run, shown(page, BLOCK)):
        program, *words = shlex.split(command)
        start = ["-m", "torch.distributed.run"] if program == "torchrun" else []
        ran = subprocess.run([sys.executable, *start, *words], cwd=tree, capture_output=True, text=True, check=False)
        assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), f"{command}\n{ran.stderr[-2000:]}"
        assert ran.stdout.strip(), command
