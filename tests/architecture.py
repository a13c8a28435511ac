"""The rules of the house, each a function from one source file to the lines that break it."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

SCRIPTS = frozenset({"gen_profiler_data", "simulation_train_formulaic", "run_workload"})
PACKAGING = frozenset({"setup"})

# spec <- ops <- profdb <- solver <- workload <- runner; profiler beside solver, neither sees the other
MAY_IMPORT: dict[str, frozenset[str]] = {
    "spec": frozenset(),
    "ops": frozenset({"spec"}),
    "profdb": frozenset({"spec", "ops"}),
    "profiler": frozenset({"spec", "ops", "profdb"}),
    "solver": frozenset({"spec", "ops", "profdb"}),
    "workload": frozenset({"spec", "ops", "profdb", "solver"}),
    "runner": frozenset({"spec", "ops", "profdb", "profiler", "solver", "workload"}),
    "pss": frozenset({"spec", "ops", "profdb", "profiler", "solver", "workload", "runner"}) | SCRIPTS,
}
HOUSE = frozenset(MAY_IMPORT) | SCRIPTS | {"benchmarks", "configs", "tests"}

DEVICE_PACKAGES = frozenset({"profiler", "runner"})
DEVICE_LIBRARIES = frozenset({"torch", "flash_attn", "apex"})

MAX_LINES = 300
MAX_STATEMENTS = 40
MAX_PARAMETERS = 6
VAGUE_NAMES = frozenset(
    {"util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "managers"}
)
# "cpu" is torch's name of a device as well.
EMPTY_CONTAINERS = frozenset({"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter"})

# A home, scratch or working folder of somebody's machine, at the start of a path.
LOCAL_PATH = re.compile(rb"""(?<![\w.\-/}\])*>])/(?:work|tmp|root|home/\w+|Users/\w+)(?=[/\s"'`:,;)]|$)""")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file: its place in the project and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, which many rules look at."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[tuple[ast.stmt | ast.expr, str]]:
        """Every import of the file with the absolute dotted names it brings: of ``from a import b`` also a.b."""
        found: list[tuple[ast.stmt | ast.expr, str]] = []
        for node in self.nodes:
            if not isinstance(node, ast.stmt | ast.expr):
                continue
            for name in imported_modules(self, node):
                named = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
                found += [(node, f"{name}.{one}") for one in named] or [(node, name)]
        return found

    @property
    def owner(self) -> str:
        """The package, or for a file at the top the script, that the file belongs to."""
        return self.path.parts[0] if len(self.path.parts) > 1 else self.path.stem

    def at(self, node: ast.AST, message: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {message}"


Rule = Callable[[Source], Iterator[str]]


def project_files(root: Path) -> list[Path]:
    """Tracked files and new ones that git does not ignore; without git, all but hidden folders and caches."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0 and listing.stdout:
        found = [root / name for name in listing.stdout.decode().split("\0") if name]
    else:
        skipped = re.compile(r"^(\..*|__pycache__|build|dist|.*\.egg-info)$")
        found = [
            path
            for path in root.rglob("*")
            if not any(skipped.match(part) for part in path.relative_to(root).parts[:-1])
        ]
    return sorted(path for path in found if path.is_file())


def python_sources(root: Path) -> list[Source]:
    """Every Python file of the project except the model configurations, which are data."""
    paths = [(path, PurePosixPath(path.relative_to(root).as_posix())) for path in project_files(root)]
    return [
        Source(path=place, text=path.read_text(encoding="utf-8"))
        for path, place in paths
        if place.suffix == ".py" and place.parts[0] != "configs"
    ]


def imported_modules(source: Source, node: ast.AST) -> list[str]:
    """Absolute dotted names that one statement or call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level == 0:
            return [node.module or ""]
        package = source.path.parts[:-1]
        package = package[: len(package) - (node.level - 1)]
        return [".".join([*package, node.module or ""]).strip(".")]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def nodes_run_at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes executed when the module is imported: not inside functions, not under TYPE_CHECKING."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, Function | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def imports_point_one_way(source: Source) -> Iterator[str]:
    if source.owner not in MAY_IMPORT:
        return
    for node in source.nodes:
        for name in imported_modules(source, node):
            target = name.split(".")[0]
            if target in HOUSE and target != source.owner and target not in MAY_IMPORT[source.owner]:
                yield source.at(node, f"{source.owner} must not import {target}")


def torch_is_imported_late(source: Source) -> Iterator[str]:
    if source.owner in DEVICE_PACKAGES | {"tests", "benchmarks"}:
        return
    forbidden = set(DEVICE_LIBRARIES)
    if source.owner != "gen_profiler_data":
        # importing these imports torch; only the profiling entry always needs it
        forbidden |= DEVICE_PACKAGES
    for node in nodes_run_at_import(source.tree.body):
        for name in imported_modules(source, node):
            if name.split(".")[0] in forbidden:
                yield source.at(node, f"import {name} inside the function that needs it")


def only_scripts_at_the_top(source: Source) -> Iterator[str]:
    if len(source.path.parts) == 1 and source.path.stem not in SCRIPTS | PACKAGING:
        yield source.at(source.tree, "belongs in a package: only the three scripts lie at the top")


def files_are_short(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > MAX_LINES:
        yield source.at(source.tree, f"{lines} lines, at most {MAX_LINES}")


def functions(source: Source) -> Iterator[Function]:
    for node in source.nodes:
        if isinstance(node, Function):
            yield node


def functions_are_short(source: Source) -> Iterator[str]:
    for function in functions(source):
        inside = (node for statement in function.body for node in ast.walk(statement))
        count = sum(isinstance(node, ast.stmt) for node in inside) - bool(ast.get_docstring(function))
        if count > MAX_STATEMENTS:
            yield source.at(function, f"{function.name} has {count} statements, at most {MAX_STATEMENTS}")


def functions_take_few_parameters(source: Source) -> Iterator[str]:
    if source.owner == "tests":
        return  # fixtures are parameters
    for function in functions(source):
        named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        count = len(named) - bool(named and named[0].arg in ("self", "cls"))
        if count > MAX_PARAMETERS:
            yield source.at(function, f"{function.name} takes {count} parameters, at most {MAX_PARAMETERS}")


def names_say_something(source: Source) -> Iterator[str]:
    for part in (*source.path.parts[:-1], source.path.stem):
        for word in VAGUE_NAMES.intersection(part.lower().split("_")):
            yield source.at(source.tree, f"the name {part!r} holds {word!r}; name the file after its idea")


def errors_are_named(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = {"everything"} if node.type is None else set(re.findall(r"\w+", ast.unparse(node.type)))
        last = node.body[-1]
        cleans_up = isinstance(last, ast.Raise) and last.exc is None and "BaseException" in caught
        if caught & {"everything", "Exception", "BaseException"} and not cleans_up:
            yield source.at(node, f"catches {', '.join(sorted(caught))}; name the errors that are expected")


def modules_are_described(source: Source) -> Iterator[str]:
    name = source.path.stem
    private = name.startswith("_") and name != "__init__"
    if source.owner != "tests" and not private and ast.get_docstring(source.tree) is None:
        yield source.at(source.tree, "has no module docstring")


def is_empty_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func).split(".")[-1]
        filled = value.keywords or (value.args and called != "defaultdict")
        return called in EMPTY_CONTAINERS and not filled
    return False


def modules_hold_no_state(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.Global):
            yield source.at(node, f"global {', '.join(node.names)}: pass the value instead")
    for node in source.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_empty_container(node.value):
            yield source.at(node, "an empty container at module level can only be filled later: global state")


RULES: tuple[Rule, ...] = (
    imports_point_one_way,
    torch_is_imported_late,
    only_scripts_at_the_top,
    files_are_short,
    functions_are_short,
    functions_take_few_parameters,
    names_say_something,
    errors_are_named,
    modules_are_described,
    modules_hold_no_state,
)


def local_paths(path: Path) -> Iterator[str]:
    """Absolute paths of one machine, in any file, binary ones included."""
    for match in LOCAL_PATH.finditer(path.read_bytes()):
        yield f"{path}: names the local path {match.group().decode()}"
