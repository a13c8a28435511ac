"""What a project's visitors and tools look for first says the same as the code: contribution, citation,
container, site, links.
"""

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from pss.plans import options_parser
from spec.program.command import VERSION
from tests.architecture import project_files
from tests.test_project_files import SEARCH, make_targets, pins

ROOT = Path(__file__).resolve().parents[1]
PAGES = [path for path in project_files(ROOT) if path.suffix == ".md"]
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
PLACE = re.compile(r"`((?:spec|ops|profdb|profiler|solver|workload|runner|pss|benchmarks|tests)/[\w./-]*)`")
CODE = re.compile(r"^```.*?^```|^ {4,}\S.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict:
    return tomllib.loads(text_of("pyproject.toml"))["project"]


def anchors(page: Path) -> set[str]:
    """The anchors that a forge gives a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)]
    return set(words)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        check_links(page)


def check_links(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.relative_to(ROOT)}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.relative_to(ROOT)}: {target}"


def test_files_that_a_page_names_exist() -> None:
    places = ((page, name) for page in PAGES for name in PLACE.findall(page.read_text(encoding="utf-8")))
    assert not [f"{page}: {name}" for page, name in places if not (ROOT / name).exists()]


def test_the_five_files_of_the_architecture_hold_what_the_page_names() -> None:
    steps = re.findall(r"^\d\. `([\w/]+\.py)`(.*(?:\n {3}.*)*)", text_of("docs/architecture.md"), re.MULTILINE)
    assert len(steps) == 5
    for name, words in steps:
        assert all(function in text_of(name) for function in re.findall(r"`(\w+)`", words)), name


def test_the_citation_is_of_this_version() -> None:
    said = dict(re.findall(r'^([a-z-]+): "?([^"\n]+?)"?$', text_of("CITATION.cff"), re.MULTILINE))
    assert (said["version"], said["license"]) == (VERSION, project()["license"])
    assert f"What {VERSION} will be" in text_of("CHANGELOG.md")


def test_commits_are_checked_as_changes_are() -> None:
    text = text_of(".pre-commit-config.yaml")
    pinned = set(re.findall(r'"(\w+==[\d.]+)"', text))
    assert pinned == {f"ruff{pins('requirements-dev.txt')['ruff'].specifier}"}
    run = [words.replace(" --force-exclude", "") for words in re.findall(r"entry: (.+)", text)]
    makefile = text_of("Makefile")
    assert [f"$(BIN)/{words}" in makefile or f"$(BIN)/{words} ." in makefile for words in run] == [True] * 3


def test_the_workflow_runs_the_scripts_that_everybody_runs() -> None:
    text = text_of(".github/workflows/ci.yml")
    assert re.findall(r"- run: (.+)", text) == [".ci/run", ".ci/nightly"]
    for name in ("run", "nightly"):
        assert (ROOT / ".ci" / name).stat().st_mode & 0o111
    least = project()["requires-python"].removeprefix(">=")
    assert f'"{least}"' in text


def test_the_container_runs_the_main_job() -> None:
    lines = text_of("Dockerfile").splitlines()
    verb, *words = json.loads(next(line for line in lines if line.startswith("CMD")).removeprefix("CMD "))
    asked = options_parser().parse_args(["--run_all_solu", *words])
    main = options_parser().parse_args(SEARCH.split()[2:])
    assert (verb, json.loads(lines_of(lines, "ENTRYPOINT"))) == ("search", ["pss"])
    main.pre_profiling_data_path, main.config = None, asked.config
    assert asked == main
    assert [str(one) for one in asked.config] == [Path(SEARCH.split("--config ")[1].split()[0]).stem]
    image = lines_of(lines, "FROM").partition("python:")[2].partition("-")[0]
    assert f">={image}" == project()["requires-python"]
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert not {"prof_data", "configs"} & set(text_of(".dockerignore").split())


def lines_of(lines: list[str], instruction: str) -> str:
    return next(line for line in lines if line.startswith(instruction)).removeprefix(f"{instruction} ")


def test_contributors_are_told_of_targets_that_there_are() -> None:
    named = set(re.findall(r"^    make ([a-z]+)", text_of("CONTRIBUTING.md"), re.MULTILINE))
    assert {"search", "test", "lint", "types"} <= named <= make_targets()


@pytest.mark.parametrize("folder", ["docs", "docs/zh"])
def test_every_page_stands_in_the_reading_order(folder: str) -> None:
    index = ROOT / folder / "README.md"
    if not index.exists():
        pytest.skip(f"{folder} has no README.md")
    pages = {path.name for path in index.parent.glob("*.md")} - {"README.md"}
    listed = re.findall(r"^\| \[[^\]]*\]\(([\w-]+\.md)\) \|", index.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(pages)


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed (pip install '.[site]')")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    home = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem.replace('README', 'index')}.html").exists(), page
    assert "questions.html" in home
    assert (tmp_path / "site" / "zh" / "glossary.html").exists()
