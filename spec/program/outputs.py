"""The files a command is to write, checked before it does any work."""

import os
from collections.abc import Mapping
from pathlib import Path

from spec.errors import ConfigError

Named = Mapping[str, Path | None]
"""Option -> path; None where it was not given."""


def check_outputs(files: Named, folders: Named, inputs: Named) -> None:
    """Raise ConfigError for a result file whose folder does not exist or cannot be written, that is no regular file, or
    that is the same file as an input or another result, through links too; and for a result folder that is a file."""
    seen = {option: path for option, path in inputs.items() if path is not None and path.exists()}
    for option, path in files.items():
        if path is None:
            continue
        folder = path.resolve().parent
        if (path.exists() and not path.is_file()) or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(
                where=option,
                key="output path",
                value=str(path),
                allowed="a file in a folder that exists and can be written",
            )
        for other, taken in seen.items():
            if _same(path, taken):
                raise ConfigError(
                    where=option,
                    key="output path",
                    value=str(path),
                    allowed=f"another file than that of {other}",
                )
        seen[option] = path
    for option, path in folders.items():
        if path is not None and path.exists() and not path.is_dir():
            raise ConfigError(where=option, key="output folder", value=str(path), allowed="a folder")


def _same(one: Path, other: Path) -> bool:
    """Whether both name one file, that is there or that would be."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
