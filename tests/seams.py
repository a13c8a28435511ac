"""The rules of the seams: code asks for facts and roles instead of choosing by a name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ops.strategies.registry import STRATEGIES
from tests.architecture import Rule, Source

ARCHITECTURE_FILES = (Path(__file__).resolve().parents[1] / "configs" / "architectures").glob("*.toml")
GPU_ARCHITECTURES = frozenset(path.stem for path in ARCHITECTURE_FILES) - {"cpu"}


def architectures_are_files(source: Source) -> Iterator[str]:
    """What belongs to a GPU architecture is a file under configs/architectures: code asks for its facts."""
    if source.owner == "tests":
        return
    for node in source.nodes:
        if isinstance(node, ast.Constant) and str(node.value).lower() in GPU_ARCHITECTURES:
            yield source.at(node, f"names the architecture {node.value!r}; ask for a fact of its file")
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name")):
            if isinstance(name, str) and GPU_ARCHITECTURES.intersection(name.lower().split("_")):
                yield source.at(node, f"{name} belongs to one architecture; make it a fact of its file")
        if isinstance(node, ast.Compare) and "architecture.name" in ast.unparse(node):
            sides = (node.left, *node.comparators)
            if any(isinstance(part, ast.Constant) for side in sides for part in ast.walk(side)):
                yield source.at(node, "compares an architecture's name; ask for a fact of its file")


def names_a_strategy(node: ast.expr) -> bool:
    """A literal that is a strategy's name, or a literal collection that holds one."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(names_a_strategy(element) for element in node.elts)
    return isinstance(node, ast.Constant) and node.value in STRATEGIES


def strategies_are_asked(source: Source) -> Iterator[str]:
    """Outside ops/strategies nothing is chosen by a strategy's name: Sharding and its traits answer."""
    if source.owner == "tests" or source.path.parts[:2] == ("ops", "strategies"):
        return
    for node in source.nodes:
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        keys = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else []
        cases = [node.value] if isinstance(node, ast.MatchValue) else []
        if any(names_a_strategy(one) for one in (*compared, *keys, *cases)):
            yield source.at(node, "chooses by a strategy's name; ask its Sharding")


OPERATIONS = frozenset(
    [
        "Op",
        "BatchedGemm",
        "GroupedGemm",
        "Attention",
        "MemoryBound",
        "Update",
        "HostWork",
        "HostTransfer",
        "HostUpdate",
        "Comm",
        "Identity",
        "Linear",
        "Kernel",
        "WorkItem",
    ]
)
CALLED_OPERATIONS = frozenset({"op", "item", "comm", "gemm", "operation", "projection"})
"""What a variable that holds an operation is called, where no annotation says that it does."""

SEARCHES = frozenset(
    [
        "startswith",
        "endswith",
        "find",
        "rfind",
        "index",
        "count",
        "split",
        "rsplit",
        "partition",
        "rpartition",
    ]
)
LOOKUPS = frozenset({"get", "index", "match", "fullmatch", "search", "add", "setdefault"})


def operation_names(tree: ast.Module) -> frozenset[str]:
    """Variables of a file that hold operations: by annotation, else by what they are called, but for the fields
    of a dataclass."""
    held, fields = set(CALLED_OPERATIONS), set()
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None)
        words = set(re.findall(r"\w+", ast.unparse(annotation))) if annotation else set()
        target = getattr(node, "arg", None) or getattr(getattr(node, "target", None), "id", None)
        if words & OPERATIONS and words <= OPERATIONS | {"None"} and isinstance(target, str):
            held.add(target)
        if isinstance(node, ast.comprehension | ast.For) and ast.unparse(node.iter).startswith("fields("):
            fields.add(ast.unparse(node.target))
    return frozenset(held - fields)


def label_in(node: ast.AST, operations: frozenset[str], attribute: str) -> bool:
    """Whether an expression reads the label, or the kernel, of an operation."""
    for part in ast.walk(node):
        owner: ast.expr | None = None
        if isinstance(part, ast.Attribute) and part.attr == attribute:
            owner = part.value
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "getattr" and len(part.args) > 1:
            owner = part.args[0] if ast.unparse(part.args[1]) == repr(attribute) else None
        if owner is not None and ast.unparse(owner).split(".")[-1] in operations:
            return True
    return False


def searched(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Expressions in which a text decides when it stands there, each with whether other texts stand beside it:
    a lookup in a table is none."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        literal = any(isinstance(part, ast.Constant) for side in sides for part in ast.walk(side))
        yield from ((side, literal) for side in sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in SEARCHES:
            yield node.func.value, True
        if node.func.attr in LOOKUPS:
            yield from ((argument, False) for argument in node.args)
    if isinstance(node, ast.Match):
        yield node.subject, True
    if isinstance(node, ast.Subscript):
        yield node.slice, False
    if isinstance(node, ast.SetComp):
        yield node.elt, False
    if isinstance(node, ast.DictComp):
        yield node.key, False


def operations_have_roles(source: Source) -> Iterator[str]:
    """Nothing looks into an operation's name: module, role and key say what it is. A kernel's word is the key of
    tables and curves, and is not compared with text."""
    if source.owner == "tests":
        return
    operations = operation_names(source.tree)
    for node in source.nodes:
        for part, literal in searched(node):
            if label_in(part, operations, "name"):
                yield source.at(node, "decides by an operation's label; ask for its module, role or key")
            if literal and label_in(part, operations, "kernel"):
                yield source.at(
                    node, "looks into a kernel's word; make it a fact of ops/kernels.py, or a role"
                )


JOB_PARTS = frozenset(
    str.split(
        "JobSpec Precision FrameworkPreset Variant DataParallel TensorParallel Pipeline Recomputation Layers Loss "
        "Host Offload Log precision_of named_precision changed with_preset"
    )
)
"""What makes a job, its precision or its preset."""


def benchmarks_ask(source: Source) -> Iterator[str]:
    """Benchmarks ask for jobs as users do (spec.settings.job): a switch that only they set is measured for nobody."""
    if source.owner != "benchmarks":
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).split(".")[-1]
        if called in JOB_PARTS:
            yield source.at(node, f"{called} makes a part of a job; ask for it (spec.settings.job, AskedJob)")
        changed = {word.arg for word in node.keywords} & {"preset", "precision"}
        if called == "replace" and changed:
            yield source.at(node, f"changes a job's {changed.pop()}; make it a setting of the AskedJob")


SEAM_RULES: tuple[Rule, ...] = (
    architectures_are_files,
    strategies_are_asked,
    operations_have_roles,
    benchmarks_ask,
)
