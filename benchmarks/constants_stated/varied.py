"""One constant at another value: in every module that imported it, or in a copy of its sheet."""

import ast
import dataclasses
import functools
import gc
import importlib
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from benchmarks.constants_stated.found import PACKAGES, Constant


def scaled(value: Any, factor: float) -> Any:
    """Every number in a value times ``factor``, whole numbers rounded and at least one; words and flags stay."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return max(round(value * factor), 1) if value > 0 else value
    if isinstance(value, float):
        return value * factor
    if isinstance(value, dict):
        return {key: scaled(one, factor) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: scaled(one, factor) for name, one in fields.items()})
    if isinstance(value, tuple | list):
        return type(value)(scaled(one, factor) for one in value)
    return value


@contextmanager
def varied(root: Path, constant: Constant, factor: float, copy: Path) -> Iterator[Path]:
    """The project's root while the constant is ``factor`` times itself; for a sheet, ``copy`` with another
    one in it.
    """
    if constant.path.endswith(".toml"):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root / "configs", copy / "configs")
        path = copy / constant.path
        path.write_text(
            with_number(path.read_text(encoding="utf-8"), constant.name, factor), encoding="utf-8"
        )
        yield copy
        return
    owner = importlib.import_module(constant.path.removesuffix(".py").replace("/", "."))
    new = {constant.name: scaled(getattr(owner, constant.name), factor)}
    for name, made in _made_of(Path(str(owner.__file__)), constant.name):
        names = vars(owner) | new
        exec(made, names)  # noqa: S102 - the module's own source
        new[name] = names[name]
    old = {name: getattr(owner, name) for name in new}
    try:
        _swap(old, new)
        yield root
    finally:
        _swap(new, old)


def _made_of(path: Path, name: str) -> Iterator[tuple[str, CodeType]]:
    """The names that a module makes of ``name`` when it is imported, and how, in their order: values, and classes whose
    fields stand at it."""
    changed = {name}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        made, read = _made(node)
        if any(isinstance(part, ast.Name) and part.id in changed for one in read for part in ast.walk(one)):
            changed.add(made)
            yield made, compile(ast.Module([node], []), str(path), "exec")


def _made(node: ast.stmt) -> tuple[str, list[ast.expr]]:
    """The name that a statement of a module makes, and what is read for it then; no name for other statements."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, [value]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return name, [value]
        case ast.ClassDef(name=name, body=body):
            return name, [one.value for one in body if isinstance(one, ast.AnnAssign) and one.value]
    return "", []


def names_made_of(root: Path, constant: Constant) -> frozenset[str]:
    """The name of a module's constant and those that its module makes of it."""
    made = (name for name, _ in _made_of(root / constant.path, constant.name))
    return frozenset((constant.name, *made))


def _swap(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Each name in every module that holds its old value, and nothing remembered of that."""
    for name, value in old.items():
        for package, module in list(sys.modules.items()):
            if package.split(".")[0] in PACKAGES and getattr(module, name, None) is value:
                setattr(module, name, new[name])
    for one in caches():
        one.cache_clear()


def caches() -> "list[functools._lru_cache_wrapper[Any]]":
    """Every functools cache there is."""
    return [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]


def number_of(sheet: str, name: str) -> float | None:
    """The number at a dotted name of a sheet's text, a list of domains read by their names; None for no number."""
    found: Any = tomllib.loads(sheet)
    for key in name.split("."):
        if isinstance(found, list):
            found = next((one for one in found if one.get("name") == key), None)
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def with_number(sheet: str, name: str, factor: float) -> str:
    """The sheet's text with the number at a dotted name ``factor`` times itself.

    Raises ValueError for a name that holds no number.
    """
    old = number_of(sheet, name)
    if old is None:
        raise ValueError(f"{name} is no number")
    *_, key = name.split(".")
    new = scaled(int(old) if old == int(old) and old < 1e6 else old, factor)
    for match in re.finditer(rf"^{re.escape(key)}\s*=\s*([-+\d._e]+)", sheet, flags=re.MULTILINE):
        text = f"{sheet[: match.start(1)]}{new!r}{sheet[match.end(1) :]}"
        changed = number_of(text, name)
        if changed is not None and changed != old:
            return text
    raise ValueError(f"{name} stands in no line of its own")
