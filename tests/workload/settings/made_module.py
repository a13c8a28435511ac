"""Running an exported Python module where the framework is not installed."""

import runpy
import sys
import types
from pathlib import Path

import pytest


class Call:
    """A call of the framework: its name, what it was given, and what was set on the result."""

    def __init__(self, name: str, values: dict[str, object], words: tuple[object, ...] = ()) -> None:
        self.__dict__.update(called=name, given=values, words=words, parts={})

    def __getattr__(self, name: str) -> "Call":
        if name.startswith("__"):
            raise AttributeError(name)
        return self.parts.setdefault(name, Call(f"{self.called}.{name}", {}))  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: object) -> None:
        self.parts[name] = value

    def __call__(self, *words: object, **values: object) -> "Call":
        return Call(self.called, values, words)


class Framework(types.ModuleType):
    """A package in which every name is there to be called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Call(name, {})


def functions_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names of a module whose imports, torch aside, are stood in for."""
    for line in text.splitlines():
        if line.startswith("from "):
            parts = line.split()[1].split(".")
            for end in range(1, len(parts) + 1):
                name = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, name, Framework(name))
    path = folder / "made.py"
    path.write_text(text)
    return runpy.run_path(str(path))


def fields_of(call: Call, prefix: str = "") -> dict[str, object]:
    """What was set on a result, by its path; what was given to a call under the path it was set at."""
    found: dict[str, object] = {}
    for name, value in call.parts.items():
        path = f"{prefix}{name}"
        if isinstance(value, Call):
            found |= {f"{path}.{key}": one for key, one in value.given.items()} | fields_of(value, f"{path}.")
        else:
            found[path] = value
    return found
