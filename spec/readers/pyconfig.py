"""InternLM-style ``.py`` configs, read as data: parsed, walked statement by statement, never executed.

A file holds assignments, docstrings, ``from x import read_base`` and

    with read_base():
        from configs._base_.models.x import *

``configs`` is the folder of that name under the nearest ancestor of the file; nothing outside it is read, and a file cannot
read itself in a circle.

Expressions: numbers, strings, True, False, None, names assigned earlier, ``+ - * / // % **`` on numbers, ``+`` and ``*`` on
strings, lists and tuples, list, tuple and dict displays, subscripts, f-strings over plain values, and calls of dict, int,
float, min and max. Everything else is a ConfigError. Every result is bounded, so no expression can take much time or memory.
"""

import ast
import operator
import os.path
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec.errors import ConfigError
from spec.files import read_text

MAX_DEPTH = 100
MAX_INT_BITS = 256  # far beyond any count in a model; keeps 10**10**10 from being computed
MAX_TEXT = 100_000
MAX_ITEMS = 10_000
MAX_TOTAL_SIZE = 1_000_000  # characters and items that all expressions of a file make together
MAX_FORMAT_WIDTH = 100

CALLABLE_NAMES = ("dict", "int", "float", "min", "max")

_ARITHMETIC: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

ALLOWED = (
    "configs are data: arithmetic, dict()/list/tuple literals, f-strings, int()/float()/min()/max() and earlier names"
)


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """Works out expressions of one file. ``names`` are the values assigned so far, ``used`` the
    names that some expression referred to; ``where`` and ``source`` serve error messages."""

    where: str
    source: str
    names: dict[str, object]
    used: set[str]
    total_size: int = 0

    def refusal(self, node: ast.AST, allowed: str = ALLOWED) -> ConfigError:
        """The error that shows the line and the text of ``node``."""
        line = getattr(node, "lineno", 0)
        text = ast.get_source_segment(self.source, node) or type(node).__name__
        return ConfigError(
            where=f"{self.where}:{line}", key=type(node).__name__, value=" ".join(text[:200].split()), allowed=allowed
        )

    def value(self, node: ast.expr, depth: int = 0) -> object:
        """The value of one expression; raises ConfigError for anything not accepted."""
        if depth > MAX_DEPTH:
            raise self.refusal(node, f"expressions may nest {MAX_DEPTH} deep")
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise self.refusal(node)
        return handler(self, node, depth + 1)

    def constant(self, node: ast.Constant, _depth: int) -> object:
        """A literal: number, string, True, False or None."""
        if node.value is not None and not isinstance(node.value, (bool, int, float, str)):
            raise self.refusal(node)
        return self.bounded(node.value, node)

    def name(self, node: ast.Name, _depth: int) -> object:
        """A name assigned earlier."""
        if node.id not in self.names:
            raise self.refusal(node, "only names assigned earlier in the file can be used")
        self.used.add(node.id)
        return self.names[node.id]

    def sequence(self, node: ast.List | ast.Tuple, depth: int) -> object:
        """A list or tuple display."""
        items = [self.value(item, depth) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)

    def mapping(self, node: ast.Dict, depth: int) -> dict[object, object]:
        """A dict display; keys are strings or numbers."""
        result: dict[object, object] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            key = self.value(key_node, depth) if key_node is not None else None
            if not isinstance(key, (str, int, float)):
                raise self.refusal(node, "keys of a dict are strings or numbers")
            result[key] = self.value(value_node, depth)
        return result

    def unary(self, node: ast.UnaryOp, depth: int) -> object:
        """``+x``, ``-x`` of a number and ``not x`` of a plain value."""
        operand = self.value(node.operand, depth)
        if isinstance(node.op, ast.Not) and not isinstance(operand, (list, tuple, dict)):
            return not operand
        if isinstance(operand, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return -operand if isinstance(node.op, ast.USub) else +operand
        raise self.refusal(node)

    def binary(self, node: ast.BinOp, depth: int) -> object:
        """Arithmetic on numbers; joining and repeating strings, lists and tuples."""
        left, right = self.value(node.left, depth), self.value(node.right, depth)
        apply = _ARITHMETIC.get(type(node.op))
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if apply is None or not (numbers or apply in (operator.add, operator.mul)):
            raise self.refusal(node)
        self.check_size(node, apply, left, right)
        try:
            return self.bounded(apply(left, right), node)
        except TypeError as error:
            raise self.refusal(node) from error
        except (ZeroDivisionError, OverflowError) as error:
            raise self.refusal(node, f"cannot be computed ({error})") from error

    def check_size(self, node: ast.BinOp, apply: Callable[..., object], left: Any, right: Any) -> None:
        """Refuses a power and a repeated sequence that would be too large, before it is made."""
        whole = isinstance(left, int) and isinstance(right, int) and abs(left) > 1
        if whole and apply is operator.pow and left.bit_length() * abs(right) > MAX_INT_BITS:
            raise self.refusal(node, f"whole numbers are limited to {MAX_INT_BITS} bits")
        for items, times in ((left, right), (right, left)) if apply is operator.mul else ():
            limit = MAX_TEXT if isinstance(items, str) else MAX_ITEMS
            if isinstance(items, (str, list, tuple)) and isinstance(times, int) and len(items) * times > limit:
                raise self.refusal(node, f"at most {limit} items or characters")

    def subscript(self, node: ast.Subscript, depth: int) -> object:
        """``data["total_steps"]`` or ``sizes[0]``."""
        container, key = self.value(node.value, depth), self.value(node.slice, depth)
        if isinstance(container, dict) and isinstance(key, (str, int, float)) and key in container:
            results: object = container[key]
            return results
        if isinstance(container, (list, tuple)) and type(key) is int and -len(container) <= key < len(container):
            return container[key]
        raise self.refusal(node, "no such entry")

    def formatted(self, node: ast.JoinedStr, depth: int) -> str:
        """An f-string whose fields are plain values."""
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                parts.append(self.field(part, depth))
            else:
                parts.append(str(self.value(part, depth)))
        return str(self.bounded("".join(parts), node))

    def field(self, node: ast.FormattedValue, depth: int) -> str:
        """One field of an f-string; containers are refused, widths are bounded."""
        content = self.value(node.value, depth)
        if content is not None and not isinstance(content, (bool, int, float, str)):
            raise self.refusal(node.value, "f-strings take strings and numbers")
        if node.conversion not in (-1, ord("s"), ord("r")):
            raise self.refusal(node.value)
        spec = self.formatted(node.format_spec, depth) if isinstance(node.format_spec, ast.JoinedStr) else ""
        # A width or precision of many digits would make a string of that length.
        digits = "".join(char if char.isdigit() else " " for char in spec).split()
        if any(len(run) > 4 or int(run) > MAX_FORMAT_WIDTH for run in digits):
            raise self.refusal(node.value, f"field widths up to {MAX_FORMAT_WIDTH}")
        shown = repr(content) if node.conversion == ord("r") else content
        try:
            return format(shown, spec)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.refusal(node.value, f"cannot be formatted ({error})") from error

    def call(self, node: ast.Call, depth: int) -> object:
        """dict(a=1), int(x), float(x), min(...) and max(...)."""
        if not isinstance(node.func, ast.Name) or node.func.id not in CALLABLE_NAMES:
            raise self.refusal(node)
        function = node.func.id
        if function == "dict":
            result: dict[object, object] = {}
            for keyword in node.keywords:
                if keyword.arg is None or keyword.arg in result:
                    raise self.refusal(keyword, "dict() takes each key once, written out")
                result[keyword.arg] = self.value(keyword.value, depth)
            if node.args:
                raise self.refusal(node, "dict() takes key=value pairs")
            return result
        if node.keywords or not node.args:
            raise self.refusal(node, f"{function}() takes values only")
        values = [self.value(argument, depth) for argument in node.args]
        if function in ("min", "max"):
            # Numbers, given one by one or as one list.
            values = list(values[0]) if len(values) == 1 and isinstance(values[0], (list, tuple)) else values
            numbers = [value for value in values if isinstance(value, (int, float))]
            if not numbers or len(numbers) != len(values):
                raise self.refusal(node, f"{function}() takes numbers")
            return min(numbers) if function == "min" else max(numbers)
        if len(values) != 1 or not isinstance(values[0], (int, float, str)):
            raise self.refusal(node, f"{function}() takes one number or string")
        if isinstance(values[0], str) and len(values[0]) > MAX_FORMAT_WIDTH:
            raise self.refusal(node, f"{function}() of at most {MAX_FORMAT_WIDTH} characters")
        try:
            return self.bounded(int(values[0]) if function == "int" else float(values[0]), node)
        except (ValueError, OverflowError) as error:
            raise self.refusal(node, f"cannot be computed ({error})") from error

    def bounded(self, result: object, node: ast.AST) -> object:
        """``result`` when it is of a size a config can need."""
        if isinstance(result, int) and result.bit_length() > MAX_INT_BITS:
            raise self.refusal(node, f"whole numbers are limited to {MAX_INT_BITS} bits")
        if isinstance(result, str) and len(result) > MAX_TEXT:
            raise self.refusal(node, f"strings are limited to {MAX_TEXT} characters")
        if isinstance(result, (list, tuple)) and len(result) > MAX_ITEMS:
            raise self.refusal(node, f"lists are limited to {MAX_ITEMS} items")
        # Each expression is bounded; their sum is too, or doubling a list line by line would fill the memory.
        if isinstance(result, (str, list, tuple)):
            self.total_size += len(result)
        if self.total_size > MAX_TOTAL_SIZE:
            raise self.refusal(
                node, f"all texts and lists of a file hold at most {MAX_TOTAL_SIZE} characters and items"
            )
        if isinstance(result, complex):
            raise self.refusal(node, "real numbers only")
        return result


_HANDLERS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Constant: Evaluator.constant,
    ast.Name: Evaluator.name,
    ast.List: Evaluator.sequence,
    ast.Tuple: Evaluator.sequence,
    ast.Dict: Evaluator.mapping,
    ast.UnaryOp: Evaluator.unary,
    ast.BinOp: Evaluator.binary,
    ast.Subscript: Evaluator.subscript,
    ast.JoinedStr: Evaluator.formatted,
    ast.Call: Evaluator.call,
}


MAX_FILES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PyConfig:
    """The assignments of a config.

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
    # A file that is open is being read right now, further up in the chain of imports: a circle.
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
        allowed = "Python assignments, nested less deeply"
        raise ConfigError(where=where, key="syntax", value="", allowed=allowed) from error


def _run(statement: ast.stmt, evaluator: Evaluator, lines: dict[str, int], reading: _Reading) -> None:
    """One statement of a config."""
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        value = evaluator.value(statement.value)
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            if not isinstance(target, ast.Name) or target.id in CALLABLE_NAMES:
                raise evaluator.refusal(target, f"assign to plain names other than {', '.join(CALLABLE_NAMES)}")
            evaluator.names[target.id] = value
            evaluator.used.discard(target.id)
            lines[target.id] = target.lineno
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring between statements
    elif isinstance(statement, ast.With):
        _read_base(statement, evaluator, lines, reading)
    elif not _imports_read_base(statement):
        raise evaluator.refusal(
            statement, "a config holds assignments, docstrings and `with read_base(): from configs.x import *`"
        )


def _imports_read_base(statement: ast.stmt) -> bool:
    """``from anything import read_base`` brings in nothing but the name of the with block."""
    return isinstance(statement, ast.ImportFrom) and [(alias.name, alias.asname) for alias in statement.names] == [
        ("read_base", None)
    ]


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
        parts = (line.module or "").split(".")
        if line.level or len(parts) < 2 or parts[0] != "configs":
            raise evaluator.refusal(line, "read_base reads `configs.<folder>.<file>` only")
        if reading.root is None:
            raise evaluator.refusal(line, "no folder above the file holds configs/")
        # Links are followed before the check: one that leads out of the folder is refused.
        folder = Path(os.path.realpath(reading.root / "configs"))
        path = Path(os.path.realpath(reading.root.joinpath(*parts[:-1], parts[-1] + ".py")))
        if not path.is_relative_to(folder):
            raise evaluator.refusal(line, f"the file must lie inside {folder}")
        inherited = _read(path, f"{evaluator.where}:{line.lineno} -> {line.module}", reading)
        for name, value in inherited.values.items():
            if not name.startswith("_"):
                evaluator.names[name] = value
                evaluator.used.discard(name)
                lines[name] = line.lineno
        evaluator.used |= inherited.used
