"""Files: reading with a size limit, atomic writes, and the place of shipped files.

Pipes and devices are never opened: without a writer, reading would block for ever. Shipped files (configs/, prof_data/)
are at the top of a checkout, and inside the package if it is installed (setup.py maps them there).
"""

import errno
import os
import os.path
import shutil
import stat
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from spec.errors import ConfigError, ExportError
from spec.names import known_name
from spec.section import Section

MAX_FILE_BYTES = 1_000_000
MOST_MEASURED_BYTES = 2**28
"""Of a file of measurements: a few million rows."""


class UnreadableFileError(Exception):
    """The reason why a file was not read, in words that fit behind its name."""


def read_bytes(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The content of a regular file of at most ``most_bytes``; UnreadableFileError for anything else."""
    try:
        result = os.stat(path)
        if not stat.S_ISREG(result.st_mode):
            raise UnreadableFileError("is no regular file")
        if result.st_size > most_bytes:
            raise UnreadableFileError(f"{result.st_size:,} bytes; at most {most_bytes:,} are read")
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
        allowed = f"an existing text file ({error})"
        raise ConfigError(where=where, key="config", value=path.name, allowed=allowed) from error


def read_toml(path: Path) -> Section:
    """The top section of a TOML file; raises ConfigError as read_text, and for what is no TOML."""
    where = str(path)
    try:
        values = tomllib.loads(read_text(path, where))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(where=where, key="config", value=path.name, allowed=f"TOML ({error})") from error
    return Section(where=where, name="", values=values)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
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
        descriptor, name = tempfile.mkstemp(prefix=f".{target.stem[:40]}.", suffix=target.suffix, dir=target.parent)
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
def atomic_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """``atomic_path`` opened as text: UTF-8 with line feeds."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as handle:
        yield handle


@contextmanager
def folder_of_results(folder: Path) -> Iterator[None]:
    """Makes a folder for results and those above it. One that was not there is gone again, with all in it, when the block
    fails; raises ExportError where it cannot be made."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{folder}: cannot be made: {error.strerror}") from error
    try:
        yield
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


CONFIGS = "configs"
INSTALLED = "shipped"


def shipped_folder() -> Path:
    """The folder that holds configs/ and prof_data/."""
    package = Path(str(resources.files("spec")))
    installed = package / INSTALLED
    return installed if os.path.isdir(installed) else package.parent


def shipped_config(path: Path) -> Path:
    """``path`` where it is there; else, for a relative one, the shipped file of that path
    (configs/70B_llama3.py) or, without a folder, the shipped model of that name (70B_llama3, llama3-70b); ``path`` itself
    where nothing is."""
    if path.is_absolute() or os.path.exists(path):
        return path
    if len(path.parts) > 1:
        result = shipped_folder() / path
        return result if path.parts[0] == CONFIGS and ".." not in path.parts and result.is_file() else path
    files = list((shipped_folder() / CONFIGS).glob("*.*"))
    named = [one for one in files if path.name in (one.name, one.stem)]
    if not named and not path.suffix:
        stem = known_name(path.name, {one.stem for one in files})
        named = [one for one in files if one.stem == stem]
    return named[0] if len(named) == 1 else path


NAME = "parallel-strategy-solver"


def cache_folder() -> Path | None:
    """Returns our folder in ``$XDG_CACHE_HOME`` or ``~/.cache`` (XDG Base Directory Specification), which may not exist; None
    for a user without a home."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if Path(folder).is_absolute():
        return Path(folder) / NAME
    try:
        return Path.home() / ".cache" / NAME
    except RuntimeError:
        return None


OptionPaths = Mapping[str, Path | None]
"""Option -> path; None where it was not given."""


STDOUT = Path("-")
"""What stands for standard output in the place of a result's file."""


@contextmanager
def json_output(path: Path | None) -> Iterator[Path | TextIO | None]:
    """Gives where ``--json`` writes: ``path``, or standard output for ``-``, whose other text goes to stderr meanwhile."""
    if path != STDOUT:
        yield path
        return
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        yield out


def check_outputs(files: OptionPaths, folders: OptionPaths, inputs: OptionPaths) -> None:
    """Raises ConfigError for a result file whose folder does not exist or cannot be written, that is no regular file, or
    that is the same file as an input or another result, through links too; and for a result folder that is a file."""
    used_paths = {option: path for option, path in inputs.items() if path is not None and path.exists()}
    for option, path in files.items():
        if path is None:
            continue
        # realpath takes a link that leads to itself for a file.
        folder, looped = Path(os.path.realpath(path)).parent, path.is_symlink() and _is_loop(path)
        if looped or (path.exists() and not path.is_file()) or not folder.is_dir() or not os.access(folder, os.W_OK):
            allowed = "a file in a folder that exists and can be written"
            raise ConfigError(where=option, key="output path", value=str(path), allowed=allowed)
        for other, other_path in used_paths.items():
            if _same(path, other_path):
                allowed = f"another file than that of {other}"
                raise ConfigError(where=option, key="output path", value=str(path), allowed=allowed)
        used_paths[option] = path
    for option, path in folders.items():
        if path is not None and path.exists() and not path.is_dir():
            raise ConfigError(where=option, key="output folder", value=str(path), allowed="a folder")


def _is_loop(path: Path) -> bool:
    """Returns whether following the links of a path never ends."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _same(one: Path, other: Path) -> bool:
    """Returns whether both name one file, that is there or that would be."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def check_parquet(where: str) -> None:
    """Raises ConfigError, with the remedy, if pyarrow is not installed; ``where`` is the option that needs it."""
    if find_spec("pyarrow") is None:
        allowed = "an installed one (pip install pyarrow, or the extra parquet)"
        raise ConfigError(where=where, key="pyarrow", value=None, allowed=allowed)
