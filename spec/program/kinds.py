"""What a setting may be: how its text is read, which values it takes, and how that is said in an error.

A dataclass field says it by its type (bool, Literal) or beside it (``Annotated[int, Whole(least=0)]``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spec.program.limits import MOST_COUNT
from spec.program.numbers import decimal_number, whole_number


class Kind(Protocol):
    """One kind of value. Both readers raise ValueError for what is not of the kind."""

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        ...

    def read(self, text: str) -> object:
        """The value of what was typed."""
        ...

    def accept(self, value: object) -> object:
        """The value of what a file says, in the file's own types."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number; digits may be grouped with underscores."""

    least: int = 1
    most: int = MOST_COUNT

    @property
    def allowed(self) -> str:
        """Its range."""
        return f"a whole number from {self.least:,} to {self.most:,}"

    def read(self, text: str) -> int:
        """Plain digits."""
        return whole_number(text, minimum=self.least, maximum=self.most)

    def accept(self, value: object) -> int:
        """An int within the range; a bool is none."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A finite number from ``least`` to ``most``."""

    least: float
    most: float

    @property
    def allowed(self) -> str:
        """Its range."""
        return f"a number from {self.least:g} to {self.most:g}"

    def read(self, text: str) -> float:
        """Plain decimal digits, with an exponent or without."""
        return decimal_number(text, minimum=self.least, maximum=self.most)

    def accept(self, value: object) -> float:
        """A number within the range, which infinity and NaN are not."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        if not self.least <= value <= self.most:
            raise ValueError(value)
        return float(value)


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a whole from 0 up to, but not, all of it: a number, or a text with a per cent sign."""

    @property
    def allowed(self) -> str:
        """Both ways of writing it."""
        return "a share below the whole, such as 10% or 0.1"

    def read(self, text: str) -> float:
        """``10%`` or ``0.1``."""
        per_cent = text.endswith("%")
        number = decimal_number(text.removesuffix("%").rstrip(), minimum=0.0, maximum=100.0)
        return self.accept(number / 100.0 if per_cent else number)

    def accept(self, value: object) -> float:
        """A number from 0 up to 1, or such a text."""
        if isinstance(value, str):
            return self.read(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(value)
        return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """True or false."""

    @property
    def allowed(self) -> str:
        """Both."""
        return "true or false"

    def read(self, text: str) -> bool:
        """In small letters or as Python writes them."""
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    def accept(self, value: object) -> bool:
        """A bool."""
        if not isinstance(value, bool):
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class Word:
    """One of some words; the empty one, where there is such, is typed as "none"."""

    words: Sequence[str]

    @property
    def allowed(self) -> str:
        """All of them."""
        return ", ".join(word or "none" for word in self.words)

    def read(self, text: str) -> str:
        """The word itself."""
        return self.accept(text)

    def accept(self, value: object) -> str:
        """A str among the words."""
        if value == "none" and "none" not in self.words:
            value = ""
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class Several:
    """Several values of one kind, each once; typed joined by +, "none" for none of them. They are a tuple in the
    order of their words, or as given where the kind has none, or with ``unordered`` a frozenset."""

    of: Kind
    unordered: bool = False
    least: int = 0

    @property
    def allowed(self) -> str:
        """What each may be, and of how many at least."""
        return f"{self.of.allowed}, joined by +{f', at least {self.least}' if self.least else ''}"

    def read(self, text: str) -> tuple[object, ...] | frozenset[object]:
        """Values between + signs."""
        return self._all([] if text == "none" else [self.of.read(part.strip()) for part in text.split("+")])

    def accept(self, value: object) -> tuple[object, ...] | frozenset[object]:
        """A list of values, or one text of them."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, list | tuple | frozenset):
            raise ValueError(value)
        return self._all([self.of.accept(one) for one in value])

    def _all(self, values: list[object]) -> tuple[object, ...] | frozenset[object]:
        words = self.of.words if isinstance(self.of, Word) else values
        ordered = dict.fromkeys(one for one in words if one in values)
        if len(ordered) < self.least:
            raise ValueError(values)
        return frozenset(ordered) if self.unordered else tuple(ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Any text that is not empty."""

    means: str

    @property
    def allowed(self) -> str:
        """What it says."""
        return self.means

    def read(self, text: str) -> str:
        """The text itself."""
        return self.accept(text)

    def accept(self, value: object) -> str:
        """A str."""
        if not isinstance(value, str) or not value.strip():
            raise ValueError(value)
        return value
