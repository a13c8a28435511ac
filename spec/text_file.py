"""The bytes of a regular file up to a size, the text of a config, and a TOML file as its top section.

Pipes and devices are never opened: without a writer they would wait for ever.
"""

import os
import stat
import tomllib
from pathlib import Path

from spec.errors import ConfigError
from spec.section import Section

MAX_FILE_BYTES = 1_000_000
MOST_MEASURED_BYTES = 2**28
"""Of a file of measurements: a few million rows."""


class UnreadableFileError(Exception):
    """Why a file was not read, in words that fit behind its name."""


def read_bytes(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The content of a regular file of at most ``most_bytes``; UnreadableFileError for anything else."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableFileError("is no regular file")
        if found.st_size > most_bytes:
            raise UnreadableFileError(f"{found.st_size:,} bytes; at most {most_bytes:,} are read")
        with open(path, "rb") as handle:
            return handle.read(most_bytes)
    except FileNotFoundError as error:
        raise UnreadableFileError("no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is none"
        raise UnreadableFileError(f"cannot be read: {reason}") from error


def read_file_text(path: str | os.PathLike[str], most_bytes: int) -> str:
    """The text of a file of measurements or another program's: UTF-8, with or without a mark in front.

    Raises UnreadableFileError as read_bytes, and for what is no text.
    """
    try:
        return read_bytes(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFileError("cannot be read: is no UTF-8 text") from error


def read_text(path: Path, where: str) -> str:
    """A config file's text; raises ConfigError when it is missing, too large or not UTF-8."""
    try:
        return read_file_text(path, MAX_FILE_BYTES)
    except UnreadableFileError as error:
        raise ConfigError(
            where=where, key="config", value=path.name, allowed=f"an existing text file ({error})"
        ) from error


def read_toml(path: Path) -> Section:
    """The top section of a TOML file; raises ConfigError as read_text, and for what is no TOML."""
    where = str(path)
    try:
        values = tomllib.loads(read_text(path, where))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(where=where, key="config", value=path.name, allowed=f"TOML ({error})") from error
    return Section(where=where, name="", values=values)
