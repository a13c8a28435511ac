"""The project as it is installed: files that come with it, names that nothing else has, and the command in an
empty folder.
"""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spec.files import shipped_config, shipped_folder
from spec.program.command import DISTRIBUTION, VERSION
from tests.architecture import PACKAGES, ROOT, SCRIPTS, copy_project, project_files

OURS = frozenset(PACKAGES) | SCRIPTS


def top_names(one: Distribution) -> set[str]:
    """Modules and packages that a distribution puts at the top."""
    listed = (file.parts[0] for file in one.files or () if "__pycache__" not in file.parts)
    return {name.removesuffix(".py").split(".")[0] for name in listed if not name.endswith((".pth", "-info"))}


def taken(found: Iterable[Distribution]) -> dict[str, str]:
    """Names of ours that another distribution has, with whose they are."""
    others = (one for one in found if canonicalize_name(one.name) != DISTRIBUTION)
    return {name: one.name for one in others for name in top_names(one) & OURS}


def test_no_requirement_and_no_standard_module_has_a_name_of_ours() -> None:
    assert not OURS & sys.stdlib_module_names
    assert taken(distributions()) == {}


def test_a_name_that_is_taken_is_found(tmp_path: Path) -> None:
    (tmp_path / "other-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (tmp_path / "other-1.0.dist-info" / "RECORD").write_text("ops/__init__.py,,\nrunner.py,,\nx/solver.py,,\n")
    # some finders list only files that exist
    for name in ("ops/__init__.py", "runner.py", "x/solver.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert taken(distributions(path=[str(tmp_path)])) == {"ops": "other", "runner": "other"}


def test_version_and_requirements_have_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "spec.program.command.VERSION"}
    assert project["project"]["name"] == DISTRIBUTION
    assert all(Requirement(line) for line in project["project"]["dependencies"])


def test_every_package_says_that_it_is_typed() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


def test_shipped_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_folder() == ROOT
    llama = ROOT / "configs" / "70B_llama3.py"
    for name in ("70B_llama3", "70B_llama3.py", "configs/70B_llama3.py"):
        assert shipped_config(Path(name)) == llama
    for name in ("70B_llama", "configs/../pyproject.toml", "prof_data/data.pt", str(tmp_path / "x.py")):
        assert shipped_config(Path(name)) == Path(name)
    (tmp_path / "70B_llama3").mkdir()
    assert shipped_config(Path("70B_llama3")) == Path("70B_llama3")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the project, beside the requirements of the one that runs the tests; its bin folder."""
    source = tmp_path_factory.mktemp("source")
    copy_project(source, without=("tests", "benchmarks", "docs"))
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    (site / "requirements_of_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # made with the setuptools that comes with torch, as venv's own is too old to read a licence's name
    pip = ("-m", "pip", "-q", "--disable-pip-version-check")
    made = [sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    wheel = folder / f"{DISTRIBUTION.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    for words in (made, [str(python), *pip, "install", "--no-deps", str(wheel)]):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder / "bin"


def ran(command: Path, folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(command), *words.split()], cwd=folder, env=clean, capture_output=True, text=True, check=False
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--version", VERSION),
        ("search --model_size 7 --world_size 128 --global_batch_size 4194304 --top_k 1", "\nbest "),
        ("search --config 8B_llama3 --cluster b200 --world_size 8 --global_batch_size 524288 --top_k 1", "\nbest "),
        ("price tp=2,pp=1 --config configs/8B_llama3.py --world_size 8 --global_batch_size 524288", "\nplan "),
        ("explain tp=2 --config 8B_llama3 --world_size 8 --global_batch_size 524288", "memory by term and stage"),
        ("sweep --config 8B_llama3 --world_size 8,16 --global_batch_size 524288 --fix cp=1", "fewest GPUs"),
        ("workload groups --tp 2 --dp 2", "groups of 2"),
        ("workload simulate --help", "usage: pss workload simulate"),
        ("profile --dry_run --device cpu", " cases, about "),
        ("completion zsh", "#compdef pss"),
    ],
)
def test_the_command_works_in_an_empty_folder(words: str, said: str, installed: Path, tmp_path: Path) -> None:
    told = ran(installed / "pss", tmp_path, words)
    assert said in told.stdout, told.stderr[-2000:]
    assert told.returncode == 0


@pytest.mark.nightly
def test_all_files_are_installed(installed: Path) -> None:
    """Code, typing marks and templates of the packages, every config, and the default profile."""
    (site,) = (found.parent for found in installed.parent.glob("lib/python*/site-packages/spec"))
    for path in project_files(ROOT):
        place = path.relative_to(ROOT)
        if place.parts[0] in PACKAGES:
            assert (site / place).is_file(), place
        if place.parts[0] == "configs" or place.as_posix() == "prof_data/data.pt":
            assert (site / "spec" / "shipped" / place).read_bytes() == path.read_bytes(), place
