"""The effect of every fitted or assumed constant on the predictions.

    python benchmarks/constants.py --out benchmarks/notes/constants.md
    python benchmarks/constants.py --measurements PATH [PATH ...] [--curves DIR] [--rows N] [--only WORD] [--out FILE]

Finds the constants that the code or a hardware spec calls ``Fitted`` or an ``Assumption`` (benchmarks/constant_table.py).
The first form predicts nothing: it updates the table of a page with the constants' current files and names. With
--measurements, N rows of each dataset are considered (evenly spaced in its file); each constant is varied by -25 % and
+25 % on the one nearest the middle that reads it. Prints one line per constant: its source and, of the datasets whose
error changes most, by how many points. --out writes each line at once.
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
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.constant_table import PACKAGES, Constant, constants, line_of, updated_page, why_unpriced  # noqa: E402
from benchmarks.measured_times import MeasuredTimes, measured_times  # noqa: E402
from benchmarks.published_rows import Pricing, PublishedRow, read_rows  # noqa: E402
from benchmarks.row_scores import measured_step_s, memory_gib  # noqa: E402
from spec.cluster.reader import cluster_names, read_cluster  # noqa: E402
from spec.errors import ConfigError  # noqa: E402
from spec.files import atomic_path, read_text  # noqa: E402
from spec.program.command import exit_status  # noqa: E402

QUARTER = 0.25
LEAST_POINTS = 0.05
CLUSTERS = "configs/clusters/"


def sample_rows(rows: Sequence[PublishedRow], each: int) -> list[PublishedRow]:
    """``each`` rows with a measured step of every dataset, evenly spaced in its file, from the middle outwards."""
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
    """The first of these places in each dataset."""
    first: dict[str, int] = {}
    for place in places:
        first.setdefault(rows[place].dataset, place)
    return list(first.values())


def rows_on_spec(path: str, rows: Sequence[PublishedRow], root: Path) -> list[PublishedRow]:
    """The rows that ran on the hardware of a file of configs/."""
    name = Path(path).stem
    if path.startswith(CLUSTERS):
        return [row for row in rows if row.text("cluster") == name]
    built = [spec for spec in cluster_names(root) if read_cluster(spec, root=root).gpu.architecture.name == name]
    return [row for row in rows if row.text("cluster") in built]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """For each row, the constants that the functions which predict it read."""

    names: tuple[frozenset[str], ...]

    def of(self, constant: Constant, root: Path) -> list[int]:
        """The places of the rows that may read a constant, or a value that its module derives from it."""
        wanted = derived_names(root, constant)
        return [place for place, names in enumerate(self.names) if not wanted.isdisjoint(names)]


def readers(rows: Sequence[PublishedRow], times: MeasuredTimes, root: Path) -> Readers:
    """The constants that each row reads, predicted alone with empty caches."""
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
    return constant_names(codes)


def constant_names(codes: Collection[CodeType]) -> frozenset[str]:
    """The names in capitals that code reads."""
    return frozenset(name for code in codes for name in code.co_names if name.isupper())


def row_figures(rows: Sequence[PublishedRow], times: MeasuredTimes, root: Path, *, anew: bool = True) -> pd.DataFrame:
    """For each row its dataset, the relative error of its step (1 if it cannot be predicted), seconds, GiB and the
    half-width of the interval as a share of the step. ``anew`` starts with empty cost models, which constants of a
    hardware spec's model need."""
    fresh = MeasuredTimes(root=root, fitted=times.fitted) if anew else times
    figures = []
    for one in Pricing(root=root, cost_model=fresh.cost_model).predict(rows):
        measured = measured_step_s(one.row)
        error = abs(one.step_s / measured - 1.0) if one.answer and measured else 1.0
        width = np.log(one.answer.interval_high_s / one.answer.step_s) if one.answer else 0.0
        figures.append((one.row.dataset, error, one.step_s, memory_gib(one) or 0.0, width))
    return pd.DataFrame(figures, columns=["dataset", "error", "seconds", "memory", "width"])


def error_change(plain: pd.DataFrame, other: pd.DataFrame) -> dict[str, float]:
    """Mean error by dataset of ``other`` minus that of ``plain``, in points; infinite if ``other`` can no longer predict
    a row."""
    refused = (other.seconds == 0) & (plain.seconds > 0)
    changes = (100.0 * (other.error - plain.error)).mask(refused, np.inf)
    return {str(name): float(np.mean(part)) for name, part in changes.groupby(plain.dataset, sort=False)}


def _points(change: float) -> str:
    return f"{change:+.1f}" if np.isfinite(change) else "refused"


def largest_effects(plain: pd.DataFrame, less: pd.DataFrame, more: pd.DataFrame) -> str:
    """The datasets whose error changes most, in points at -25 % / +25 %; else what changes in its place."""
    down, up = error_change(plain, less), error_change(plain, more)
    most = sorted(down, key=lambda name: -max(abs(down[name]), abs(up[name])))[:3]
    effects = [
        f"{name} {_points(down[name])} / {_points(up[name])}"
        for name in most
        if max(abs(down[name]), abs(up[name])) >= LEAST_POINTS
    ]
    if effects:
        return ", ".join(effects)
    for what, unit in (("seconds", "step"), ("memory", "memory"), ("width", "interval")):
        shares = [(one[what] / plain[what]).where(plain[what] > 0, 1.0) for one in (less, more)]
        change = max(float((share - 1.0).abs().max()) for share in shares)
        if change > 1e-6:
            return f"{unit} of a row by up to {100 * change:.2g} %"
    return "nothing on these rows"


def scaled(value: Any, factor: float) -> Any:
    """A value with every number in it times ``factor``; whole numbers are rounded, to at least one."""
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
    """The project's root while the constant is multiplied by ``factor``; for a hardware spec it is ``copy``, a copy of
    configs/ with the changed spec."""
    if constant.path.endswith(".toml"):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root / "configs", copy / "configs")
        path = copy / constant.path
        path.write_text(with_number(path.read_text(encoding="utf-8"), constant.name, factor), encoding="utf-8")
        yield copy
        return
    owner = importlib.import_module(constant.path.removesuffix(".py").replace("/", "."))
    new = {constant.name: scaled(getattr(owner, constant.name), factor)}
    for name, code in _derived_names(Path(str(owner.__file__)), constant.name):
        names = vars(owner) | new
        exec(code, names)  # noqa: S102 - the module's own source
        new[name] = names[name]
    old = {name: getattr(owner, name) for name in new}
    try:
        _swap(old, new)
        yield root
    finally:
        _swap(new, old)


def _derived_names(path: Path, name: str) -> Iterator[tuple[str, CodeType]]:
    """The names that a module derives from ``name`` on import, with their code, in order: values, and classes with
    default values."""
    names = {name}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target, values = _assignment(node)
        if any(isinstance(part, ast.Name) and part.id in names for one in values for part in ast.walk(one)):
            names.add(target)
            yield target, compile(ast.Module([node], []), str(path), "exec")


def _assignment(node: ast.stmt) -> tuple[str, list[ast.expr]]:
    """The name that a statement of a module assigns and the expressions that it reads; "" for other statements."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, [value]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return name, [value]
        case ast.ClassDef(name=name, body=body):
            return name, [one.value for one in body if isinstance(one, ast.AnnAssign) and one.value]
    return "", []


def derived_names(root: Path, constant: Constant) -> frozenset[str]:
    """The name of a constant and the names that its module derives from it."""
    derived = (name for name, _ in _derived_names(root / constant.path, constant.name))
    return frozenset((constant.name, *derived))


def _swap(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Set each name to its new value in every module that holds the old one, and clear all caches."""
    for name, value in old.items():
        for package, module in list(sys.modules.items()):
            if package.split(".")[0] in PACKAGES and getattr(module, name, None) is value:
                setattr(module, name, new[name])
    for one in caches():
        one.cache_clear()


def caches() -> "list[functools._lru_cache_wrapper[Any]]":
    """All functools caches of the process."""
    return [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]


def number_of(spec: str, name: str) -> float | None:
    """The number at a dotted name of a hardware spec's text, domains being addressed by name; None if it is not a number."""
    result: Any = tomllib.loads(spec)
    for key in name.split("."):
        if isinstance(result, list):
            result = next((one for one in result if one.get("name") == key), None)
        else:
            result = result.get(key) if isinstance(result, dict) else None
    return float(result) if isinstance(result, int | float) and not isinstance(result, bool) else None


def with_number(spec: str, name: str, factor: float) -> str:
    """The spec's text with the number at a dotted name multiplied by ``factor``.

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
    """Finds the effects of constants on rows (``everything``). The figures at the constants' own values are found once."""

    everything: Sequence[PublishedRow]
    times: MeasuredTimes
    each: int
    folder: Path
    rows: list[PublishedRow] = field(init=False)
    plain: pd.DataFrame | None = None
    reading: Readers | None = None

    def __post_init__(self) -> None:
        self.rows = sample_rows(self.everything, self.each)

    def of(self, constant: Constant) -> str:
        """The effect of a constant, or why it has none."""
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
        return self._effect(
            constant, [self.rows[place] for place in places], self.plain.iloc[places].reset_index(drop=True)
        )

    def _of_spec(self, constant: Constant) -> str:
        if number_of((ROOT / constant.path).read_text(encoding="utf-8"), constant.name) is None:
            return "a fact that is no number, or several"
        rows = sample_rows(rows_on_spec(constant.path, self.everything, ROOT), 1)
        if not rows:
            return "no row on this hardware"
        return self._effect(constant, rows, row_figures(rows, self.times, ROOT, anew=False))

    def _effect(self, constant: Constant, rows: Sequence[PublishedRow], before: pd.DataFrame) -> str:
        """``before``: the figures of these rows as things stand."""
        anew = not constant.path.startswith(("ops", "solver"))
        varied = []
        for factor in (1.0 - QUARTER, 1.0 + QUARTER):
            with changed_constant(ROOT, constant, factor, self.folder / "root") as root:
                varied.append(row_figures(rows, self.times, root, anew=anew))
        return largest_effects(before, *varied)


def main(argv: Sequence[str] | None = None) -> int:
    """Find, vary, print."""
    parser = argparse.ArgumentParser(description="what every fitted or assumed constant moves")
    parser.add_argument("--measurements", type=Path, nargs="+", help="CSV files or folders of runs")
    parser.add_argument("--curves", type=Path, help="folder of measured curves in the generic CSV form")
    parser.add_argument("--rows", type=int, default=3, help="rows of each dataset looked at (default 3)")
    parser.add_argument("--only", default="", help="constants whose file or name holds this word")
    parser.add_argument("--out", type=Path, help="a page whose table takes the lines")
    options = parser.parse_args(argv)
    if options.rows < 1:
        raise ConfigError(where="command line", key="--rows", value=str(options.rows), allowed="1 or more")
    listed = constants(ROOT)
    if options.measurements is None:
        _update(options.out, listed, {})
        return 0
    with tempfile.TemporaryDirectory() as folder:
        effects = Effects(
            everything=read_rows(options.measurements),
            times=measured_times(options.curves, None),
            each=options.rows,
            folder=Path(folder),
        )
        for one in listed:
            if options.only in one.key:
                effect = effects.of(one)
                print(line_of(one, effect), flush=True)
                _update(options.out, listed, {one.key: effect})
    return 0


def _update(page: Path | None, listed: Sequence[Constant], priced: Mapping[str, str]) -> None:
    if page is None:
        return
    text = updated_page(read_text(page, "--out"), listed, priced)
    with atomic_path(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_status(main))
