"""One constant at another value: in every module that imported it, or in a copy of its sheet."""

import functools
import gc
import importlib
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(scaled(one, factor) for one in value))
    if isinstance(value, tuple | list):
        return type(value)(scaled(one, factor) for one in value)
    return value


@contextmanager
def varied(root: Path, constant: Constant, factor: float, copy: Path) -> Iterator[Path]:
    """The project's root while the constant is ``factor`` times itself; for a sheet, ``copy`` with another one in it."""
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
    old = getattr(owner, constant.name)
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in PACKAGES and getattr(module, constant.name, None) is old
    ]
    new = scaled(old, factor)
    try:
        _set(holders, constant.name, new)
        yield root
    finally:
        _set(holders, constant.name, old)


def _set(holders: list[Any], name: str, value: object) -> None:
    """The name in every module that holds it, and nothing remembered of its other value."""
    for module in holders:
        setattr(module, name, value)
    for one in gc.get_objects():
        if type(one) is functools._lru_cache_wrapper:
            one.cache_clear()


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
