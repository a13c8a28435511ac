"""Kinds of settings: how their text is parsed, which values they allow, and the words for these in an error.

The kind of a dataclass field is its type (bool, Literal) or stands next to it (``Annotated[int, Whole(least=0)]``).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# The largest sensible number for each kind of field. Each is well beyond anything built or published, and small enough
# that products of them fit 64-bit integers.
MOST_GPUS = 2**24
"""The largest clusters built have some 2**18."""

MOST_SEQUENCE_TOKENS = 2**30
"""Published contexts end at some 2**27 tokens."""

MOST_STEP_TOKENS = 2**40
"""Published global batches end at some 2**27 tokens."""


class Sequences(int):
    """A number of sequences where tokens are expected: of as many tokens each as a sequence turns out to have."""

    def __repr__(self) -> str:
        return f"{int(self)}seqs"


MOST_LAYERS = 10_000
"""Blocks of a model; they are listed one by one."""

MOST_COUNT = 2**40
"""Widths, heads, experts, elements of a bucket."""

MOST_BYTES = 2**50
"""One array, or one message."""

MOST_EPOCHS = 100_000
"""Iterations that a workload file repeats."""

MOST_SHOWN = 100_000
"""Plans that are printed or ranked."""

MOST_MINUTES = 1e6
"""Two years."""


# Numbers on command lines and in files: ASCII digits, within the limits above.
#
# ``int`` and ``float`` also take digits of other scripts, nan, inf and numbers of any length. Commas separate values:
# ``64,128`` are two.

MOST_DIGITS = 30
_WHOLE = re.compile(r"[0-9]+(?:_[0-9]+)*")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


def whole_number(text: str, *, minimum: int, maximum: int) -> int:
    """``4096`` or ``4_096``; ValueError, worded for the user, for anything else or outside the bounds."""
    digits = text.replace("_", "")
    if _WHOLE.fullmatch(text) is None or len(digits) > MOST_DIGITS:
        hint = " (no commas)" if "," in text else ""
        raise ValueError(f"{shortened(text)} is not a whole number{hint} from {minimum:,} to {maximum:,}")
    value = int(digits)
    if not minimum <= value <= maximum:
        raise ValueError(f"{shortened(text)} is not a whole number from {minimum:,} to {maximum:,}")
    return value


def decimal_number(text: str, *, minimum: float, maximum: float) -> float:
    """``0.5`` or ``1e-3``; ValueError, worded for the user, for anything else or outside the bounds."""
    value = plain_number(text)
    if not minimum <= value <= maximum:
        raise ValueError(f"{shortened(text)} is not a number from {minimum:g} to {maximum:g}")
    return value


def plain_number(word: str) -> float:
    """The number that ``word`` is; nan for anything that is no finite decimal number."""
    if _DECIMAL.fullmatch(word) is None:
        return math.nan
    value = float(word)
    return value if math.isfinite(value) else math.nan


def shortened(text: str) -> str:
    """Returns the text in quotes, shortened for an error."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


class Kind(Protocol):
    """One kind of value. Both readers raise ValueError for what is not of the kind."""

    @property
    def allowed(self) -> str:
        """Returns the allowed values in words."""
        ...

    def read(self, text: str) -> object:
        """Returns the value of command-line text."""
        ...

    def accept(self, value: object) -> object:
        """Returns the value that a file or caller gives in types of its own."""
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
class Percentage:
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
    """One of some words; the empty word, if it is one of them, is written "none"."""

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
    """Several values of one kind without duplicates, on a command line joined by + ("none" for no value): a tuple, sorted as
    the words of the kind if it has words, or with ``unordered`` a frozenset."""

    of: Kind
    unordered: bool = False
    least: int = 0

    @property
    def allowed(self) -> str:
        """The values of each, and the least number of them."""
        return f"{self.of.allowed}, joined by +{f', at least {self.least}' if self.least else ''}"

    def read(self, text: str) -> tuple[object, ...] | frozenset[object]:
        """Values between + signs."""
        return self.accept([] if text == "none" else [self.of.read(part.strip()) for part in text.split("+")])

    def accept(self, value: object) -> tuple[object, ...] | frozenset[object]:
        """A list of values, or one text of them."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, list | tuple | frozenset):
            raise ValueError(value)
        values = [self.of.accept(one) for one in value]
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
        """Its meaning."""
        return self.means

    def read(self, text: str) -> str:
        """The text itself."""
        return self.accept(text)

    def accept(self, value: object) -> str:
        """A str."""
        if not isinstance(value, str) or not value.strip():
            raise ValueError(value)
        return value
