"""What every fitted or assumed constant moves.

    python benchmarks/constants.py --out benchmarks/notes/constants.md
    python benchmarks/constants.py --measurements PATH [PATH ...] [--curves DIR] [--rows N] [--only WORD] [--out FILE]

Finds the constants that the code or a hardware spec calls ``Fitted`` or an ``Assumption`` (benchmarks/constant_table.py).
The first form prices nothing: it brings the table of a page up to where the constants stand now. With --measurements N
rows of each dataset are looked at (at even places of its file), and each constant is priced on the one nearest the middle
that reads it, a quarter smaller and a quarter larger. Prints a line a constant: its source and, of the datasets whose
error moves most, by how many points. --out writes each line as it comes.
"""

import argparse
import ast
import dataclasses
import functools
import gc
import importlib
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.constant_table import (  # noqa: E402
    PACKAGES,
    Constant,
    constants,
    line_of,
    updated_page,
    why_unpriced,
)
from benchmarks.measured_times import MeasuredTimes, measured_times  # noqa: E402
from benchmarks.published_rows import Pricing, PublishedRow, read_rows  # noqa: E402
from benchmarks.row_scores import measured_step_s, memory_gib  # noqa: E402
from spec.arrays import FloatArray  # noqa: E402
from spec.cluster.reader import known_clusters, read_cluster  # noqa: E402
from spec.errors import ConfigError, UserError  # noqa: E402
from spec.files import replaced_path  # noqa: E402

QUARTER = 0.25
LEAST_POINTS = 0.05
CLUSTERS = "configs/clusters/"


def sample_rows(rows: Sequence[PublishedRow], each: int) -> list[PublishedRow]:
    """``each`` rows of every dataset that have a measured step, at even places of its file, from its middle
    outwards.
    """
    by_dataset: dict[str, list[PublishedRow]] = {}
    for row in rows:
        if measured_step_s(row):
            by_dataset.setdefault(row.dataset, []).append(row)
    result = []
    for members in by_dataset.values():
        places = sorted({int(place) for place in (np.arange(each) + 0.5) * len(members) / each})
        middle = (len(members) - 1) / 2
        result += [members[place] for place in sorted(places, key=lambda place: abs(place - middle))]
    return result


def first_of_each(rows: Sequence[PublishedRow], places: Sequence[int]) -> list[int]:
    """Returns of these places the first of each dataset."""
    first: dict[str, int] = {}
    for place in places:
        first.setdefault(rows[place].dataset, place)
    return list(first.values())


def rows_on_spec(path: str, rows: Sequence[PublishedRow], root: Path) -> list[PublishedRow]:
    """The rows on the hardware that a file of configs/ is about."""
    name = Path(path).stem
    if path.startswith(CLUSTERS):
        return [row for row in rows if row.text("cluster") == name]
    built = [spec for spec in known_clusters(root) if read_cluster(spec, root=root).gpu.architecture.name == name]
    return [row for row in rows if row.text("cluster") in built]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Of each row the names that the functions which price it read."""

    names: tuple[frozenset[str], ...]

    def of(self, constant: Constant, root: Path) -> list[int]:
        """The places of the rows that may read a constant of a module, or what its module makes of it."""
        wanted = names_made_of(root, constant)
        return [place for place, names in enumerate(self.names) if not wanted.isdisjoint(names)]


def readers(rows: Sequence[PublishedRow], times: MeasuredTimes, root: Path) -> Readers:
    """Each row priced alone, with nothing remembered of the others."""
    remembered = caches()
    result = []
    for row in rows:
        for one in remembered:
            one.cache_clear()
        result.append(_names_read(row, times, root))
    return Readers(names=tuple(result))


def _names_read(row: PublishedRow, times: MeasuredTimes, root: Path) -> frozenset[str]:
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    pricing = Pricing(root=root, cost_model=MeasuredTimes(root=root, fitted=times.fitted).cost_model)
    before = sys.gettrace()
    sys.settrace(called)
    try:
        pricing.predict([row])
    finally:
        sys.settrace(before)
    return names_in(codes)


def names_in(codes: Collection[CodeType]) -> frozenset[str]:
    """The names in capitals that code reads."""
    return frozenset(name for code in codes for name in code.co_names if name.isupper())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigures:
    """Of each row its dataset and, as arrays, the absolute error of its step (a fraction), seconds, GiB and
    the half-width of the interval as a share of the step."""

    datasets: tuple[str, ...]
    errors: FloatArray
    seconds: FloatArray
    memory: FloatArray
    width: FloatArray

    def take(self, places: Sequence[int]) -> "RowFigures":
        """Returns some of the rows."""
        chosen = np.array(places, dtype=np.int64)
        return RowFigures(
            datasets=tuple(self.datasets[place] for place in places),
            errors=self.errors[chosen],
            seconds=self.seconds[chosen],
            memory=self.memory[chosen],
            width=self.width[chosen],
        )

    def moved(self, other: "RowFigures") -> dict[str, float]:
        """Points of mean error by dataset that ``other`` has more, on these rows; infinite where ``other`` cannot price
        a row any more."""
        points: dict[str, list[float]] = {}
        refused = (other.seconds == 0) & (self.seconds > 0)
        changes = np.where(refused, np.inf, 100.0 * (other.errors - self.errors))
        for name, change in zip(self.datasets, changes, strict=True):
            points.setdefault(name, []).append(float(change))
        return {name: float(np.mean(result)) for name, result in points.items()}


def row_figures(rows: Sequence[PublishedRow], times: MeasuredTimes, root: Path, *, anew: bool = True) -> RowFigures:
    """Price the rows; those that cannot be priced have an error of 1. ``anew``: what specs were asked before is
    forgotten, for constants of the specs' own model."""
    fresh = MeasuredTimes(root=root, fitted=times.fitted) if anew else times
    figures = []
    for one in Pricing(root=root, cost_model=fresh.cost_model).predict(rows):
        measured = measured_step_s(one.row)
        error = abs(one.step_s / measured - 1.0) if one.answer and measured else 1.0
        width = np.log(one.answer.interval_high_s / one.answer.step_s) if one.answer else 0.0
        figures.append((error, one.step_s, memory_gib(one) or 0.0, width))
    errors, seconds, memory, width = np.array(figures).reshape(-1, 4).T
    return RowFigures(
        datasets=tuple(row.dataset for row in rows), errors=errors, seconds=seconds, memory=memory, width=width
    )


def _points(change: float) -> str:
    return f"{change:+.1f}" if np.isfinite(change) else "refused"


def largest_effects(plain: RowFigures, less: RowFigures, more: RowFigures) -> str:
    """The datasets whose error moves most, points at -25 % / +25 %; else what moves beside it."""
    down, up = plain.moved(less), plain.moved(more)
    most = sorted(down, key=lambda name: -max(abs(down[name]), abs(up[name])))[:3]
    said = [
        f"{name} {_points(down[name])} / {_points(up[name])}"
        for name in most
        if max(abs(down[name]), abs(up[name])) >= LEAST_POINTS
    ]
    if said:
        return ", ".join(said)
    for what, unit in (("seconds", "step"), ("memory", "memory"), ("width", "interval")):
        base = getattr(plain, what)
        shares = [np.divide(getattr(one, what), base, out=np.ones_like(base), where=base > 0) for one in (less, more)]
        change = float(np.max(np.abs(np.array(shares) - 1.0), initial=0.0))
        if change > 1e-6:
            return f"{unit} of a row by up to {100 * change:.2g} %"
    return "nothing on these rows"


def scaled(value: Any, factor: float) -> Any:
    """Every number in a value times ``factor``, whole numbers rounded and at least one; words and flags stay."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return max(round(value * factor), 1) if value > 0 else value
    if isinstance(value, float):
        return value * factor
    if isinstance(value, dict):
        return {key: scaled(one, factor) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: scaled(one, factor) for name, one in fields.items()})
    if isinstance(value, tuple | list):
        return type(value)(scaled(one, factor) for one in value)
    return value


@contextmanager
def changed_constant(root: Path, constant: Constant, factor: float, copy: Path) -> Iterator[Path]:
    """The project's root while the constant is ``factor`` times itself; for a spec, ``copy`` with another
    one in it.
    """
    if constant.path.endswith(".toml"):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root / "configs", copy / "configs")
        path = copy / constant.path
        path.write_text(with_number(path.read_text(encoding="utf-8"), constant.name, factor), encoding="utf-8")
        yield copy
        return
    owner = importlib.import_module(constant.path.removesuffix(".py").replace("/", "."))
    new = {constant.name: scaled(getattr(owner, constant.name), factor)}
    for name, made in _made_of(Path(str(owner.__file__)), constant.name):
        names = vars(owner) | new
        exec(made, names)  # noqa: S102 - the module's own source
        new[name] = names[name]
    old = {name: getattr(owner, name) for name in new}
    try:
        _swap(old, new)
        yield root
    finally:
        _swap(new, old)


def _made_of(path: Path, name: str) -> Iterator[tuple[str, CodeType]]:
    """The names that a module makes of ``name`` when it is imported, and how, in their order: values, and classes whose
    fields stand at it."""
    changed = {name}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        made, read = _made(node)
        if any(isinstance(part, ast.Name) and part.id in changed for one in read for part in ast.walk(one)):
            changed.add(made)
            yield made, compile(ast.Module([node], []), str(path), "exec")


def _made(node: ast.stmt) -> tuple[str, list[ast.expr]]:
    """The name that a statement of a module makes, and what is read for it then; no name for other statements."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, [value]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return name, [value]
        case ast.ClassDef(name=name, body=body):
            return name, [one.value for one in body if isinstance(one, ast.AnnAssign) and one.value]
    return "", []


def names_made_of(root: Path, constant: Constant) -> frozenset[str]:
    """The name of a module's constant and those that its module makes of it."""
    made = (name for name, _ in _made_of(root / constant.path, constant.name))
    return frozenset((constant.name, *made))


def _swap(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Each name in every module that holds its old value, and nothing remembered of that."""
    for name, value in old.items():
        for package, module in list(sys.modules.items()):
            if package.split(".")[0] in PACKAGES and getattr(module, name, None) is value:
                setattr(module, name, new[name])
    for one in caches():
        one.cache_clear()


def caches() -> "list[functools._lru_cache_wrapper[Any]]":
    """Every functools cache there is."""
    return [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]


def number_of(spec: str, name: str) -> float | None:
    """The number at a dotted name of a hardware spec's text, a list of domains read by their names; None for no number."""
    result: Any = tomllib.loads(spec)
    for key in name.split("."):
        if isinstance(result, list):
            result = next((one for one in result if one.get("name") == key), None)
        else:
            result = result.get(key) if isinstance(result, dict) else None
    return float(result) if isinstance(result, int | float) and not isinstance(result, bool) else None


def with_number(spec: str, name: str, factor: float) -> str:
    """The spec's text with the number at a dotted name ``factor`` times itself.

    Raises ValueError for a name that holds no number.
    """
    old = number_of(spec, name)
    if old is None:
        raise ValueError(f"{name} is no number")
    *_, key = name.split(".")
    new = scaled(int(old) if old == int(old) and old < 1e6 else old, factor)
    for match in re.finditer(rf"^{re.escape(key)}\s*=\s*([-+\d._e]+)", spec, flags=re.MULTILINE):
        text = f"{spec[: match.start(1)]}{new!r}{spec[match.end(1) :]}"
        changed = number_of(text, name)
        if changed is not None and changed != old:
            return text
    raise ValueError(f"{name} stands in no line of its own")


@dataclass(slots=True, kw_only=True)
class Effects:
    """Prices constants on rows (``everything``); what the constants' own values say is priced once."""

    everything: Sequence[PublishedRow]
    times: MeasuredTimes
    each: int
    folder: Path
    rows: list[PublishedRow] = field(init=False)
    plain: RowFigures | None = None
    reading: Readers | None = None

    def __post_init__(self) -> None:
        self.rows = sample_rows(self.everything, self.each)

    def of(self, constant: Constant) -> str:
        """Returns what the constant moves, or why that is not said."""
        why = why_unpriced(constant)
        if why:
            return why
        if constant.path.endswith(".toml"):
            return self._of_spec(constant)
        if self.plain is None or self.reading is None:
            self.plain = row_figures(self.rows, self.times, ROOT, anew=False)
            self.reading = readers(self.rows, self.times, ROOT)
        places = first_of_each(self.rows, self.reading.of(constant, ROOT))
        if not places:
            return "read by none of these rows"
        return self._moved(constant, [self.rows[place] for place in places], self.plain.take(places))

    def _of_spec(self, constant: Constant) -> str:
        if number_of((ROOT / constant.path).read_text(encoding="utf-8"), constant.name) is None:
            return "a fact that is no number, or several"
        rows = sample_rows(rows_on_spec(constant.path, self.everything, ROOT), 1)
        if not rows:
            return "no row of this sheet"
        return self._moved(constant, rows, row_figures(rows, self.times, ROOT, anew=False))

    def _moved(self, constant: Constant, rows: Sequence[PublishedRow], before: RowFigures) -> str:
        """``before``: the figures of these rows as things stand."""
        anew = not constant.path.startswith(("ops", "solver"))
        moved = []
        for factor in (1.0 - QUARTER, 1.0 + QUARTER):
            with changed_constant(ROOT, constant, factor, self.folder / "root") as root:
                moved.append(row_figures(rows, self.times, root, anew=anew))
        return largest_effects(before, *moved)


def main(argv: Sequence[str] | None = None) -> int:
    """Find, vary, print."""
    parser = argparse.ArgumentParser(description="what every fitted or assumed constant moves")
    parser.add_argument("--measurements", type=Path, nargs="+", help="CSV files or folders of runs")
    parser.add_argument("--curves", type=Path, help="folder of measured curves in the generic CSV form")
    parser.add_argument("--rows", type=int, default=3, help="rows of each dataset looked at (default 3)")
    parser.add_argument("--only", default="", help="constants whose file or name holds this word")
    parser.add_argument("--out", type=Path, help="a page whose table takes the lines")
    options = parser.parse_args(argv)
    try:
        _run(options)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.rows < 1:
        raise ConfigError(where="command line", key="--rows", value=str(options.rows), allowed="1 or more")
    listed = constants(ROOT)
    if options.measurements is None:
        _update(options.out, listed, {})
        return
    with tempfile.TemporaryDirectory() as folder:
        effects = Effects(
            everything=read_rows(options.measurements),
            times=measured_times(options.curves, ROOT / "prof_data"),
            each=options.rows,
            folder=Path(folder),
        )
        for one in listed:
            if options.only in one.key:
                effect = effects.of(one)
                print(line_of(one, effect), flush=True)
                _update(options.out, listed, {one.key: effect})


def _update(page: Path | None, listed: Sequence[Constant], priced: Mapping[str, str]) -> None:
    if page is None:
        return
    text = updated_page(page.read_text(encoding="utf-8"), listed, priced)
    with replaced_path(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
