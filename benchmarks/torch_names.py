"""The names of torch that the profiler and the runner use, with their signatures in the installed torch.

    python benchmarks/torch_names.py --out torch-2.13.json          the names, as the installed torch has them
    python benchmarks/torch_names.py --table 2.11.json 2.13.json    a table of several, for benchmarks/notes/torch_versions.md

Names are found in the sources (attributes of torch's modules, under any alias), so that a new use is a new row. It needs
only the standard library and torch.
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
"""A function in C++ without a signature in Python."""

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
"""Names that are looked up at run time, because not every release has them."""


def names_in(source: str) -> set[str]:
    """Full names of all that a module uses of torch."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] == "torch":
                    aliases[one.asname or "torch"] = one.name if one.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            aliases |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    read = {aliases[name] for name in aliases if aliases[name].count(".")}
    return read | {name for node in ast.walk(tree) for name in dotted(node, aliases)}


def dotted(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    """The full name of an attribute of one of torch's modules."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if parts and isinstance(node, ast.Name) and node.id in aliases:
        yield ".".join([aliases[node.id], *reversed(parts)])


def names_in_use(packages: Sequence[str] = PACKAGES, root: Path = ROOT) -> list[str]:
    """The names that some packages use, sorted, without those that are prefixes of others."""
    result = set(BY_WORD)
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            result |= names_in(path.read_text(encoding="utf-8"))
    return sorted(name for name in result if not any(other.startswith(f"{name}.") for other in result))


def fact_of(name: str) -> str:
    """The parameters of a function (``=``: optional), BUILT_IN, "class", "value", or ABSENT."""
    result = lookup(name)
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
    parameter_names = [f"{one.name}{'' if one.default is inspect.Parameter.empty else '='}" for one in parameters]
    return f"({', '.join(parameter_names)})"


def lookup(name: str) -> object | None:
    """The object under a full name; None without one."""
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
    """The facts of the installed torch by name, with its version and Python's."""
    torch = importlib.import_module("torch")
    versions = {"torch": str(torch.__version__).partition("+")[0], "python": platform.python_version()}
    return versions | {name: fact_of(name) for name in names_in_use()}


def table(releases: Sequence[dict[str, str]]) -> str:
    """A table with a row for each Python function and each name in which releases differ: the first release's fact, and
    other releases' if different. Below it the names that are alike in all releases."""
    names = sorted({name for one in releases for name in one} - {"torch", "python"})
    labels = [f"{one['torch']} (Python {one['python']})" for one in releases]
    lines = ["| name | " + " | ".join(labels) + " |", "|---|" + "---|" * len(releases)]
    alike: dict[str, list[str]] = {}
    for name in names:
        facts = [one.get(name, "not asked") for one in releases]
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
    options = parser.parse_args(words)
    if options.table:
        print(table([json.loads(path.read_text(encoding="utf-8")) for path in options.table]))
        return 0
    result = facts()
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missing = [name for name, fact in result.items() if fact == ABSENT and name not in BY_WORD]
    print(f"torch {result['torch']}: {len(result) - 2} names, {len(missing)} missing: {', '.join(missing) or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
