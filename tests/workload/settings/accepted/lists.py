"""The lists beside this file as parsers: what a framework's own would say to an export."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent
KINDS: dict[str, type] = {"int": int, "float": float, "text": str, "texts": str}


class RefusedError(Exception):
    """What the framework's parser would say."""


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint."""
        raise RefusedError(message)


def _lines(name: str) -> list[list[str]]:
    text = (HERE / f"{name}.txt").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def known_flags(name: str) -> frozenset[str]:
    """The flags of a list."""
    return frozenset(words[0] for words in _lines(name) if words[0] != "required")


def parse_flags(name: str, text: str) -> argparse.Namespace:
    """The flags of an export as the Megatron-LM of that list parses them; comments are the shell's.

    Raises RefusedError for a flag, a kind or a choice that it does not know, and for a flag it misses.
    """
    words = [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]
    parser = Parser(allow_abbrev=False)
    for flag, kind, *choices in (line for line in _lines(name) if line[0] != "required"):
        if kind == "switch":
            parser.add_argument(flag, action="store_true")
        elif kind == "texts":
            parser.add_argument(flag, nargs="+")
        else:
            parser.add_argument(flag, type=KINDS.get(kind, str), choices=choices or None)
    required = {flag for line in _lines(name) if line[0] == "required" for flag in line[1:]}
    missing = required - set(words)
    if missing:
        raise RefusedError(f"missing {', '.join(sorted(missing))}")
    return parser.parse_args(words)


def check_internevo(config: Mapping[str, object]) -> None:
    """Raise RefusedError for what InternEvo's args_sanity_check or create_model would refuse of a config's
    names: a missing key, or a key of ``model`` that the class of its model type does not take."""
    keys: dict[str, set[str]] = {}
    for first, *rest in _lines("internevo"):
        if first == "required":
            section = config.get(rest[0].rstrip(":"))
            missing = [key for key in rest[1:] if not isinstance(section, dict) or key not in section]
            if missing:
                raise RefusedError(f"{rest[0]} {missing[0]} missing")
        else:
            keys.setdefault(first.rstrip(":"), set()).update(rest)
    model = config["model"]
    assert isinstance(model, dict)
    unknown = set(model) - keys[str(config["model_type"])]
    if unknown:
        raise RefusedError(f"model: {', '.join(sorted(unknown))}")


def check_fields(name: str, values: Mapping[str, object]) -> None:
    """Raise RefusedError for a field that a list of Python fields lacks, or whose value is of a kind it does
    not name.
    """
    kinds = {path: set(names) for path, *names in _lines(name)}
    for path, value in values.items():
        kind = "None" if value is None else type(value).__name__
        if kind not in kinds.get(path, set()):
            raise RefusedError(f"{path} = {value!r}: {kind} for {kinds.get(path)}")


def check_deepspeed(settings: Mapping[str, object], own: str) -> None:
    """Raise RefusedError for keys of a configuration that DeepSpeed does not read, besides the key ``own``, for a
    value of another kind, and for a missing one."""
    check_keys("deepspeed", settings, own)


def check_keys(name: str, settings: Mapping[str, object], own: str = "") -> None:
    """The same for a list of a configuration's keys."""
    kinds = {words[0]: words[1:] for words in _lines(name)}
    required = kinds.pop("required")
    found = {path: value for path, value in _leaves(settings) if path != own}
    for path, value in found.items():
        kind, *choices = kinds.get(path, ["unknown"])
        holds = {"int": type(value) is int, "float": type(value) is float, "switch": type(value) is bool}
        if not holds.get(kind, value in choices):
            raise RefusedError(f"{path} = {value!r}: {kind} {' '.join(choices)}")
    if set(required) - set(found):
        raise RefusedError(f"missing {set(required) - set(found)}")


def _leaves(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        found += _leaves(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return found
