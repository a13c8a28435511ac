"""InternLM-style ``.py`` configs, read as data: parsed, walked statement by statement, never executed.

A file holds assignments, docstrings, ``from x import read_base`` and

    with read_base():
        from configs._base_.models.x import *

``configs`` is the folder of that name under the nearest ancestor of the file; nothing outside it
is read, and a file cannot read itself in a circle.
"""

import ast
import os.path
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from spec.errors import ConfigError
from spec.readers.pyexpression import CALLABLE_NAMES, Evaluator
from spec.text_file import read_text

MAX_FILES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PyConfig:
    """What a config assigns.

    ``values`` maps each name to a number, string, bool, None, list, tuple or dict; ``used`` are the
    names that other expressions refer to; ``lines`` says on which line a name was last assigned.
    """

    values: dict[str, object]
    used: frozenset[str]
    lines: dict[str, int]


@dataclass(slots=True, kw_only=True)
class _Reading:
    """One read with everything it pulls in: what is open (cycles), what is done, the configs folder."""

    root: Path | None
    open_files: list[Path] = field(default_factory=list)
    done: dict[Path, PyConfig] = field(default_factory=dict)


def read_pyconfig(path: Path) -> PyConfig:
    """The assignments of ``path``; raises ConfigError naming file, line and expression."""
    # os.path answers quietly where pathlib raises: link loops, folders that may not be entered
    absolute = Path(os.path.realpath(path)) if "\0" not in str(path) else path
    root = next((parent for parent in absolute.parents if os.path.isdir(parent / "configs")), None)
    return _read(absolute, str(path), _Reading(root=root))


def _read(path: Path, where: str, reading: _Reading) -> PyConfig:
    if path in reading.open_files:
        raise ConfigError(where=where, key="read_base", value=path.name, allowed="no file may import itself")
    if path in reading.done:
        return reading.done[path]
    if len(reading.done) + len(reading.open_files) >= MAX_FILES:
        raise ConfigError(where=where, key="read_base", value=path.name, allowed=f"at most {MAX_FILES} files")
    source = read_text(path, where)
    tree = _parse(source, where)
    reading.open_files.append(path)
    evaluator = Evaluator(where=where, source=source, names={}, used=set())
    lines: dict[str, int] = {}
    for statement in tree.body:
        _run(statement, evaluator, lines, reading)
    reading.open_files.pop()
    result = PyConfig(values=evaluator.names, used=frozenset(evaluator.used), lines=lines)
    reading.done[path] = result
    return result


def _parse(source: str, where: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a string is not worth a warning here
            return ast.parse(source, filename=where)
    except SyntaxError as error:
        raise ConfigError(
            where=f"{where}:{error.lineno or 0}",
            key="syntax",
            value=(error.text or "").strip(),
            allowed=f"Python assignments ({error.msg})",
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            where=where, key="syntax", value="", allowed="Python assignments, nested less deeply"
        ) from error


def _run(statement: ast.stmt, evaluator: Evaluator, lines: dict[str, int], reading: _Reading) -> None:
    """One statement of a config."""
    if isinstance(statement, ast.Assign):
        value = evaluator.value(statement.value)
        for target in statement.targets:
            _assign(target, value, evaluator, lines)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        _assign(statement.target, evaluator.value(statement.value), evaluator, lines)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring between statements
    elif isinstance(statement, ast.With):
        _read_base(statement, evaluator, lines, reading)
    elif not _imports_read_base(statement):
        raise evaluator.refusal(
            statement,
            "a config holds assignments, docstrings and `with read_base(): from configs.x import *`",
        )


def _assign(target: ast.expr, value: object, evaluator: Evaluator, lines: dict[str, int]) -> None:
    if not isinstance(target, ast.Name) or target.id in CALLABLE_NAMES:
        raise evaluator.refusal(target, f"assign to plain names other than {', '.join(CALLABLE_NAMES)}")
    evaluator.names[target.id] = value
    evaluator.used.discard(target.id)
    lines[target.id] = target.lineno


def _imports_read_base(statement: ast.stmt) -> bool:
    """``from anything import read_base`` brings in nothing but the name of the with block."""
    return isinstance(statement, ast.ImportFrom) and [
        (alias.name, alias.asname) for alias in statement.names
    ] == [("read_base", None)]


def _read_base(statement: ast.With, evaluator: Evaluator, lines: dict[str, int], reading: _Reading) -> None:
    """The imports of ``with read_base():``, each a file whose names become names of this one."""
    call = statement.items[0].context_expr
    plain = (
        len(statement.items) == 1
        and statement.items[0].optional_vars is None
        and isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "read_base"
        and not call.args
        and not call.keywords
    )
    if not plain:
        raise evaluator.refusal(call, "the only with block is `with read_base():`")
    for line in statement.body:
        if not isinstance(line, ast.ImportFrom) or [alias.name for alias in line.names] != ["*"]:
            raise evaluator.refusal(line, "read_base takes `from configs._base_.x import *`")
        path = _base_path(line, evaluator, reading)
        inherited = _read(path, f"{evaluator.where}:{line.lineno} -> {line.module}", reading)
        for name, value in inherited.values.items():
            if not name.startswith("_"):
                evaluator.names[name] = value
                evaluator.used.discard(name)
                lines[name] = line.lineno
        evaluator.used |= inherited.used


def _base_path(line: ast.ImportFrom, evaluator: Evaluator, reading: _Reading) -> Path:
    parts = (line.module or "").split(".")
    if line.level or len(parts) < 2 or parts[0] != "configs":
        raise evaluator.refusal(line, "read_base reads `configs.<folder>.<file>` only")
    if reading.root is None:
        raise evaluator.refusal(line, "no folder above the file holds configs/")
    folder = Path(os.path.realpath(reading.root / "configs"))
    path = Path(os.path.realpath(reading.root.joinpath(*parts[:-1], parts[-1] + ".py")))
    if not path.is_relative_to(folder):
        raise evaluator.refusal(line, f"the file must lie inside {folder}")
    return path
