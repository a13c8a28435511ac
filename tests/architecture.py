"""The files of the project, as tests walk over them."""

import ast
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = frozenset({"gen_profiler_data", "simulation_train_formulaic", "run_workload"})
PACKAGES = ("spec", "ops", "profdb", "profiler", "solver", "workload", "runner", "pss")


@dataclass(frozen=True)
class Source:
    """One Python file: its place in the project and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, which many rules look at."""
        return tuple(ast.walk(ast.parse(self.text, filename=str(self.path))))

    def at(self, node: ast.AST, message: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {message}"


def project_files(root: Path) -> list[Path]:
    """Tracked files and new ones that git does not ignore; without git, all but hidden folders and caches."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0 and listing.stdout:
        found = [root / name for name in listing.stdout.decode().split("\0") if name]
    else:
        skipped = re.compile(r"^(\..*|__pycache__|build|dist|.*\.egg-info)$")
        found = [
            path
            for path in root.rglob("*")
            if not any(skipped.match(part) for part in path.relative_to(root).parts[:-1])
        ]
    return sorted(path for path in found if path.is_file())


def copy_project(folder: Path, without: tuple[str, ...] = ()) -> None:
    """The project's files in another folder, but for what lies in some folders at its top."""
    for path in project_files(ROOT):
        place = folder / path.relative_to(ROOT)
        if path.relative_to(ROOT).parts[0] not in without:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def python_sources(root: Path) -> list[Source]:
    """Every Python file of the project except the model configurations, which are data."""
    paths = [(path, PurePosixPath(path.relative_to(root).as_posix())) for path in project_files(root)]
    return [
        Source(path=place, text=path.read_text(encoding="utf-8"))
        for path, place in paths
        if place.suffix == ".py" and place.parts[0] != "configs"
    ]
