"""Reading a command line: every complaint is one line and exit status 2."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from spec.errors import CommandLineError
from spec.program.numbers import decimal_number, whole_number

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

MOST_SAID = 400
"""Letters of a complaint: argparse quotes what was typed, however long."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints are CommandLineErrors, printed like every other; options are named in full."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})  # type: ignore[arg-type]

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
