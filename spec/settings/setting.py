"""A table of settings from a dataclass: key, kind, meaning and default of every field that has a kind.

    tp: Annotated[int | None, Whole(), Column()] = None
    \"\"\"Tensor-parallel ranks.\"\"\"

The kind of a bool or a Literal is its type. Fields that are dataclasses are groups: their keys begin with the group's
name and a dot. Other fields are not settings.
"""

import ast
import inspect
import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spec.errors import ConfigError
from spec.program.kinds import Flag, Kind, Number, Percentage, Several, Text, Whole, Word
from spec.section import Section

MAX_LISTED_KEYS = 30
KINDS = (Flag, Number, Percentage, Text, Several, Whole, Word)


@dataclass(frozen=True, slots=True)
class Column:
    """Next to a kind: the values of many plans are a column of one table, instead of one table for each value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key that a user may set, and its default. It is a field of the dataclass ``owner``, or has ``words`` of its own if
    that is None."""

    key: str
    kind: Kind
    default: object
    owner: type | None = None
    words: str = ""
    column: bool = False

    @property
    def meaning(self) -> str:
        """Returns what it means, for errors and pages: of a field its docstring, for which the module is parsed."""
        if self.owner is None:
            return self.words
        docstrings = _field_docstrings(self.owner.__module__)[self.owner.__name__]
        return docstrings.get(self.key.rpartition(".")[2], "")

    def read(self, text: str, where: str) -> object:
        """Returns the value of command-line text; ConfigError for a value that the key does not take."""
        try:
            return self.kind.read(text)
        except ValueError as error:
            raise self._refused(text, where) from error

    def accept(self, value: object, where: str) -> object:
        """Returns the value that a file or caller gives; ConfigError for a value that the key does not take."""
        try:
            return self.kind.accept(value)
        except ValueError as error:
            raise self._refused(value, where) from error

    def _refused(self, value: object, where: str) -> ConfigError:
        text_of_value = f"<{type(value).__name__}>" if isinstance(value, list | tuple | dict) else value
        allowed = f"{self.kind.allowed} ({self.meaning})"
        return ConfigError(where=where, key=self.key, value=text_of_value, allowed=allowed)


Settings = Mapping[str, Setting]


def settings_of(of: type, group: str = "") -> Settings:
    """Returns the settings among the fields of a dataclass and of its groups, by key."""
    hints = get_type_hints(of, include_extras=True)
    result: dict[str, Setting] = {}
    for one in fields(of):
        key = f"{group}.{one.name}" if group else one.name
        hint = hints[one.name]
        if isinstance(hint, type) and is_dataclass(hint):
            # A group: its fields are settings with the group's name before a dot.
            result |= settings_of(hint, key)
        kind = kind_of(hint)
        if kind is not None:
            result[key] = Setting(
                key=key,
                kind=kind,
                default=None if one.default is MISSING else one.default,
                owner=of,
                column=any(isinstance(mark, Column) for mark in get_args(hint)[1:]),
            )
    return result


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Returns the string literals directly under the fields of a module's classes, on one line each: by class, by
    field. Fields without one are left out."""
    result: dict[str, dict[str, str]] = {}
    # Python keeps no docstrings of fields: the source is the only place that has them.
    for one in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(one, ast.ClassDef):
            continue
        result[one.name] = {}
        for statement, below in pairwise(one.body):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                result[one.name][statement.target.id] = " ".join(str(below.value.value).split())
    return result


def kind_of(hint: Any) -> Kind | None:
    """Returns the kind of a field by its type, None if it has none."""
    if get_origin(hint) is Annotated:
        return next((mark for mark in hint.__metadata__ if isinstance(mark, KINDS)), None)
    if get_origin(hint) in (Union, types.UnionType):
        # None is an open setting, not a value of a kind of its own.
        arms = tuple(arm for arm in get_args(hint) if arm is not type(None))
        return kind_of(arms[0]) if len(arms) == 1 else None
    if hint is bool:
        return Flag()
    if get_origin(hint) is Literal:
        return Word(get_args(hint))
    if get_origin(hint) in (tuple, frozenset) and get_origin(get_args(hint)[0]) is Literal:
        return Several(Word(get_args(get_args(hint)[0])), unordered=get_origin(hint) is frozenset)
    return None


def setting_text(value: object) -> str:
    """Returns a value as text for the command line, the inverse of a Kind's ``read``; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | frozenset):
        return "+".join(map(str, sorted(value) if isinstance(value, frozenset) else value)) or "none"
    return str(value) or "none"


KEYS_OF_FRAMEWORKS = {
    "mbs": "micro_batch",
    "micro_batch_size": "micro_batch",
    "micro_bsz": "micro_batch",
    "tensor_model_parallel_size": "tp",
    "tensor_parallel": "tp",
    "pipeline_model_parallel_size": "pp",
    "pipeline_parallel": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "zero": "zero_stage",
}
"""What Megatron-LM, InternEvo and DeepSpeed call a key -> the key."""


@cache
def unpriced_keys() -> dict[str, str]:
    """Returns settings of frameworks that no key stands for, and why."""
    return tomllib.loads(Path(__file__).with_name("unpriced.toml").read_text(encoding="utf-8"))


def keys_near(key: str, settings: Settings) -> str:
    """Returns the keys to suggest for an unknown one: all of a short table, the most similar ones of a long table; of a
    framework's setting that is not priced, why."""
    reason = unpriced_keys().get(key.lower().replace("-", "_").rpartition(".")[2])
    if reason:
        return f"the table in docs/configs.md; {key} is not priced: {reason}"
    if len(settings) <= MAX_LISTED_KEYS:
        return ", ".join(settings)
    ends = {name.rpartition(".")[2]: name for name in settings}
    near = [ends.get(name, name) for name in get_close_matches(key, [*settings, *ends], n=3, cutoff=0.5)]
    likely = f", such as {' or '.join(dict.fromkeys(near))}" if near else ""
    return f"the table in docs/configs.md{likely}"


def parse_settings(text: str, settings: Settings, where: str) -> dict[str, Any]:
    """``key=value,key=value`` as values by key.

    Raises ConfigError for no keys at all, an unknown or repeated key, or a value that the key does not take.
    """
    values: dict[str, Any] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in entry.partition("="))
        if key not in settings:
            key = KEYS_OF_FRAMEWORKS.get(key.lower().replace("-", "_"), key)
        if key not in settings or not value:
            allowed = f"key=value with a key of {keys_near(key, settings)}"
            raise ConfigError(where=where, key=key, value=value, allowed=allowed)
        if key in values:
            raise ConfigError(where=where, key=key, value=value, allowed="each key once")
        values[key] = settings[key].read(value, where)
    if not values:
        allowed = f"key=value,... with keys of {keys_near('', settings)}"
        raise ConfigError(where=where, key=where.strip("-"), value=text, allowed=allowed)
    return values


def section_values(section: Section, settings: Settings) -> dict[str, Any]:
    """Returns the settings of a section of a file, by key; groups are its sub-sections. The section's own
    ``close`` refuses other keys of it.

    Raises ConfigError for a value that a key does not take, and for other keys of a group.
    """
    result: dict[str, Any] = {}
    groups = {"": section}
    for setting in settings.values():
        group, _, name = setting.key.rpartition(".")
        place = groups.setdefault(group, section.section(group) if group else section)
        if place.has(name):
            try:
                result[setting.key] = setting.kind.accept(place.values[name])
            except ValueError:
                place.fail(name, f"{setting.kind.allowed} ({setting.meaning})")
    for group, place in groups.items():
        if group:
            place.close()
    return result
