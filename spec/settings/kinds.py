"""What a setting may be: how its text is read, which values it takes, and how that is said in an error.

A dataclass field says it by its type (bool, Literal) or beside it (``Annotated[int, Whole(least=0)]``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_WHOLE = 2**40  # no size, count or degree of a model, job or plan comes near
MAX_DIGITS = 20  # of a typed number, underscores included


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
    most: int = MAX_WHOLE

    @property
    def allowed(self) -> str:
        """Its range."""
        if self.most < MAX_WHOLE:
            return f"a whole number from {self.least} to {self.most}"
        return f"a whole number of at least {self.least}"

    def read(self, text: str) -> int:
        """Plain digits."""
        digits = text.replace("_", "")
        if not (digits.isascii() and digits.isdecimal() and len(text) <= MAX_DIGITS):
            raise ValueError(text)
        return self.accept(int(digits))

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
        """As Python writes floats."""
        if not text.isascii() or len(text) > MAX_DIGITS:
            raise ValueError(text)
        return self.accept(float(text))

    def accept(self, value: object) -> float:
        """A number within the range, which infinity and NaN are not."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        if not self.least <= value <= self.most:
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
class Words:
    """Several of some words, in the order of the table; typed joined by +, "none" for none of them."""

    words: Sequence[str]

    @property
    def allowed(self) -> str:
        """All of them."""
        return f"{', '.join(self.words)}, joined by +"

    def read(self, text: str) -> tuple[str, ...]:
        """Words between + signs."""
        return self.accept([] if text == "none" else [part.strip() for part in text.split("+")])

    def accept(self, value: object) -> tuple[str, ...]:
        """A list of known words, or one text of them."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, list | tuple | frozenset) or not all(one in self.words for one in value):
            raise ValueError(value)
        return tuple(word for word in self.words if word in value)


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
