"""The code keeps the rules of the house that ruff cannot say: who may import whom, and nothing is chosen by a name."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest
from importlinter.cli import lint_imports

from ops.strategies import STRATEGIES
from tests.architecture import PACKAGES, SCRIPTS, Source, project_files, python_sources
from tests.solver.questions import ROOT

GPU_ARCHITECTURES = {path.stem for path in (ROOT / "configs" / "architectures").glob("*.toml")} - {"cpu"}
VAGUE_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "managers"}

# A home, scratch or working folder of somebody's machine, at the start of a path.
LOCAL_PATH = re.compile(rb"""(?<![\w.\-/}\])*>])/(?:work|tmp|root|home/\w+|Users/\w+)(?=[/\s"'`:,;)]|$)""")


@cache
def product() -> list[Source]:
    """Every Python file but tests."""
    return [source for source in python_sources(ROOT) if source.path.parts[0] != "tests"]


def test_packages_and_rooms_are_imported_one_way(monkeypatch):
    # The contracts are [tool.importlinter] in pyproject.toml.
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert lint_imports(no_cache=True) == 0


def test_files_import_each_other_in_no_circle():
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_only_the_scripts_lie_at_the_top():
    assert {source.path.stem for source in product() if len(source.path.parts) == 1} == SCRIPTS | {"setup"}


def test_names_of_files_say_something():
    named = {part for source in product() for part in (*source.path.parts[:-1], source.path.stem)}
    assert not [name for name in named if VAGUE_NAMES.intersection(name.lower().split("_"))]


def test_no_two_classes_have_one_name():
    # A reader who meets a name, in code or in an error, can look it up.
    places: dict[str, list[str]] = {}
    for source in product():
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(source.at(node, node.name))
    assert not [where for same in places.values() if len(same) > 1 for where in same]


def names_an_architecture(source: Source) -> Iterator[str]:
    """What belongs to a GPU architecture is a fact of its file under configs/architectures."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and str(node.value).lower() in GPU_ARCHITECTURES:
            yield source.at(node, f"names the architecture {node.value!r}")


def chooses_by_strategy(source: Source) -> Iterator[str]:
    """Code reads a Sharding's traits, not its name; exporters have a framework's words for each name."""
    if source.path.parts[:2] in (("ops", "strategies.py"), ("workload", "settings")):
        return
    for node in source.nodes:
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        keys = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else []
        cases = [node.value] if isinstance(node, ast.MatchValue) else []
        for one in (*compared, *keys, *cases):
            parts = one.elts if isinstance(one, ast.Tuple | ast.List | ast.Set) else [one]
            if any(isinstance(part, ast.Constant) and part.value in STRATEGIES for part in parts):
                yield source.at(node, "chooses by the name of a strategy")


@pytest.mark.parametrize("rule", [names_an_architecture, chooses_by_strategy], ids=lambda rule: rule.__name__)
def test_nothing_is_chosen_by_a_name(rule):
    assert [line for source in product() for line in rule(source)] == []


def test_project_names_no_local_path():
    found = {path: LOCAL_PATH.search(path.read_bytes()) for path in project_files(ROOT)}
    assert {str(path): match.group() for path, match in found.items() if match} == {}
