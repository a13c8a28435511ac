"""Published training runs as rows that state their whole question, and the prices of them.

A row names its cluster, framework preset, settings of the job, model file and the plans that it may have run in the
words of the command line; nothing is read out of free text. Files: CSV, with a folder ``models`` and, for sheets that
the project does not ship, ``clusters`` beside the file or in a folder above. Of several plans the fastest that fits
in the GPU's memory is taken, or the one that needs least where none fits: a rule that sees no measurement.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from profdb.cost_model import CostModel
from solver.analysis.named_plans import price_written
from solver.problem.problem import Problem
from solver.problem.request import Request, read_request
from solver.problem.result import Answer
from solver.problem.typed_plan import parse_plan
from solver.times.op_times import Pricer
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import figures_of
from spec.errors import ConfigError, UserError
from spec.files import read_toml, shipped_folder
from spec.job import JobSpec
from spec.settings.job import job_settings
from spec.settings.setting import typed_values

COLUMNS = ("dataset", "row_id", "num_gpus", "seq_len", "global_batch_sequences")
STATED = ("cluster", "cluster_changes", "preset", "job", "model_file", "plans", "unpriced", "refused")

# The words of the files -> those of the program. An empty word is dropped: what no framework or user would set.
PRESETS: Mapping[str, str] = {}
JOB_KEYS: Mapping[str, str] = {
    "blocking_launches": "",
    "layers.unpads_tokens": "",
    "data_parallel.copies_parameters": "",
}
# "key=value" as the files have it -> as the program has it
JOB_WORDS: Mapping[str, str] = {
    "host.code=modules": "host.code=modules,layers.transformer_engine=true",
    "data_parallel.joins_gradients=true": "data_parallel.fsdp_version=1",
}
PLAN_KEYS: Mapping[str, str] = {}
PLAN_WORDS: Mapping[str, str] = {}
# What a plan says that is silent about it, whatever the program takes by default.
PLAN_DEFAULTS: Mapping[str, str] = {"strategy": "mtp", "zero_stage": "0"}
UNEVEN_BATCH = "a smaller last micro-batch (interpolated)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the file ``path``: cells by column. ``fault`` says why a damaged line cannot be read."""

    path: Path
    line: int
    cells: Mapping[str, str]
    fault: str = ""

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.text("dataset")

    @property
    def row_id(self) -> str:
        """The row's name in its dataset."""
        return self.text("row_id")

    @property
    def where(self) -> str:
        """File and line, for errors."""
        return f"{self.path}:{self.line}"

    def text(self, column: str) -> str:
        """A cell, stripped; "" where the cell or the column is absent."""
        return self.cells.get(column, "").strip()

    def number(self, column: str) -> float:
        """A number, 0 for a cell that holds none."""
        try:
            return float(self.text(column))
        except ValueError:
            return 0.0

    def size(self, column: str) -> int:
        """A whole number of at least 1; raises ConfigError for anything else."""
        if not self.text(column).isdecimal() or not int(self.text(column)):
            raise ConfigError(where=self.where, key=column, value=self.text(column), allowed="1 or more")
        return int(self.text(column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A row with the answer of its plan: ``step_s`` seconds; ``gaps`` what the run did and nobody prices. Without an
    answer ``reason`` says why.
    """

    row: Row
    question: Problem | None = None
    answer: Answer | None = None
    step_s: float = 0.0
    gaps: tuple[str, ...] = ()
    reason: str = ""


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Returns the rows of every CSV file named or lying below a named folder, in path order.

    Raises ConfigError for a path without CSV files, an unreadable file, or one that does not state its questions.
    """
    rows: list[Row] = []
    for path in paths:
        files = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
        if not files:
            raise ConfigError(
                where=str(path), key="--measurements", value=str(path), allowed="a folder of CSV files"
            )
        for file in files:
            rows.extend(_rows_of(file))
    return rows


def _rows_of(path: Path) -> Iterator[Row]:
    try:
        reader = csv.reader(path.read_text(encoding="utf-8-sig").splitlines(keepends=True), strict=True)
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            where=str(path), key="--measurements", value=str(error), allowed="a readable CSV file"
        ) from error
    header = [name.strip() for name in lines[0][1]] if lines else []
    missing = [name for name in (*COLUMNS, *STATED) if name not in header]
    if missing:
        raise ConfigError(
            where=str(path), key="columns", value=header[:4], allowed=f"also {', '.join(missing)}"
        )
    for line, cells in lines[1:]:
        fault = "" if len(cells) == len(header) else f"{path}:{line}: {len(cells)} cells for {len(header)}"
        yield Row(path=path, line=line, cells=dict(zip(header, cells, strict=False)), fault=fault)


def translated(text: str, keys: Mapping[str, str], words: Mapping[str, str]) -> str:
    """Returns ``key=value,...`` in the program's words; what is dropped is left out."""
    found = []
    for entry in filter(None, (words.get(part, part) for part in text.split(","))):
        key, _, value = entry.partition("=")
        if keys.get(key, key):
            found.append(f"{keys.get(key, key)}={value}")
    return ",".join(found)


def beside(row: Row, name: str) -> Path | None:
    """Returns the file ``name`` beside the row's, or in the nearest folder above that has it; None without one."""
    return next((folder / name for folder in row.path.resolve().parents if (folder / name).is_file()), None)


def request_of(row: Row, folder: Path, root: Path) -> Request:
    """Returns the row's question in the words of the command line; a changed sheet is written into ``folder``."""
    model = beside(row, f"models/{row.text('model_file')}")
    if model is None:
        raise ConfigError(
            where=row.where, key="model_file", value=row.text("model_file"), allowed="a file of models/"
        )
    job = translated(row.text("job"), JOB_KEYS, JOB_WORDS)
    return Request(
        root=root,
        config=model,
        cluster=_hardware_spec(row, folder, root),
        framework=PRESETS.get(row.text("preset"), row.text("preset")),
        world_size=row.size("num_gpus"),
        seq_len=row.size("seq_len"),
        global_batch_tokens=row.size("global_batch_sequences") * row.size("seq_len"),
        job=typed_values(job, job_settings(), row.where) if job else {},
    )


def _hardware_spec(row: Row, folder: Path, root: Path) -> str:
    """The name or path of the row's hardware spec; with changes it is a file in ``folder``."""
    stated, changes = row.text("cluster"), row.text("cluster_changes")
    own = beside(row, f"clusters/{stated}.toml")
    if not changes:
        return str(own or stated)
    sheet: dict[str, Any] = dict(read_toml(own or root / "configs" / "clusters" / f"{stated}.toml").values)
    tables = {f"domains.{one['name']}": one for one in sheet["domains"]} | {"node": sheet["node"]}
    for change in changes.split(";"):
        path, _, value = change.partition("=")
        table, _, key = path.rpartition(".")
        if table not in tables:
            allowed = f"keys of {', '.join(tables)}"
            raise ConfigError(where=row.where, key="cluster_changes", value=path, allowed=allowed)
        tables[table][key] = int(value) if value.isdecimal() else _number_or_word(value)
    sheet["sources"] = dict.fromkeys(figures_of({**sheet, "sources": {}}), row.where)
    if isinstance(sheet["gpu"], str):
        sheet["sources"]["gpu"] = row.where
    changed = folder / "cluster.toml"
    changed.write_text("\n".join(f"{key} = {_toml(value)}" for key, value in sheet.items()), encoding="utf-8")
    return str(changed)


def job_of_row(row: Row) -> JobSpec:
    """Returns the row's job. Raises ConfigError for a row that asks nothing."""
    with TemporaryDirectory() as folder:
        return read_request(request_of(row, Path(folder), shipped_folder())).job


@dataclass(slots=True, kw_only=True)
class Pricing:
    """Prices rows by the times that ``cost_model`` gives for a cluster; ``root`` is the project's folder."""

    cost_model: Callable[[ClusterSpec], CostModel]
    root: Path = field(default_factory=shipped_folder)
    pricers: dict[str, Pricer] = field(default_factory=dict)

    def predict(self, rows: Sequence[Row]) -> list[Prediction]:
        """Returns one prediction a row, in order; a row that cannot be priced keeps its reason."""
        return [self._prediction(row) for row in rows]

    def _prediction(self, row: Row) -> Prediction:
        reason = row.fault or row.text("refused")
        gaps = tuple(filter(None, row.text("unpriced").split("; ")))
        try:
            return Prediction(row=row, reason=reason) if reason else self._priced(row, gaps)
        except UserError as error:
            return Prediction(row=row, gaps=gaps, reason=str(error))

    def _priced(self, row: Row, gaps: tuple[str, ...]) -> Prediction:
        """The fastest plan that fits, or the smallest where none does."""
        with TemporaryDirectory() as folder:
            request = request_of(row, Path(folder), self.root)
            steps = [self._step(request, text, row.where) for text in row.text("plans").split(" | ")]
        fitting = [one for one in steps if one[1].needed_bytes <= one[0].cluster.gpu.memory_bytes]
        if fitting:
            question, answer, step_s = min(fitting, key=lambda one: one[2])
        else:
            question, answer, step_s = min(steps, key=lambda one: one[1].needed_bytes)
        uneven = (UNEVEN_BATCH,) if "beyond=" in row.text("plans") else ()
        return Prediction(row=row, question=question, answer=answer, step_s=step_s, gaps=(*gaps, *uneven))

    def _question(self, request: Request) -> Problem:
        asked = read_request(request)
        key = repr(asked.cluster)
        if key not in self.pricers:
            self.pricers[key] = Pricer.on(asked.cluster, self.cost_model(asked.cluster))
        return Problem(
            model=asked.config.model, job=asked.job, cluster=asked.cluster, pricer=self.pricers[key]
        )

    def _step(self, request: Request, text: str, where: str) -> tuple[Problem, Answer, float]:
        """The answer of one stated plan and the seconds of its step.

        ``num_micro`` asks for so many micro-batches, whatever the batch; ``beyond`` adds that share of what one turn more
        takes, a turn being one micro-batch, or pp of them where stages are interleaved.
        """
        words = {**PLAN_DEFAULTS, **dict(_pairs(translated(text, PLAN_KEYS, PLAN_WORDS)))}
        whole, beyond = int(words.pop("num_micro", "0")), float(words.pop("beyond", "0"))
        plan = parse_plan(",".join(f"{key}={value}" for key, value in words.items()), where)
        dp = (request.world_size or 1) // ((plan.tp or 1) * (plan.pp or 1) * plan.cp)
        turn = (plan.pp or 1) if plan.vpp > 1 else 1

        def priced(num_micro: int) -> tuple[Problem, Answer]:
            tokens = num_micro * dp * (plan.micro_batch or 1) * (request.seq_len or 0)
            question = self._question(
                replace(request, global_batch_tokens=tokens or request.global_batch_tokens)
            )
            return question, price_written(plan, question, where)

        question, answer = priced(whole)
        longer_s = priced(whole + turn)[1].step_s if beyond else answer.step_s
        return question, answer, answer.step_s + beyond * (longer_s - answer.step_s)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for entry in text.split(","):
        key, _, value = entry.partition("=")
        yield key, value


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _toml(value: Any) -> str:
    """A value of a TOML file on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)
