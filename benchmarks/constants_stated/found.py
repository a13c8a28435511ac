"""Every constant that a comment, a docstring or a sheet's source calls ``Fitted`` or an ``Assumption``.

In Python: names in capitals, assigned numbers at the top of a module, with the word in the comment beside or
above them or in the string below them, or in the docstring of the module. In configs: numbers whose entry
under [sources] has the word.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("spec", "ops", "profdb", "solver", "workload", "profiler", "runner")
WORD = re.compile(r"\b(Fitted|Assumption)\b")
# How many plans a search may keep, how many nodes a sheet's fabric can have: limits that no time is made of.
LIMITS = ("node.max_nodes",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """``name`` in the file ``path`` (relative to the project), whether ``kind`` is Fitted or Assumption, and what its
    source says."""

    path: str
    name: str
    kind: str
    source: str

    @property
    def key(self) -> str:
        """What names it in a table."""
        return f"{self.path}:{self.name}"


def constants(root: Path) -> list[Constant]:
    """All of them, by path and place in the file."""
    found: list[Constant] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found += in_module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    for path in sorted((root / "configs").rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        if "[sources]" in text:
            found += in_sheet(path.relative_to(root).as_posix(), tomllib.loads(text))
    return found


def in_module(path: str, text: str) -> list[Constant]:
    """Of one Python file."""
    if not WORD.search(text):
        return []
    tree, lines = ast.parse(text), text.splitlines()
    whole = ast.get_docstring(tree) or ""
    found = []
    for place, node in enumerate(tree.body):
        names = _capitals(node)
        if not names or not any(_is_number(part) for part in ast.walk(_value(node))):
            continue
        after = tree.body[place + 1] if place + 1 < len(tree.body) else None
        said = " ".join((_comments(lines, node), _string(after))).strip()
        told = said if WORD.search(said) else whole
        mark = WORD.search(told)
        if mark:
            source = told[mark.start() :].split("\n\n")[0]
            source = re.sub(r"\s+", " ", source if told is said else f"{source} {said}")
            found += [Constant(path=path, name=name, kind=mark[1], source=source) for name in names]
    return found


def _capitals(node: ast.stmt) -> list[str]:
    """The names in capitals that a statement assigns."""
    targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    parts = [part for target in targets for part in ast.walk(target)]
    return [part.id for part in parts if isinstance(part, ast.Name) and part.id.isupper()]


def _value(node: ast.stmt) -> ast.expr:
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return node.value
    return ast.Constant(value=None)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _comments(lines: list[str], node: ast.stmt) -> str:
    """The comment above a statement, whatever assignments stand between without a line left free, and those in it."""
    first = node.lineno - 1
    while first > 0 and lines[first - 1].strip() and not lines[first - 1].startswith("#"):
        first -= 1
    above = first
    while above > 0 and lines[above - 1].startswith("#"):
        above -= 1
    inside = [
        line.split("#", maxsplit=1)[1] for line in lines[node.lineno - 1 : node.end_lineno] if "#" in line
    ]
    own = " ".join(inside)
    block = " ".join(line.lstrip("# ") for line in lines[above:first])
    return own if WORD.search(own) else f"{block} {own}"


def _string(node: ast.stmt | None) -> str:
    """The string that stands alone below a constant."""
    text = node.value if isinstance(node, ast.Expr) else None
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""


def in_sheet(path: str, sheet: dict[str, object]) -> Iterator[Constant]:
    """Of one sheet: each number, or table, whose source has the word."""
    sources = sheet.get("sources")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        mark = WORD.search(str(source))
        if mark and name not in LIMITS:
            yield Constant(path=path, name=name, kind=mark[1], source=str(source)[mark.start() :])
