"""Published training runs as rows that state their whole question, and their predictions.

A row names its cluster, framework preset, job settings, model file and possible plans in the syntax of the command line;
nothing is parsed from free text. Files are CSV, with a folder ``models`` and, for hardware specs that the project does
not ship, ``clusters`` next to the file or in a folder above. Of several plans the fastest that fits in memory is taken,
or the smallest if none fits: a rule that sees no measurement. Settings that were inferred from the measured times (the
column ``inferred``) are not read.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from profdb.cost_model import CostModel
from solver.analysis.named_plans import price_requested
from solver.problem.problem import Problem
from solver.problem.request import ParsedRequest, Request, read_request
from solver.problem.requested_plan import parse_plan
from solver.problem.result import Answer
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError, UserError
from spec.files import shipped_folder
from spec.settings.job import job_settings
from spec.settings.setting import parse_settings

SIZES = ("num_gpus", "seq_len", "global_batch_sequences")
QUESTION = ("cluster", "cluster_changes", "preset", "job", "model_file", "plans", "unpriced", "refused")

# Older keys of the files, or keys with values (of presets "preset=NAME"), -> today's. Empty: dropped, as the program no
# longer models it.
CURRENT_WORDS: Mapping[str, str] = {
    # CUDA_LAUNCH_BLOCKING=1, which bigscience's launch scripts may have set (33 rows)
    "blocking_launches": "",
    # llm-foundry's attention on packed tokens without padding (3 rows)
    "layers.unpads_tokens": "",
    # follows from the version of FSDP
    "data_parallel.copies_parameters": "",
    "data_parallel.joins_gradients=true": "data_parallel.fsdp_version=1",
    "host.code=modules": "host.code=modules,layers.transformer_engine=true",
    "pipeline.deals=ends": "pipeline.partition=first_last",
    "layers.two_pass_norms=true": "layers.norm_kernel=apex",
    "layers.two_pass_norms=false": "layers.norm_kernel=fused",
    "data_parallel.keeps_stand_ins": "data_parallel.keeps_dummy_wgrad",
    "layers.turns_chunks": "layers.transposes_chunks",
    "layers.shares_kept_inputs": "layers.shares_saved_inputs",
    "wide_norms": "fp32_norms",
}
# What a plan without these keys ran with, whatever the program's defaults are.
SILENT_PLAN: Mapping[str, str] = {"strategy": "mtp", "zero_stage": "0"}
UNEVEN_BATCH = "a smaller last micro-batch (interpolated)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Line ``line`` of the CSV file ``path``, cells by column. ``fault`` says why a damaged line cannot be read."""

    path: Path
    line: int
    cells: Mapping[str, str]
    fault: str = ""

    @property
    def where(self) -> str:
        """File and line, for errors."""
        return f"{self.path}:{self.line}"

    def text(self, column: str) -> str:
        """Returns a cell, stripped; "" where the cell or the column is absent."""
        return self.cells.get(column, "").strip()

    def whole(self, column: str, default: int | None = None) -> int:
        """Returns a whole number, or ``default`` for an empty cell. Raises ConfigError for anything else."""
        word = self.text(column)
        if not word and default is not None:
            return default
        if not word.isdecimal():
            raise ConfigError(where=self.where, key=column, value=word, allowed="a whole number")
        return int(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow(Row):
    """One published run."""

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.text("dataset")

    @property
    def row_id(self) -> str:
        """The row's name in its dataset."""
        return self.text("row_id")

    def number(self, column: str) -> float:
        """Returns a number, 0 for a cell that holds none."""
        try:
            return float(self.text(column))
        except ValueError:
            return 0.0


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrediction:
    """A row, its answer and predicted ``step_s``; ``gaps`` are features of the run that are not modelled. Without an
    answer ``reason`` says why."""

    row: PublishedRow
    problem: Problem | None = None
    answer: Answer | None = None
    step_s: float = 0.0
    gaps: tuple[str, ...] = ()
    reason: str = ""


def read_rows(paths: Sequence[Path]) -> list[PublishedRow]:
    """The rows of every CSV file in ``paths``, files or folders, in path order.

    Raises ConfigError for a path without CSV files, an unreadable file, or one that lacks columns.
    """
    rows: list[PublishedRow] = []
    for path in paths:
        files = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
        if not files:
            raise ConfigError(where=str(path), key="--measurements", value=path.name, allowed="CSV files")
        for file in files:
            rows.extend(rows_of(file, PublishedRow, ("dataset", "row_id", *SIZES, *QUESTION), "--measurements"))
    return rows


def rows_of(path: Path, kind: type[AnyRow], columns: Sequence[str], option: str) -> Iterator[AnyRow]:
    """Yields the rows of a file that ``option`` names. Raises ConfigError as read_rows."""
    try:
        reader = csv.reader(path.read_text(encoding="utf-8-sig").splitlines(keepends=True), strict=True)
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        allowed = f"a readable CSV file ({error})"
        raise ConfigError(where=str(path), key=option, value=path.name, allowed=allowed) from error
    header = [name.strip() for name in lines[0][1]] if lines else []
    missing = [name for name in columns if name not in header]
    if missing:
        allowed = f"also {', '.join(missing)}"
        raise ConfigError(where=str(path), key="columns", value=header[:4], allowed=allowed)
    for line, cells in lines[1:]:
        fault = "" if len(cells) == len(header) else f"{path}:{line}: {len(cells)} cells for {len(header)}"
        yield kind(path=path, line=line, cells=dict(zip(header, cells, strict=False)), fault=fault)


def current_words(text: str) -> dict[str, str]:
    """The values of ``key=value,...`` by today's keys, without dropped ones."""
    entries = ",".join(CURRENT_WORDS.get(entry, entry) for entry in text.split(","))
    pairs = [entry.partition("=")[::2] for entry in entries.split(",") if entry]
    return {CURRENT_WORDS.get(key, key): value for key, value in pairs if CURRENT_WORDS.get(key, key)}


def _joined_words(words: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in words.items())


def file_for(row: PublishedRow, name: str) -> Path | None:
    """The file ``name`` next to the row's file, or in the nearest folder above; None without one."""
    return next((folder / name for folder in row.path.resolve().parents if (folder / name).is_file()), None)


def parse_row(row: PublishedRow, root: Path) -> ParsedRequest:
    """The row's question, parsed like the command line. Raises ConfigError for a cell that cannot be read."""
    gpus, seq_len, sequences = map(row.whole, SIZES)
    job = current_words(row.text("job"))
    request = Request(
        root=root,
        config=file_for(row, f"models/{row.text('model_file')}") or Path(row.text("model_file")),
        cluster=_hardware_spec(row),
        framework=CURRENT_WORDS.get(f"preset={row.text('preset')}", row.text("preset")),
        world_size=gpus,
        seq_len=seq_len,
        global_batch_tokens=sequences * seq_len,
        job=parse_settings(_joined_words(job), job_settings(), row.where) if job else {},
    )
    return read_request(request)


def _hardware_spec(row: PublishedRow) -> str:
    """The name or path of the row's hardware spec, and its changes."""
    name, changes = row.text("cluster"), row.text("cluster_changes")
    return ":".join([str(file_for(row, f"clusters/{name}.toml") or name), *filter(None, changes.split(";"))])


@dataclass(slots=True, kw_only=True)
class Pricing:
    """Predicts rows with the cost model that ``cost_model`` returns for a cluster; ``root`` is the project's folder."""

    cost_model: Callable[[ClusterSpec], CostModel]
    root: Path = field(default_factory=shipped_folder)
    op_timers: dict[str, OpTimer] = field(default_factory=dict)

    def predict(self, rows: Sequence[PublishedRow]) -> list[RowPrediction]:
        """One prediction per row, in order; for a row that cannot be predicted it holds the reason."""
        return [self._prediction(row) for row in rows]

    def _prediction(self, row: PublishedRow) -> RowPrediction:
        """The prediction of the row's fastest plan that fits, or of its smallest plan if none fits."""
        plans = row.text("plans").split(" | ")
        gaps = tuple(filter(None, row.text("unpriced").split("; ")))
        reason = row.fault or row.text("refused")
        if reason:
            return RowPrediction(row=row, reason=reason)
        try:
            problem = self._problem(parse_row(row, self.root))
            steps = [_priced(plan, problem, row.where) for plan in plans]
        except UserError as error:
            return RowPrediction(row=row, gaps=gaps, reason=str(error))
        fitting = [one for one in steps if one[0].needed_bytes <= problem.cluster.gpu.memory_bytes]
        least = min(steps, key=lambda one: one[0].needed_bytes)
        answer, step_s = min(fitting, key=lambda one: one[1], default=least)
        uneven = (UNEVEN_BATCH,) if "beyond=" in row.text("plans") else ()
        return RowPrediction(row=row, problem=problem, answer=answer, step_s=step_s, gaps=(*gaps, *uneven))

    def _problem(self, parsed: ParsedRequest) -> Problem:
        cluster, key = parsed.cluster, repr(parsed.cluster)
        if key not in self.op_timers:
            self.op_timers[key] = OpTimer.on(cluster, self.cost_model(cluster))
        return Problem(model=parsed.config.model, job=parsed.job, cluster=cluster, op_timer=self.op_timers[key])


def _priced(text: str, problem: Problem, where: str) -> tuple[Answer, float]:
    """The answer for one stated plan and the seconds of its step.

    ``num_micro`` overrides the number of micro-batches; ``beyond`` adds that share of the time of one more micro-batch, or
    of pp more where stages are interleaved.
    """
    words = {**SILENT_PLAN, **current_words(text)}
    whole, beyond = int(words.pop("num_micro", "0")), float(words.pop("beyond", "0"))
    plan, job = parse_plan(_joined_words(words), where), problem.job
    tp, pp, micro_batch = plan.tp or 1, plan.pp or 1, plan.micro_batch or 1
    micro_tokens = job.world_size // (tp * pp * plan.cp) * micro_batch * job.seq_len

    def answer_of(num_micro: int) -> Answer:
        sized = replace(job, global_batch_tokens=num_micro * micro_tokens or job.global_batch_tokens)
        return price_requested(plan, replace(problem, job=sized), where)

    answer = answer_of(whole)
    if not beyond:
        return answer, answer.step_s
    longer_s = answer_of(whole + (pp if plan.vpp > 1 else 1)).step_s
    return answer, answer.step_s + beyond * (longer_s - answer.step_s)
