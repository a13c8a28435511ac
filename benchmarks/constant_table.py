"""Lists the constants that a comment, a docstring or a hardware spec's source calls ``Fitted`` or an ``Assumption``, and
the table of them on a page.

In Python these are names in capitals that a module assigns numbers, with the word in the comment next to or above them,
in the string below them, or in the module's docstring. In configs they are numbers whose entry under [sources] has the
word.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec.errors import ConfigError

PACKAGES = ("spec", "ops", "profdb", "solver", "workload", "profiler", "runner")
WORD = re.compile(r"\b(Fitted|Assumption)\b")
# The largest number of nodes of a spec's fabric: a limit, which no time depends on.
LIMITS = ("node.max_nodes",)
HEAD = "| constant | file | | what its source says | points of error at -25 % / +25 % |"
UNPRICED = "not priced yet"
MOST_WORDS = 110
# Files whose constants no predicted step depends on, by the start of the path.
APART = {
    "profdb/fits": "how curves are fitted: docs/accuracy.md, curves",
    "profdb/store": "what a merge of profiles reports",
    "profdb/transfer": "the error given with a transferred time",
    "profdb/cost_model": "the error given with a borrowed curve",
    "solver/analysis/goodput": "what --goodput answers: docs/questions.md",
    "solver/plans": "which plans are searched",
    "solver/search": "which plans are searched",
    "solver/calibrat": "calibration: docs/calibration.md",
    "workload": "what an exported workload holds",
    "profiler": "how a profile is measured",
}
# Constants that are entries of a published table and have no other value.
ENTRIES = {
    "configs/architectures/blackwell.toml:flash_attention.softmax_unhidden": "nothing by shares of itself: it is 0",
    "profdb/modelled/flash_generations.py:WIDTHS": "the widths that were published",
    "profdb/modelled/flash_generations.py:STATED_WIDTH": "the entry by which architectures are compared",
}


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
        """Its name in the table."""
        return f"{self.path}:{self.name}"


def constants(root: Path) -> list[Constant]:
    """All such constants, by path and place in the file."""
    result: list[Constant] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            result += in_module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    for path in sorted((root / "configs").rglob("*.toml")):
        text = path.read_text(encoding="utf-8")
        if "[sources]" in text:
            result += in_spec(path.relative_to(root).as_posix(), tomllib.loads(text))
    return result


def in_module(path: str, code: str) -> list[Constant]:
    """Returns the constants of one Python file."""
    if not WORD.search(code):
        return []
    tree, lines = ast.parse(code), code.splitlines()
    whole = ast.get_docstring(tree) or ""
    result = []
    for place, node in enumerate(tree.body):
        names = _capitals(node)
        if not names or not any(_is_number(part) for part in ast.walk(_value(node))):
            continue
        after = tree.body[place + 1] if place + 1 < len(tree.body) else None
        near = " ".join((_comments(lines, node), _string(after))).strip()
        text = near if WORD.search(near) else whole
        mark = WORD.search(text)
        if mark:
            source = text[mark.start() :].split("\n\n")[0]
            source = re.sub(r"\s+", " ", source if text is near else f"{source} {near}")
            result += [Constant(path=path, name=name, kind=mark[1], source=source) for name in names]
    return result


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
    """The comment above a block of statements without an empty line, and the comments in the statement."""
    first = node.lineno - 1
    while first > 0 and lines[first - 1].strip() and not lines[first - 1].startswith("#"):
        first -= 1
    above = first
    while above > 0 and lines[above - 1].startswith("#"):
        above -= 1
    inside = [line.split("#", maxsplit=1)[1] for line in lines[node.lineno - 1 : node.end_lineno] if "#" in line]
    own = " ".join(inside)
    block = " ".join(line.lstrip("# ") for line in lines[above:first])
    return own if WORD.search(own) else f"{block} {own}"


def _string(node: ast.stmt | None) -> str:
    """The docstring-like string below a constant; "" without one."""
    text = node.value if isinstance(node, ast.Expr) else None
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""


def in_spec(path: str, spec: dict[str, object]) -> Iterator[Constant]:
    """Yields each number, or table, of a hardware spec whose source has the word."""
    sources = spec.get("sources")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        mark = WORD.search(str(source))
        if mark and name not in LIMITS:
            yield Constant(path=path, name=name, kind=mark[1], source=str(source)[mark.start() :])


def why_unpriced(constant: Constant) -> str:
    """The reason why no predicted step depends on a constant, or why it cannot be varied; "" without one."""
    reasons = (what for start, what in APART.items() if constant.path.startswith(start))
    return ENTRIES.get(constant.key, "") or next(reasons, "")


def line_of(constant: Constant, effect: str) -> str:
    """The line of a constant in the table."""
    source = constant.source.replace("|", "/").replace("``", "").removeprefix(constant.kind).lstrip(": ")
    if len(source) > MOST_WORDS:
        source = source[: MOST_WORDS - 3].rsplit(" ", maxsplit=1)[0] + " ..."
    return f"| `{constant.name}` | {constant.path} | {constant.kind} | {source} | {effect} |"


def effects_in(page: str) -> dict[str, str]:
    """The last cell of each line of a page's table, by the key of its constant."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    return {f"{cells[1]}:{cells[0].strip('`')}": cells[-1] for cells in lines if cells and cells[0][:1] == "`"}


def updated_page(page: str, listed: Sequence[Constant], priced: Mapping[str, str]) -> str:
    """The page with a line for each constant of ``listed``, by path. Its effect is the one in ``priced``, else the one on
    the page, also if the constant has moved to another file.

    Raises ConfigError for a page without the table.
    """
    if HEAD not in page:
        raise ConfigError(where="--out", key="page", value=page[:40], allowed=f"a page with the line {HEAD}")
    head, rest = page.split(HEAD, maxsplit=1)
    rule, *below = rest.lstrip("\n").splitlines()
    keys = {one.key for one in listed}
    effects = effects_in(page)
    by_name = {key.split(":")[1]: effect for key, effect in effects.items() if key not in keys}
    places = {key: place for place, key in enumerate(effects)}
    lines = []
    for one in sorted(listed, key=lambda one: (one.path, places.get(one.key, len(places)))):
        own = effects.get(one.key) or by_name.get(one.name) or UNPRICED
        lines.append(line_of(one, why_unpriced(one) or priced.get(one.key, own)))
    after = [line for line in below if not line.startswith("| `")]
    return "\n".join([head + HEAD, rule, *lines, *after]) + "\n"
