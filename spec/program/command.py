"""Command lines: how options are parsed and how every command ends.

An error is one line and exit status 2, Ctrl-C is 130. An answer that cannot be printed (full disk, closed pipe as with
``head``) is an error too. Bugs of our own keep their traceback.
"""

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from spec.errors import CommandLineError, UserError
from spec.program.columns import FILLER, wrap
from spec.program.kinds import MOST_BYTES, MOST_STEP_TOKENS, Sequences, decimal_number, shortened, whole_number

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


VERSION = "0.1.0"
DISTRIBUTION = "parallel-strategy-solver"
VERSION_LINE = f"{DISTRIBUTION} {VERSION}"


WRONG_INPUT = 2
INTERRUPTED = 130

MOST_COMPLAINT = 1200
"""Characters of an error: it may quote a name of any length."""

# What writing to stdout raises without naming a file: no reader, no room, no quota, a broken or closed device.
OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


LANGUAGES = ("en", "zh")
LANGUAGE_VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
"""The first that is set names the language, as in gettext."""


def in_language(arguments: Sequence[str]) -> Callable[[str], str]:
    """Returns what says an English line in the language of --lang among the arguments, or of the environment."""
    named = re.findall(r"(?<!\S)--lang[= ](\S+)", " ".join(arguments))
    named += [value for name in LANGUAGE_VARIABLES if (value := os.environ.get(name))]
    if not named or not named[0].lower().startswith("zh"):
        return str
    from spec.program.translation import chinese

    return chinese()


def exit_status(
    work: Callable[[], int],
    *,
    arguments: Sequence[str] = (),
    interrupted: Callable[[], str] = lambda: "interrupted",
    speaks: Callable[[UserError], bool] = lambda _: True,
) -> int:
    """Returns the exit status of a command whose body is ``work``; an error is printed to stderr as one line,
    in the language that its ``arguments`` name.

    ``interrupted`` returns the line to print after Ctrl-C ("" for none), ``speaks`` whether this process prints an error:
    of several ranks one does.
    """
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are escaped instead of ending the command.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    try:
        if sys.stdout is None:
            print_error("error: stdout is closed: there is nowhere to print the answer")
            return WRONG_INPUT
        try:
            status = work()
        except SystemExit as ended:
            # argparse ends --help so, with a status of its own.
            if not isinstance(ended.code, int):
                raise
            status = ended.code
        sys.stdout.flush()
    except UserError as error:
        if speaks(error):
            print_error(in_language(arguments)(f"error: {error}"))
        return WRONG_INPUT
    except KeyboardInterrupt:
        if line := interrupted():
            print_error(line)
        return INTERRUPTED
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS or error.filename is not None:
            raise
        _forget_stdout()
        print_error(f"error: stdout: cannot be written: {error.strerror}")
        return WRONG_INPUT
    except MemoryError:
        print_error(NO_MEMORY)
        return WRONG_INPUT
    return status


NO_MEMORY = "error: this machine has too little memory left, or ulimit -v allows too little"


def print_error(text: str) -> None:
    """Prints a text to stderr as one line, shortened if it is very long, and wrapped at the width of a terminal; does
    nothing if stderr cannot be written."""
    if sys.stderr is None:
        return
    line = " ".join(text.split())
    if len(line) > MOST_COMPLAINT:
        line = f"{line[: MOST_COMPLAINT // 2]} ... {line[-MAX_QUOTED // 2 :]}"
    if sys.stderr.isatty():
        line = "\n".join(wrap(line, get_terminal_size().columns, further="  "))
    try:
        print(line.replace(FILLER, ""), file=sys.stderr, flush=True)
    except OSError:
        _forget(sys.stderr.fileno())


def quiet_interrupts() -> None:
    """Makes Ctrl-C outside of ``exit_status`` (while modules are imported) one line and status 130 too."""
    sys.excepthook = _quiet_interrupt


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Defers Ctrl-C to the end of the block. Needed around imports of torch, whose C code swallows an interrupt and leaves
    numpy half imported."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet_interrupt(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, MemoryError):
        print_error(NO_MEMORY)
        os._exit(WRONG_INPUT)
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    print_error("interrupted")
    os._exit(INTERRUPTED)


def _forget_stdout() -> None:
    """Redirects stdout to /dev/null: flushing its buffer at exit would fail again, with a traceback."""
    _forget(sys.stdout.fileno())


def _forget(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


Item = TypeVar("Item")

MAX_QUOTED = 400
"""Characters of a message: argparse quotes arguments of any length."""


LONGEST_NAME_BYTES, LONGEST_PATH_BYTES = 255, 4095
"""Of Linux' file systems (NAME_MAX, PATH_MAX)."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that raises CommandLineError; options must be spelled in full, and a Path must be possible. ``version`` adds an option that prints it."""

    def __init__(self, *arguments: object, version: bool = False, **settings: object) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})  # type: ignore[arg-type]
        self.register("type", Path, possible_path)
        if version:
            self.add_argument("--version", action="version", version=VERSION_LINE, help="print the version")

    def error(self, message: str) -> NoReturn:
        """Raises CommandLineError instead of printing the usage."""
        shown = message if len(message) <= MAX_QUOTED else message[: MAX_QUOTED - 3] + "..."
        raise CommandLineError(f"{self.prog}: {shown} (see --help)")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Prints like argparse, but an error while writing the help is not ignored."""
        if message:
            (file or sys.stderr).write(message)

    def _get_value(self, action: argparse.Action, arg_string: str) -> object:
        """Returns the parsed argument like argparse, but with the message of a ValueError of the parser."""
        read = self._registry_get("type", action.type, action.type)
        try:
            return read(arg_string)
        except ValueError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> object:
        """Returns the parsed arguments like argparse, which crashes on ``--flag=--``: it drops the ``--``."""
        if arg_strings == ["--"] and action.option_strings and action.nargs is None:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)


def possible_path(text: str) -> Path:
    """Returns, for argparse, a path that a file system can hold; asking whether a longer one exists is an error of its own."""
    name = os.fsencode(text)
    if not name or len(name) > LONGEST_PATH_BYTES:
        raise ValueError(f"{shortened(text)} is no path")
    if any(len(part) > LONGEST_NAME_BYTES for part in name.split(b"/")):
        raise ValueError(f"{shortened(text)} has a part longer than {LONGEST_NAME_BYTES} bytes")
    return Path(text)


def whole(minimum: int, maximum: int) -> Callable[[str], int]:
    """Returns a reader for argparse of a whole number from ``minimum`` to ``maximum``."""
    return partial(whole_number, minimum=minimum, maximum=maximum)


BATCH_SCALES = {"k": 10**3, "m": 10**6, "ki": 1 << 10, "mi": 1 << 20}


def batch_tokens(text: str, *, minimum: int, maximum: int) -> int:
    """Returns, for argparse, a whole number of tokens, in units such as 4M (millions) or 4Mi (2^20) too."""
    match = re.fullmatch(r"([0-9]{1,16})([km]i?)", text.strip().lower())
    plain = text if match is None else str(int(match.group(1)) * BATCH_SCALES[match.group(2)])
    return whole_number(plain, minimum=minimum, maximum=maximum)


def step_tokens(text: str) -> int:
    """Returns, for argparse, the tokens of a step, or Sequences for a number such as 512seqs."""
    sequences = re.fullmatch(r"([0-9]{1,16}[km]?i?) ?seq(uence)?s?", text.strip().lower())
    tokens = batch_tokens(text if sequences is None else sequences.group(1), minimum=1, maximum=MOST_STEP_TOKENS)
    return tokens if sequences is None else Sequences(tokens)


def decimal(minimum: float, maximum: float) -> Callable[[str], float]:
    """Returns a reader for argparse of a decimal number from ``minimum`` to ``maximum``."""
    return partial(decimal_number, minimum=minimum, maximum=maximum)


def comma_separated(one: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    """Returns a reader for argparse of values with commas between them, each read by ``one`` and none twice."""

    def read(text: str) -> tuple[Item, ...]:
        values = tuple(one(part.strip()) for part in text.split(","))
        if len(set(values)) < len(values):
            raise ValueError(f"{shortened(text)} names a value twice")
        return values

    return read


def non_empty(text: str) -> str:
    """Returns, for argparse, any text but none."""
    if not text:
        raise ValueError("an empty name")
    return text


MOST_TOKENS = 1e18
SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def token_count(text: str) -> float:
    """Returns, for argparse, a number of tokens that may end with K, M, B (or G) or T."""
    scale = SCALES.get(text[-1:].lower(), 1.0)
    try:
        number = decimal_number(text[:-1] if scale > 1 else text, minimum=1.0 / scale, maximum=MOST_TOKENS / scale)
    except ValueError as error:
        raise ValueError(f"{error} (15T, 300B, 2e12)") from None
    return number * scale


BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def byte_count(text: str) -> int:
    """Returns, for argparse, the bytes of ``64MiB``, ``1G``, ``4096``."""
    match = re.fullmatch(r"([0-9]{1,16})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    size = int(match.group(1)) * BYTE_UNITS[match.group(2)] if match else 0
    if not 0 < size <= MOST_BYTES:
        raise ValueError(f"{text[:40]!r} is no size (allowed: 4096, 64KiB, 16MiB, 1GiB)")
    return size
