"""Write a file whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from spec.errors import ExportError


@contextmanager
def replaced_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty file beside ``path``, of the same ending, that takes its place when the block ends well.

    An error or a killed run leaves the old file as it was; of a symbolic link the file it points to is
    replaced. Raises ExportError when the folder or the file cannot be written, or is a pipe or a device.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise ExportError(f"{path}: is a folder; name a file to write")
        if target.exists() and not target.is_file():
            raise ExportError(f"{path}: is a pipe or a device; name a file to write")
        descriptor, name = tempfile.mkstemp(
            prefix=f".{target.stem[:40]}.", suffix=target.suffix, dir=target.parent
        )
        os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ExportError(f"{path}: cannot be written: {reason}") from error
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes the file private; a result is as readable as any file the user makes.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """``replaced_path`` opened as text: UTF-8 with line feeds."""
    with replaced_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as handle:
        yield handle
