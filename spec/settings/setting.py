"""A table of settings, read off a dataclass: key, kind, meaning and default of every field that says a kind.

    tp: Annotated[int | None, Whole(), Column()] = None
    \"\"\"Tensor-parallel ranks.\"\"\"

A bool says its own kind, a Literal its words. Fields that are dataclasses are groups, and their keys
have the group's name before a dot. Other fields are not settings.
"""

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spec.errors import ConfigError
from spec.section import Section
from spec.settings.attribute_docstrings import attribute_docstrings
from spec.settings.kinds import Flag, Kind, Number, Text, Whole, Word, Words

KINDS = (Flag, Number, Text, Whole, Word, Words)


@dataclass(frozen=True, slots=True)
class Column:
    """Beside a kind: plans differ in it as numbers of one table, instead of having a table for each value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key that a user may set; ``default`` is what holds where nobody does."""

    key: str
    kind: Kind
    meaning: str
    default: object
    column: bool = False

    def read(self, text: str, where: str) -> object:
        """The value of what was typed; ConfigError for what the key does not take."""
        try:
            return self.kind.read(text)
        except ValueError as error:
            raise self._refused(text, where) from error

    def accept(self, value: object, where: str) -> object:
        """The value of what a file or a caller says; ConfigError for what the key does not take."""
        try:
            return self.kind.accept(value)
        except ValueError as error:
            raise self._refused(value, where) from error

    def _refused(self, value: object, where: str) -> ConfigError:
        shown = f"<{type(value).__name__}>" if isinstance(value, list | tuple | dict) else value
        allowed = f"{self.kind.allowed} ({self.meaning})"
        return ConfigError(where=where, key=self.key, value=shown, allowed=allowed)


Settings = Mapping[str, Setting]


def settings_of(of: type, group: str = "") -> Settings:
    """The settings among the fields of a dataclass and of its groups, by key."""
    hints = get_type_hints(of, include_extras=True)
    meanings = attribute_docstrings(of)
    found: dict[str, Setting] = {}
    for one in fields(of):
        key = f"{group}.{one.name}" if group else one.name
        hint = hints[one.name]
        if isinstance(hint, type) and is_dataclass(hint):
            found |= settings_of(hint, key)
        kind = kind_of(hint)
        if kind is not None:
            found[key] = Setting(
                key=key,
                kind=kind,
                meaning=meanings.get(one.name, ""),
                default=None if one.default is MISSING else one.default,
                column=any(isinstance(mark, Column) for mark in get_args(hint)[1:]),
            )
    return found


def kind_of(hint: Any) -> Kind | None:
    """The kind that a field's type says, or None where it says none."""
    if get_origin(hint) is Annotated:
        return next((mark for mark in hint.__metadata__ if isinstance(mark, KINDS)), None)
    if get_origin(hint) in (Union, types.UnionType):
        said = [arm for arm in get_args(hint) if arm is not type(None)]
        return kind_of(said[0]) if len(said) == 1 else None
    if hint is bool:
        return Flag()
    if get_origin(hint) is Literal:
        return Word(get_args(hint))
    if get_origin(hint) in (tuple, frozenset) and get_origin(get_args(hint)[0]) is Literal:
        return Words(get_args(get_args(hint)[0]))
    return None


def typed(value: object) -> str:
    """A setting's value as it is typed, "" for one that is not said: what a Kind's ``read`` takes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | frozenset):
        return "+".join(sorted(value) if isinstance(value, frozenset) else value) or "none"
    return str(value) or "none"


def typed_values(text: str, settings: Settings, where: str) -> dict[str, Any]:
    """``key=value,key=value`` as values by key.

    Raises ConfigError for no keys at all, an unknown or repeated key, or a value that the key does not take.
    """
    keys = ", ".join(settings)
    values: dict[str, Any] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in entry.partition("="))
        if key not in settings or not value:
            raise ConfigError(where=where, key=key, value=value, allowed=f"key=value with a key of {keys}")
        if key in values:
            raise ConfigError(where=where, key=key, value=value, allowed="each key once")
        values[key] = settings[key].read(value, where)
    if not values:
        raise ConfigError(
            where=where, key=where.strip("-"), value=text, allowed=f"key=value,... with keys of {keys}"
        )
    return values


def section_values(section: Section, settings: Iterable[Setting]) -> dict[str, Any]:
    """What a section of a file says of the settings, by key; the section's own ``close`` refuses the rest."""
    found: dict[str, Any] = {}
    for setting in settings:
        if section.has(setting.key):
            try:
                found[setting.key] = setting.kind.accept(section.values[setting.key])
            except ValueError:
                section.fail(setting.key, f"{setting.kind.allowed} ({setting.meaning})")
    return found
