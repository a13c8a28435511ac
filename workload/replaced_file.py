"""Write a text file whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from spec.errors import ExportError


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """A text file (UTF-8, line feeds) that takes the place of ``path`` when the block ends well.

    Until then it has another name in the same folder; an error or a killed run leaves the old file
    as it was. Raises ExportError when the folder or the file cannot be written.
    """
    target = Path(path)
    if target.is_dir():
        raise ExportError(f"{target}: is a folder; name a file to write")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    except OSError as error:
        raise ExportError(f"{target}: cannot be written: {error.strerror}") from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as handle:
            yield handle
        # mkstemp makes the file private; a result is as readable as any file the user makes.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    except OSError as error:
        raise ExportError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
