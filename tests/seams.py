"""The rules of the seams: code asks for facts and roles instead of choosing by a name."""

import ast
from collections.abc import Iterator
from pathlib import Path

from ops.strategies.registry import STRATEGIES
from tests.architecture import Rule, Source

ARCHITECTURE_FILES = (Path(__file__).resolve().parents[1] / "configs" / "architectures").glob("*.toml")
GPU_ARCHITECTURES = frozenset(path.stem for path in ARCHITECTURE_FILES) - {"cpu"}


def architectures_are_files(source: Source) -> Iterator[str]:
    """What belongs to a GPU architecture is a file under configs/architectures: code asks for its facts."""
    if source.owner == "tests":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and str(node.value).lower() in GPU_ARCHITECTURES:
            yield source.at(node, f"names the architecture {node.value!r}; ask for a fact of its file")
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name")):
            if isinstance(name, str) and GPU_ARCHITECTURES.intersection(name.lower().split("_")):
                yield source.at(node, f"{name} belongs to one architecture; make it a fact of its file")
        if isinstance(node, ast.Compare) and "architecture.name" in ast.unparse(node):
            sides = (node.left, *node.comparators)
            if any(isinstance(part, ast.Constant) for side in sides for part in ast.walk(side)):
                yield source.at(node, "compares an architecture's name; ask for a fact of its file")


def names_a_strategy(node: ast.expr) -> bool:
    """A literal that is a strategy's name, or a literal collection that holds one."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(names_a_strategy(element) for element in node.elts)
    return isinstance(node, ast.Constant) and node.value in STRATEGIES


def strategies_are_asked(source: Source) -> Iterator[str]:
    """Outside ops/strategies nothing is chosen by a strategy's name: Sharding and its traits answer."""
    if source.owner == "tests" or source.path.parts[:2] == ("ops", "strategies"):
        return
    for node in ast.walk(source.tree):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        keys = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else []
        cases = [node.value] if isinstance(node, ast.MatchValue) else []
        if any(names_a_strategy(one) for one in (*compared, *keys, *cases)):
            yield source.at(node, "chooses by a strategy's name; ask its Sharding")


SEAM_RULES: tuple[Rule, ...] = (architectures_are_files, strategies_are_asked)
