"""The text of a configuration file, and a TOML file as its top section."""

import os
import tomllib
from pathlib import Path

from spec.errors import ConfigError
from spec.section import Section

MAX_FILE_BYTES = 1_000_000


def read_text(path: Path, where: str) -> str:
    """A config file's text; raises ConfigError when it is missing, too large or not UTF-8."""
    if not os.path.isfile(path):
        raise ConfigError(where=where, key="config", value=path.name, allowed="an existing file")
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            where=where, key="config", value=path.name, allowed=f"a readable file ({error.strerror})"
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            where=where, key="config", value=path.name, allowed=f"a file of at most {MAX_FILE_BYTES} bytes"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(where=where, key="config", value=path.name, allowed="a UTF-8 text file") from error


def read_toml(path: Path) -> Section:
    """The top section of a TOML file; raises ConfigError as read_text, and for what is no TOML."""
    where = str(path)
    try:
        values = tomllib.loads(read_text(path, where))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(where=where, key="config", value=path.name, allowed=f"TOML ({error})") from error
    return Section(where=where, name="", values=values)
