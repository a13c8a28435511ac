"""Typed access to one section of a config or hardware spec: a key is read with its type, or refused.

A section remembers the keys that were read; ``close`` refuses every other one that is not listed as harmless. So no
setting is ever ignored silently.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from spec.errors import ConfigError

Record = TypeVar("Record")
Default = TypeVar("Default", int, None)

MAX_COUNT = 2**40  # no size, count or degree of a model or plan comes near
MAX_NUMBER = sys.float_info.max  # whole numbers of a file may be longer, infinity and NaN are not below it
MOST_OF_A_FACTOR = 1e12  # no base of a rotation, scale or factor of a model comes near
MAX_LAYERS = 10_000  # a model's blocks are listed one by one


class Range(NamedTuple):
    """The believable values of a number and their unit: limits that catch a figure in another unit (GB for bytes), not
    ones that judge it. It stands beside a field's type: ``Annotated[float, Range(1e9, 1e15, "bytes/s")]``."""

    low: float
    high: float
    unit: str = ""


class Required:
    """Stands where a key has no default; None is one."""


REQUIRED = Required()


@dataclass(slots=True, kw_only=True)
class Section:
    """``values`` of the section called ``name`` (empty at top level) in the file ``where``; ``lines``
    says on which line of the file a key is assigned, where the format can tell, and ``names`` what a file calls a key that is
    read by another name."""

    where: str
    name: str
    values: Mapping[str, object]
    lines: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def fail(self, key: str, allowed: str) -> NoReturn:
        """Raises a ConfigError for ``key``; of a container it shows the kind and length only."""
        value = self.values.get(key)
        if isinstance(value, (list, tuple, dict)):
            value = f"<{type(value).__name__} of {len(value)}>"
        raise ConfigError(where=self._place(key), key=self.path(key), value=value, allowed=allowed)

    def has(self, key: str) -> bool:
        """Returns True where the key is written with something other than None."""
        self.read.add(key)
        return self.values.get(key) is not None

    def integer(
        self, key: str, default: Default | Required = REQUIRED, *, minimum: int = 1, maximum: int = MAX_COUNT
    ) -> int | Default:
        """Returns a whole number from ``minimum`` to ``maximum``; required when there is no default."""
        if not self.has(key):
            if isinstance(default, Required):
                self.fail(key, f"required: a whole number of at least {minimum}")
            return default
        value = self.values[key]
        if type(value) is not int or not minimum <= value <= maximum:
            self.fail(key, f"a whole number from {minimum} to {maximum}")
        return value

    def number(
        self, key: str, default: float | None = None, *, positive: bool = True, maximum: float = MOST_OF_A_FACTOR
    ) -> float:
        """Returns a number up to ``maximum``: above zero, or zero too if ``positive`` is False; required when there is no
        default."""
        if default is not None and not self.has(key):
            return default
        allowed = f"a number {'above 0 and up' if positive else 'from 0'} to {maximum:g}"
        value = self._finite(key, allowed)
        if not 0 <= value <= maximum or (positive and value == 0):
            self.fail(key, allowed)
        return value

    def measure(self, key: str, low: float, high: float, unit: str = "", default: float | None = None) -> float:
        """Returns a number from ``low`` to ``high``, the believable values in this unit; required when there is no default."""
        if not self.has(key) and default is not None:
            return default
        allowed = f"a number from {low:g} to {high:g} {unit}".rstrip()
        value = self._finite(key, allowed)
        if not low <= value <= high:
            self.fail(key, allowed)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or False; required when there is no default."""
        if not self.has(key) and default is not None:
            return default
        value = self.values.get(key)
        if not isinstance(value, bool):
            self.fail(key, "True or False" if self.has(key) else "required: True or False")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Returns a text that is not empty; required when there is no default."""
        if not self.has(key) and default is not None:
            return default
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            self.fail(key, "text that is not empty" if self.has(key) else "required: text")
        return value

    def texts(self, key: str, choices: Collection[str] = ()) -> tuple[str, ...]:
        """Returns a list of texts, out of ``choices`` where there are some; empty when absent."""
        value = self.values[key] if self.has(key) else []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of texts")
        if choices and not set(value) <= set(choices):
            self.fail(key, f"a list of {', '.join(choices)}")
        return tuple(value)

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Returns a text out of ``choices``, words or a StrEnum."""
        value = self.text(key, default)
        if value not in tuple(choices):
            self.fail(key, f"one of {', '.join(choices)}")
        return value

    def only(self, key: str, accepted: tuple[object, ...], why: str) -> None:
        """Raises ConfigError unless the key is absent or its value one of ``accepted``; ``why`` is the reason."""
        if key not in self.values:
            return
        self.read.add(key)
        value = self.values[key]
        if value is None or any(type(value) is type(item) and value == item for item in accepted):
            return
        shown = " or ".join(repr(item) for item in accepted)
        self.fail(key, f"{shown} only: {why}")

    def section(self, key: str) -> "Section":
        """Returns a subsection; empty when absent."""
        value = self.values[key] if self.has(key) else {}
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            self.fail(key, "a table (a dict with string keys)")
        return Section(where=self._place(key), name=self.path(key), values=value)

    def sections(self, key: str, *, named_by: str = "", maximum: int) -> "tuple[Section, ...]":
        """Returns the tables of a list of 1 to ``maximum``, named by their index, or by the text under their key ``named_by``,
        which must differ."""
        allowed = f"required: from 1 to {maximum} tables [[{self.path(key)}]]"
        value = self.values[key] if self.has(key) else []
        if not isinstance(value, list) or not 1 <= len(value) <= maximum:
            self.fail(key, allowed)
        result: list[Section] = []
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                self.fail(key, allowed)
            section = Section(where=self._place(key), name=f"{self.path(key)}[{index}]", values=item)
            if named_by:
                section.name = f"{self.path(key)}.{section.text(named_by)}"
            if section.name in [other.name for other in result]:
                section.fail(named_by, "a different name for each table")
            result.append(section)
        return tuple(result)

    def record(self, of: type[Record], **given: Any) -> Record:
        """Returns a dataclass whose fields are ``given`` or stand here under their names: flags, texts, words of an Enum,
        whole numbers (from 0 where that is their default, else from 1) and numbers above zero; those without a
        default are required. A Range or a tuple of words beside a type limits the values."""
        hints = get_type_hints(of, include_extras=True)
        for one in fields(of):  # type: ignore[arg-type]
            if one.name not in given:
                given[one.name] = self._field(one.name, hints[one.name], one.default)
        return of(**given)

    def optional_record(self, key: str, of: type[Record]) -> Record | None:
        """Returns the table ``key`` as a dataclass, None where it is absent; the table may have no other keys."""
        if not self.has(key):
            return None
        table = self.section(key)
        result = table.record(of)
        table.close()
        return result

    def _field(self, key: str, hint: Any, default: Any) -> object:
        if default is not MISSING and not self.has(key):
            return default
        limits: Any = ()
        if get_origin(hint) is Annotated:
            hint, limits = get_args(hint)
        # ``int | None`` is an optional int, ``tuple[str, ...]`` several texts: the first arm that is a type.
        kind = next(arm for arm in (*get_args(hint), hint) if arm is not type(None))
        if kind is bool:
            return self.flag(key)
        if kind is float:
            return self.measure(key, *limits) if limits else self.number(key)
        if kind is str:
            if get_origin(hint) is tuple:
                return self.texts(key, limits)
            return self.choice(key, limits) if limits else self.text(key)
        if issubclass(kind, StrEnum):
            return kind(self.choice(key, kind))
        minimum, maximum = (int(limits.low), int(limits.high)) if limits else (0 if default == 0 else 1, MAX_COUNT)
        return self.integer(key, minimum=minimum, maximum=maximum)

    def close(self, harmless: Collection[str] = ()) -> None:
        """Raises ConfigError for a key that was neither read nor is ``harmless``."""
        for key in self.values:
            if key not in self.read and key not in harmless:
                self.fail(key, f"unknown key, which might change the answer; known: {', '.join(sorted(self.read))}")

    def path(self, key: str) -> str:
        """Returns the dotted path of a key of this section in its file."""
        key = self.names.get(key, key)
        return f"{self.name}.{key}" if self.name else key

    def _finite(self, key: str, allowed: str) -> float:
        if not self.has(key):
            self.fail(key, f"required: {allowed}")
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MAX_NUMBER:
            self.fail(key, allowed)
        return float(value)

    def _place(self, key: str) -> str:
        return f"{self.where}:{self.lines[key]}" if key in self.lines else self.where
