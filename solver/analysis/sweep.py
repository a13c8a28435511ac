"""The best plan for every combination of models, clusters, frameworks, sequences, batches, micro-batches and worlds.

A profile is loaded once, and questions about one cluster share one cost model, which caches estimates by shape. Rows are
ranked by step time, goodput or cost.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from pathlib import Path

from profdb.on_demand import MeasuringDevice
from solver.analysis.goodput import Goodput, Reliability, RunCost, RunTerms, goodput_of, run_cost
from solver.analysis.workers import best_plans_of
from solver.problem.cluster_times import ClusterTimes, times_of
from solver.problem.loading import LoadedProblem, problem_with
from solver.problem.model_flops import attention_counted, products
from solver.problem.request import ParsedRequest, ProfileFile, Request, find_profile, read_request
from solver.problem.result import Answer
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError
from spec.settings.constraints import merged

AXES = ("model", "cluster", "framework", "seq_len", "global_batch_tokens", "micro_batch", "world_size")
"""Axes of a sweep; the last one varies fastest, as a scaling table reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One combination: its ``values`` by axis, the best plan, or in words why there is none."""

    values: dict[str, object]
    inputs: LoadedProblem
    answer: Answer | None
    why_none: str = ""


@dataclass(slots=True, kw_only=True)
class ProfileCache:
    """Profiles and times by cluster, which all questions of a process share."""

    files: dict[tuple[str, str | None], ProfileFile] = field(default_factory=dict)
    times: dict[tuple[str, ...], ClusterTimes] = field(default_factory=dict)

    def file(self, request: Request) -> ProfileFile:
        """Returns the profile of a request, read once."""
        key = (str(request.profile), request.cluster)
        if key not in self.files:
            self.files[key] = find_profile(request)
        return self.files[key]

    def open(self, request: Request, parsed: ParsedRequest, device: MeasuringDevice | None = None) -> LoadedProblem:
        """Returns the same as solver.problem.loading.load_parsed, with profile and times that are loaded once."""
        file = self.file(request)
        key = (str(file.path), repr(parsed.cluster), repr(parsed.hardware_spec), request.missing, str(request.transfer))
        if key not in self.times:
            self.times[key] = times_of(file, request, parsed, device)
        return problem_with(request, parsed, file, self.times[key])


def sweep_requests(request: Request, axes: Mapping[str, Iterable[object]]) -> list[tuple[dict[str, object], Request]]:
    """Returns every combination of the axes' values (of AXES), each with its request.

    Raises ConfigError for micro-batches that are both fixed and varied.
    """
    fixed = request.constraints.get("fix", {})
    if "micro_batch" in axes and "micro_batch" in fixed:
        allowed = "fixed or varied, not both"
        raise ConfigError(where="constraints", key="micro_batch", value=fixed["micro_batch"], allowed=allowed)
    keys = [key for key in AXES if key in axes]
    results = []
    for combination in product(*(axes[key] for key in keys)):
        values = dict(zip(keys, combination, strict=True))
        # A micro-batch is a constraint on plans, the others are fields of the request.
        fields_of_request = {key: value for key, value in values.items() if key not in ("micro_batch", "model")}
        if "model" in values:
            values["model"] = str(values["model"])
            fields_of_request["config"] = Path(str(values["model"]))
        constraints = request.constraints
        if "micro_batch" in values:
            constraints = merged(constraints, {"fix": {"micro_batch": values["micro_batch"]}})
        results.append((values, replace(request, **fields_of_request, constraints=constraints)))  # type: ignore[arg-type]
    return results


def run_sweep(
    requests: Iterable[tuple[dict[str, object], Request]],
    *,
    cache: ProfileCache | None = None,
    tick: Callable[[], object] = lambda: None,
    workers: str | int | None = None,
) -> tuple[SweepRow, ...]:
    """Returns a row with the best plan of each request, or with the reason why there is none. ``tick`` is called after
    each; who answers, ``workers`` say (solver.analysis.workers).

    Raises ConfigError or ProfileError, before any search, for a request that is not valid; ProfileError for times that
    no machine could take.
    """
    cache = cache or ProfileCache()
    questions = [(values, request, read_request(request, cache.file(request))) for values, request in requests]
    # A model is shown by its name, if it is one of a single file; sequences as the tokens that they are.
    names = {request.config: one.config.model.name for _, request, one in questions}
    named = len(set(names.values())) == len(names)
    shown_values = []
    for values, _, one in questions:
        shown = {"global_batch_tokens": one.job.global_batch_tokens} | (
            {"model": one.config.model.name} if named else {}
        )
        shown_values.append(values | {key: shown[key] for key in values if key in shown})
    # One convention of MFU for all rows: where one counts half of the attention matrix, all do.
    counted = {attention_counted(products(one.config.model, one.job), one.job.mfu) for *_, one in questions}
    if len(counted) > 1:
        questions = [
            (values, request, replace(one, job=replace(one.job, mfu="causal"))) for values, request, one in questions
        ]
    inputs = [cache.open(request, one) for _, request, one in questions]
    return tuple(
        SweepRow(values=values, inputs=one, answer=None, why_none=answer)
        if isinstance(answer, str)
        else SweepRow(values=values, inputs=one, answer=answer)
        for values, one, answer in zip(shown_values, inputs, best_plans_of(inputs, tick, workers), strict=True)
    )


def node_counts(largest: int, cluster: ClusterSpec) -> tuple[int, ...]:
    """Returns the GPUs of every whole number of nodes up to ``largest`` GPUs; ``largest`` alone if that is less than a
    node."""
    per_node = cluster.gpus_per_node
    return tuple(range(per_node, largest + 1, per_node)) or (largest,)


def plans_by_nodes(rows: Iterable[SweepRow]) -> tuple[tuple[SweepRow, SweepRow | None], ...]:
    """Returns each row, series after series, with the row of its series that trains most tokens per second on as many
    GPUs or fewer: a world that does not divide a model or a batch may be slower than a smaller one. None where none
    fits."""
    result: list[tuple[SweepRow, SweepRow | None]] = []
    for series in series_of(rows).values():
        best: SweepRow | None = None
        for row in sorted(series, key=lambda one: one.inputs.problem.job.world_size):
            if row.answer is not None and (best is None or tokens_per_s(row) > tokens_per_s(best)):
                best = row
            result.append((row, best))
    return tuple(result)


def fewest_gpus(rows: Iterable[SweepRow]) -> list[tuple[dict[str, object], int | None]]:
    """Returns for each series the values that its rows share, and the fewest GPUs that a plan fits on, None where none
    does."""
    result: list[tuple[dict[str, object], int | None]] = []
    for series in series_of(rows).values():
        worlds = [row.inputs.problem.job.world_size for row in series if row.answer is not None]
        result.append((shared_values(series[0]), min(worlds, default=None)))
    return result


def tokens_per_s(row: SweepRow) -> float:
    """Returns tokens per second of all GPUs together, 0 where no plan fits."""
    if row.answer is None:
        return 0.0
    return row.inputs.problem.job.global_batch_tokens / row.answer.step_s


def efficiencies(rows: Iterable[SweepRow]) -> list[float | None]:
    """Returns tokens per GPU and second over those of the fewest GPUs of the same series, None where no plan fits."""
    rows = list(rows)
    base: dict[str, Answer] = {}
    for name, series in series_of(rows).items():
        fitting = [one for one in series if one.answer is not None]
        first = min(fitting, key=lambda one: one.inputs.problem.job.world_size, default=None)
        if first is not None and first.answer is not None:
            base[name] = first.answer
    return [None if row.answer is None else row.answer.tgs / base[_series(row)].tgs for row in rows]


def series_of(rows: Iterable[SweepRow]) -> dict[str, list[SweepRow]]:
    """Returns the rows by series: rows of a series differ in world_size alone."""
    results: dict[str, list[SweepRow]] = {}
    for row in rows:
        results.setdefault(_series(row), []).append(row)
    return results


def shared_values(row: SweepRow) -> dict[str, object]:
    """Returns the values that all rows of its series share."""
    return {key: value for key, value in row.values.items() if key != "world_size"}


def _series(row: SweepRow) -> str:
    return repr(shared_values(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    """A row of a sweep with its goodput if a reliability is known, and the cost of a run if its tokens are;
    ``paid_gpus`` train or are spare."""

    row: SweepRow
    goodput: Goodput | None
    cost: RunCost | None
    paid_gpus: int


def judge(row: SweepRow, reliability: Reliability | None, terms: RunTerms | None) -> SweepOutcome:
    """Returns a row with goodput and cost of its best plan."""
    problem = row.inputs.problem
    goodput = None if reliability is None else goodput_of(problem.model, problem.job, reliability)
    spares = 0 if reliability is None else reliability.spare_nodes or 0
    paid = problem.job.world_size + spares * problem.cluster.gpus_per_node
    cost = None
    if terms is not None and row.answer is not None:
        cost = run_cost(problem.job, problem.cluster, row.answer.step_s, terms, goodput)
    return SweepOutcome(row=row, goodput=goodput, cost=cost, paid_gpus=paid)


def rank_rows(rows: list[SweepOutcome], by: str) -> list[SweepOutcome]:
    """Returns the rows from best to worst by ``step`` (seconds), ``goodput`` (tokens trained per second of wall clock)
    or ``cost`` (money per token, or GPU-hours where no price is known); those without a plan last."""
    return sorted(rows, key=lambda one: _order(one, by))


def _order(one: SweepOutcome, by: str) -> float:
    if one.row.answer is None:
        return inf
    effective = one.goodput.effective if one.goodput else 1.0
    if by == "step":
        return one.row.answer.step_s
    if by == "goodput":
        return -tokens_per_s(one.row) * effective
    if one.cost is not None:
        paid = one.cost.price if one.cost.price is not None else one.cost.gpu_hours
        return paid / one.cost.tokens
    return one.paid_gpus / (tokens_per_s(one.row) * effective) if effective else inf
