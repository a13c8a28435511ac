"""The rules between files and rooms (the folders of a package), each a function from all sources to what breaks it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath

from tests.architecture import MAY_IMPORT, Source

# Of each package, rooms (and in solver files at its top) in the order in which they may see each other: a room
# imports those before it. Files at the top of a package that are not listed see all, and are seen by all.
ORDER: dict[str, tuple[str, ...]] = {
    "spec": (
        "program",
        "mixers",
        "cluster",
        "pipeline",
        "presets/variants",
        "presets",
        "settings",
        "readers/huggingface",
        "readers",
    ),
    "ops": ("adapters", "strategies", "mixers", "experts", "recompute", "data_parallel", "host_work"),
    "profdb": (
        "store",
        "fits",
        "lookup",
        "modelled/network",
        "modelled",
        "importers",
        "exporters",
        "commands",
    ),
    "profiler": ("cases", "ranks", "benchmarks", "conditions", "step_parts", "pictures"),
    "solver": (
        "schedules",
        "plans",
        "pipeline",
        "times",
        "layers",
        "memory",
        "optimizer_step",
        "hop_times",
        "price",
        "calibration",
        "question",
        "question_cost",
        "answer",
        "contest",
        "refinements",
        "search",
        "typed_plan",
        "calibration_file",
        "request",
        "restated",
        "cluster_times",
        "opening",
        "decision",
        "surface",
        "report",
        "page",
        "calibrate",
    ),
    "workload": (
        "topology",
        "traffic",
        "simai",
        "simai/closed_form",
        "bundle",
        "aicb/aiob",
        "aicb/general",
        "aicb/generate",
        "settings",
        "settings/torch_native",
        "settings/over_megatron",
    ),
    "runner": ("logs", "groups", "replay", "aiob", "reference", "training", "traces", "comparison"),
}
MOST_FILES = 15

ProjectRule = Callable[[Sequence[Source]], Iterator[str]]


def module_of(path: PurePosixPath) -> str:
    """The dotted name under which a file is imported."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(sources: Sequence[Source]) -> dict[str, dict[str, int]]:
    """For each module of the project the modules it imports, anywhere in it, with the line."""
    known = {module_of(source.path) for source in sources}
    found: dict[str, dict[str, int]] = {}
    for source in sources:
        here = found.setdefault(module_of(source.path), {})
        for node, name in source.imports:
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module_of(source.path):
                here.setdefault(target, node.lineno)
    return found


def files_have_no_circle(sources: Sequence[Source]) -> Iterator[str]:
    """Between files, imports inside functions included."""
    graph = imports_of([source for source in sources if source.owner in MAY_IMPORT])
    done: set[str] = set()

    def walk(module: str, way: tuple[str, ...]) -> Iterator[str]:
        if module in way:
            yield " -> ".join((*way[way.index(module) :], module))
            return
        if module in done:
            return
        for target in graph[module]:
            yield from walk(target, (*way, module))
        done.add(module)

    for module in graph:
        yield from (f"{module}: imports in a circle: {circle}" for circle in walk(module, ()))


def place_in(package_order: Sequence[str], path: PurePosixPath) -> str:
    """The listed room or file that ``path`` is; its folder where neither is listed, "" at the package's top."""
    folder = "/".join(path.parts[1:-1])
    if not folder and path.stem in package_order:
        return path.stem
    return folder


def rooms_point_one_way(sources: Sequence[Source]) -> Iterator[str]:
    """Between the rooms of a package, in the order above; a room that nobody listed has no place."""
    paths: Mapping[str, PurePosixPath] = {module_of(source.path): source.path for source in sources}
    graph = imports_of(sources)
    for module, path in paths.items():
        order = ORDER.get(path.parts[0], ())
        room = place_in(order, path)
        if path.parts[0] in ORDER and room and room not in order and path.name != "__init__.py":
            yield f"{path}:1: the room {room} has no place in the order of {path.parts[0]}"
            continue
        for target, line in graph[module].items():
            if paths[target].parts[0] != path.parts[0] or not room:
                continue
            seen = place_in(order, paths[target])
            if seen in order and order.index(seen) > order.index(room):
                yield f"{path}:{line}: {room} must not import {seen}, which comes after it"


def rooms_are_small(sources: Sequence[Source]) -> Iterator[str]:
    """At most MOST_FILES files in a folder, beside its __init__."""
    listed = [source.path for source in sources if source.owner in MAY_IMPORT]
    counts = Counter(str(path.parent) for path in listed if path.name != "__init__.py")
    for folder, count in counts.items():
        if count > MOST_FILES:
            yield f"{folder}: {count} files, at most {MOST_FILES}"


def tests_are_found_by_name(sources: Sequence[Source]) -> Iterator[str]:
    """tests/a/b/test_c.py or test_c_something.py tests a/b/c.py; what tests several lies in tests/ itself, or in
    tests/fuzz, which spoils what each of them reads."""
    files = {str(source.path.with_suffix("")) for source in sources}

    @cache
    def stems(folder: str) -> tuple[str, ...]:
        return tuple(name.rpartition("/")[2] for name in files if name.rpartition("/")[0] == folder)

    for source in sources:
        folder, name = source.path.parent, source.path.stem
        if source.owner != "tests" or not name.startswith("test_") or folder.parts[1:] in ((), ("fuzz",)):
            continue
        asked = name.removeprefix("test_")
        tested = "/".join(folder.parts[1:])
        if not any(asked == stem or asked.startswith(f"{stem}_") for stem in stems(tested)):
            yield f"{source.path}:1: tests no file of {tested}/ by its name"


PROJECT_RULES: tuple[ProjectRule, ...] = (
    files_have_no_circle,
    rooms_point_one_way,
    rooms_are_small,
    tests_are_found_by_name,
)
