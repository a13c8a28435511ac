"""What the project says about itself in its files agrees: README, Makefile, requirements, pyproject."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ops.op import Axis
from spec.collectives import Collective
from spec.frameworks import STRATEGIES
from spec.origin import ORIGIN_MEANINGS

ROOT = Path(__file__).resolve().parents[1]
SEARCH = (
    "python simulation_train_formulaic.py --pre_profiling_data_path ./prof_data/data.pt "
    "--config configs/7B_internlm2.py --run_all_solu --model_size 7 --world_size 128 "
    "--global_batch_size 4194304"
)


def text_of(name: str) -> str:
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not written yet")
    return path.read_text(encoding="utf-8")


def pins(name: str) -> dict[str, Requirement]:
    """Requirements of one file by normalised name; comments and -r lines left out."""
    lines = [line.split("#")[0].strip() for line in text_of(name).splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def project() -> dict:
    return tomllib.loads(text_of("pyproject.toml"))


def ranges(requirements: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in requirements}


def make_targets() -> set[str]:
    lines = re.findall(r"^([a-z][\w -]*):(?!=)", text_of("Makefile"), re.MULTILINE)
    return {target for line in lines for target in line.split()}


def commands_of_make(target: str) -> str:
    """What `make target` would run, on one line."""
    dry = subprocess.run(
        ["make", "--no-print-directory", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return " ".join(dry.stdout.replace("\\\n", " ").split())


@pytest.mark.parametrize(
    ("file", "declared"),
    [
        ("requirements.txt", lambda: project()["project"]["dependencies"]),
        ("requirements-dev.txt", lambda: project()["project"]["optional-dependencies"]["dev"]),
    ],
)
def test_pins_lie_in_the_declared_ranges(file: str, declared) -> None:
    pinned, wanted = pins(file), ranges(declared())
    assert set(pinned) == set(wanted)
    for name, requirement in pinned.items():
        (exact,) = requirement.specifier
        assert exact.operator == "==", f"{file}: {requirement} is not pinned"
        assert wanted[name].specifier.contains(exact.version), f"{requirement} is outside {wanted[name]}"


def test_nightly_adds_optional_parts() -> None:
    extras = project()["project"]["optional-dependencies"]
    wanted = ranges([*extras["notebook"], *extras["parquet"], *extras["site"], *extras["sweep"]])
    pinned = pins("requirements-nightly.txt")
    assert set(pinned) == set(wanted)
    assert all(wanted[name].specifier.contains(str(one.specifier)[2:]) for name, one in pinned.items())
    assert "env-nightly" in make_targets()
    assert "step env-nightly" in text_of(".ci/run")


def test_make_search_runs_the_main_command() -> None:
    assert SEARCH in commands_of_make("search")


def test_old_python_is_refused_in_one_line(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    venv = tmp_path / "venv"
    made = subprocess.run(
        ["make", "--no-print-directory", f"VENV={venv}", f"PYTHON={old}", "env"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 2
    assert f"PYTHON={old} is not a Python of version 3.11 or newer" in made.stderr
    assert not venv.exists()


def test_readme_commands_exist() -> None:
    readme = text_of("README.md")
    named = set(re.findall(r"^\s*(?:\$ )?make ([a-z-]+)", readme, re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)", readme))
    assert {"search", "test"} <= named
    assert named <= make_targets()


def test_readme_shows_the_main_command() -> None:
    shown = " ".join(text_of("README.md").replace("\\\n", " ").split())
    assert SEARCH in shown


def collected(*more: str) -> str:
    """The tests of the pages' commands that pytest would run."""
    page = ROOT / "tests" / "test_shown_commands.py"
    words = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *more, str(page)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_nightly_runs_what_the_normal_run_leaves_out() -> None:
    handed = re.search(r'/run" (.*)$', text_of(".ci/nightly"), re.MULTILINE)
    assert handed
    # .ci/run hands its arguments to make, and make to a shell
    arguments = shlex.split(" ".join(shlex.split(handed[1])))
    usual, nightly = collected(), collected(*arguments)
    assert [name in usual for name in ("test_commands_are_found", "test_every_command_runs")] == [True, False]
    assert [name in nightly for name in ("test_commands_are_found", "test_every_command_runs")] == [True, True]


def test_glossary_says_every_origin_as_the_code_does() -> None:
    lines = text_of("docs/glossary.md").splitlines()
    for origin, meaning in ORIGIN_MEANINGS.items():
        assert any(line.startswith(f"| {origin.name.lower()} | {meaning}") for line in lines), origin


def test_glossary_has_a_word_for_every_axis_collective_and_strategy() -> None:
    words = set(re.findall(r"^\| ([^|]+?) \|", text_of("docs/glossary.md"), re.MULTILINE))
    assert {kind.value for kind in Collective} | {axis.value for axis in Axis} | set(STRATEGIES) <= words


def test_actions_are_pinned_to_a_commit() -> None:
    used = re.findall(r"uses: (.*)", (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used)
