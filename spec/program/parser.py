"""Reading a command line: every complaint is one line and exit status 2."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from spec.errors import CommandLineError
from spec.program.numbers import decimal_number, shortened, whole_number
from spec.program.version import VERSION_LINE

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

Item = TypeVar("Item")

MOST_SAID = 400
"""Letters of a complaint: argparse quotes what was typed, however long."""


LONGEST_NAME_BYTES, LONGEST_PATH_BYTES = 255, 4095
"""Of Linux' file systems (NAME_MAX, PATH_MAX)."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints are CommandLineErrors, printed like every other; options are named in full, and a
    Path is one that can exist."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})  # type: ignore[arg-type]
        self.register("type", Path, path)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        shown = message if len(message) <= MOST_SAID else message[: MOST_SAID - 3] + "..."
        raise CommandLineError(f"{self.prog}: {shown} (see --help)")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """As argparse, except that help which cannot be printed is an error and no success."""
        if message:
            (file or sys.stderr).write(message)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        """argparse drops the ``--`` of ``--flag=--`` and then finds no value to unpack."""
        if arg_strings == ["--"] and action.option_strings and action.nargs is None:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)


def add_version(parser: argparse.ArgumentParser) -> None:
    """``--version``, which prints one line and ends."""
    parser.add_argument("--version", action="version", version=VERSION_LINE, help="say the version")


def path(text: str) -> Path:
    """For argparse: a path that a file system can hold; asking whether a longer one exists is an error of its own."""
    name = os.fsencode(text)
    if not name or len(name) > LONGEST_PATH_BYTES:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is no path")
    if any(len(part) > LONGEST_NAME_BYTES for part in name.split(b"/")):
        raise argparse.ArgumentTypeError(
            f"{shortened(text)} has a part longer than {LONGEST_NAME_BYTES} bytes"
        )
    return Path(text)


def whole(minimum: int, maximum: int) -> Callable[[str], int]:
    """For argparse: a whole number from ``minimum`` to ``maximum``."""

    def read(text: str) -> int:
        try:
            return whole_number(text, minimum=minimum, maximum=maximum)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def decimal(minimum: float, maximum: float) -> Callable[[str], float]:
    """For argparse: a decimal number from ``minimum`` to ``maximum``."""

    def read(text: str) -> float:
        try:
            return decimal_number(text, minimum=minimum, maximum=maximum)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def listed(one: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """For argparse: values with commas between them, each read by ``one`` and none twice."""

    def read(text: str) -> tuple[Item, ...]:
        values = tuple(one(part.strip()) for part in text.split(","))
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"{shortened(text)} names a value twice")
        return values

    return read


def word(text: str) -> str:
    """For argparse: any text but none."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name")
    return text


SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def scaled(minimum: float, maximum: float) -> Callable[[str], float]:
    """For argparse: a number that may end with K, M, B (or G) or T."""

    def read(text: str) -> float:
        scale = SCALES.get(text[-1:].lower(), 1.0)
        try:
            number = decimal_number(
                text[:-1] if scale > 1 else text, minimum=minimum / scale, maximum=maximum / scale
            )
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error} (15T, 300B, 2e12)") from None
        return number * scale

    return read
