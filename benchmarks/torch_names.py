"""Which names of torch the profiler and the runner use, and with what signatures this torch has them.

    python benchmarks/torch_names.py --out torch-2.13.json          the names, as the installed torch has them
    python benchmarks/torch_names.py --table 2.11.json 2.13.json    a table of several, for benchmarks/notes/torch_versions.md

Names come from the sources (attributes of modules of torch, whatever they are imported as), so that a new use is a new
row. Only the standard library and torch are needed: it runs in an environment that has nothing else.
"""

import argparse
import ast
import importlib
import inspect
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("profiler", "runner")

ABSENT = "absent"
BUILT_IN = "built in"
"""What is written in C++ and tells Python no signature."""

BY_WORD = (
    "torch.distributed.all_gather_single",
    "torch.distributed.all_gather_into_tensor",
    "torch.distributed.reduce_scatter_single",
    "torch.distributed.reduce_scatter_tensor",
    "torch.nn.attention.activate_flash_attention_impl",
    "torch.nn.attention.current_flash_attention_impl",
    "torch.nn.attention.list_flash_attention_impls",
    "torch.nn.attention.restore_flash_attention_impl",
    "torch.nn.functional.grouped_mm",
    "torch._grouped_mm",
)
"""Asked for by name, as not every release has them."""


def names_in(source: str) -> set[str]:
    """Dotted names below torch that a module reads, under the names that torch gives them."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "torch":
                    known[one.asname or "torch"] = one.name if one.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    read = {known[name] for name in known if known[name].count(".")}
    return read | {name for node in ast.walk(tree) for name in dotted(node, known)}


def dotted(node: ast.AST, known: dict[str, str]) -> Iterator[str]:
    """The name that an attribute of a module of torch has there."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if parts and isinstance(node, ast.Name) and node.id in known:
        yield ".".join([known[node.id], *reversed(parts)])


def used_names(packages: Sequence[str] = PACKAGES, root: Path = ROOT) -> list[str]:
    """Those of some packages, in order; the longest of names that begin alike stand for the shorter."""
    result = set(BY_WORD)
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            result |= names_in(path.read_text(encoding="utf-8"))
    return sorted(name for name in result if not any(other.startswith(f"{name}.") for other in result))


def fact_of(name: str) -> str:
    """The names of a function's parameters (``=`` where they may be left out), BUILT_IN, class, value, or ABSENT."""
    result = resolved(name)
    if result is None:
        return ABSENT
    if inspect.isclass(result):
        return "class"
    if not inspect.isroutine(result):
        return "value"
    try:
        parameters = inspect.signature(result).parameters.values()
    except (TypeError, ValueError):
        return BUILT_IN
    shown = [f"{one.name}{'' if one.default is inspect.Parameter.empty else '='}" for one in parameters]
    return f"({', '.join(shown)})"


def resolved(name: str) -> object | None:
    """Returns what torch has under a dotted name; None where it has nothing. What the name of a class's member is
    looked up in stays the class: instances tell more."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            result: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(result, part):
                return None
            result = getattr(result, part)
        return result
    return None


def facts() -> dict[str, str]:
    """The installed torch's facts, with its version and Python's."""
    torch = importlib.import_module("torch")
    versions = {"torch": str(torch.__version__).partition("+")[0], "python": platform.python_version()}
    return versions | {name: fact_of(name) for name in used_names()}


def table(held: Sequence[dict[str, str]]) -> str:
    """One row a function of Python's or what releases differ in: the first release's facts, and what others
    have instead; below it what all have alike."""
    names = sorted({name for one in held for name in one} - {"torch", "python"})
    labels = [f"{one['torch']} (Python {one['python']})" for one in held]
    lines = ["| name | " + " | ".join(labels) + " |", "|---|" + "---|" * len(held)]
    alike: dict[str, list[str]] = {}
    for name in names:
        facts = [one.get(name, "not asked") for one in held]
        if len(set(facts)) == 1 and facts[0] in (BUILT_IN, "class", "value"):
            alike.setdefault(facts[0], []).append(f"`{name}`")
            continue
        same = [facts[0], *("same" if fact == facts[0] else fact for fact in facts[1:])]
        lines.append(f"| `{name}` | " + " | ".join(same) + " |")
    for kind, members in alike.items():
        lines += ["", f"In all of them, {kind}: {', '.join(members)}."]
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Parse, look, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    given = parser.parse_args(words)
    if given.table:
        print(table([json.loads(path.read_text(encoding="utf-8")) for path in given.table]))
        return 0
    result = facts()
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missing = [name for name, fact in result.items() if fact == ABSENT and name not in BY_WORD]
    print(f"torch {result['torch']}: {len(result) - 2} names, {len(missing)} missing: {', '.join(missing) or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
