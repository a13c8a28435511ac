"""Rows priced together: plans of one model and job form a table, and each row takes its answer from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.accuracy_rows.books import Books
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.hardware import cluster_of
from benchmarks.accuracy_rows.job import asked_job
from benchmarks.accuracy_rows.memory import memory_gib
from benchmarks.accuracy_rows.model import model_of
from benchmarks.accuracy_rows.notes import notes_of
from benchmarks.accuracy_rows.plan import Candidate, candidates_of
from benchmarks.accuracy_rows.row import Row
from solver.plans.plan_table import Plan, PlanTable
from solver.question import Question
from solver.result import Answer
from solver.search import price_plan
from solver.times.op_times import Pricer
from spec.cluster.cluster import ClusterSpec
from spec.cluster.segment import segmented
from spec.errors import UserError
from spec.settings.job import job_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the solver says of one row; ``answer`` is None and ``reason`` says why when it cannot."""

    row: Row
    question: Question | None = None
    answer: Answer | None = None
    step_s: float | None = None
    memory_gib: float | None = None
    gaps: tuple[Gap, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A row as a question with the plans that may answer it."""

    row: Row
    question: Question
    cluster_key: str
    candidates: tuple[Candidate, ...]
    gaps: tuple[Gap, ...]

    def plans(self) -> list[Plan]:
        """Every plan that must be priced: the candidates, and those with one micro-batch more."""
        longer = [one.longer for one in self.candidates if one.beyond]
        return [*(one.plan for one in self.candidates), *longer]

    def table_key(self, plan: Plan) -> tuple[object, ...]:
        """Plans with one key share a table."""
        return (
            self.cluster_key,
            self.question.model,
            self.question.job,
            plan.strategy,
            plan.recompute,
            plan.schedule,
            plan.recompute_modules,
            plan.offload_modules,
            plan.stage_layout,
        )


Answers = dict[tuple[tuple[object, ...], Plan], Answer]


@dataclass(slots=True, kw_only=True)
class Pricing:
    """Prices rows from one set of books; one open book for each GPU and fabric."""

    root: Path
    books: Books
    pricers: dict[str, Pricer] = field(default_factory=dict)

    def predict(self, rows: Sequence[Row]) -> list[Prediction]:
        """One prediction a row, in order; a row that cannot be priced keeps its reason."""
        prepared = [self._prepared_or_refused(row) for row in rows]
        ready = [one for one in prepared if isinstance(one, Prepared)]
        answers = _answers(ready)
        return [_prediction(one, answers) if isinstance(one, Prepared) else one for one in prepared]

    def _prepared_or_refused(self, row: Row) -> Prepared | Prediction:
        if row.fault:
            return Prediction(row=row, reason=row.fault)
        try:
            return self._prepared(row)
        except UserError as error:
            return Prediction(row=row, reason=str(error))

    def _prepared(self, row: Row) -> Prepared:
        notes = notes_of(row)
        cluster = cluster_of(row, self.root)
        model, model_gaps = model_of(row, notes)
        asked, job_gaps = asked_job(row, notes)
        job = job_of(asked, cluster.gpu.architecture)
        cluster = segmented(cluster, job.world_size, job.nvlink_segment)
        candidates, plan_gaps = candidates_of(row, notes, job)
        outer = cluster.domains[-1]
        key = (
            f"{cluster.name} {outer.name} {outer.bandwidth} {cluster.nics_per_node} {cluster.scale_up_ranks}"
        )
        return Prepared(
            row=row,
            question=Question(
                model=model,
                job=job,
                cluster=cluster,
                pricer=self._pricer(key, cluster),
            ),
            cluster_key=key,
            candidates=tuple(candidates),
            gaps=(*model_gaps, *job_gaps, *plan_gaps),
        )

    def _pricer(self, key: str, cluster: ClusterSpec) -> Pricer:
        if key not in self.pricers:
            self.pricers[key] = Pricer.on(cluster, self.books.cost_model(cluster))
        return self.pricers[key]


def _answers(prepared: Sequence[Prepared]) -> Answers:
    """Every plan of every row priced once; a table that cannot be priced leaves its plans out."""
    tables: dict[tuple[object, ...], tuple[Question, dict[Plan, None]]] = {}
    for one in prepared:
        for plan in one.plans():
            _, wanted = tables.setdefault(one.table_key(plan), (one.question, {}))
            wanted[plan] = None
    answers: Answers = {}
    for key, (question, wanted) in tables.items():
        plans = list(wanted)
        try:
            predicted = price_plan(question, PlanTable.of(*plans))
        except UserError:
            continue
        answers |= {(key, plan): answer for plan, answer in zip(plans, predicted, strict=True)}
    return answers


def _prediction(one: Prepared, answers: Answers) -> Prediction:
    """The chosen plan's answer, or why its table could not be priced."""
    try:
        answer, step_s = _chosen(one, answers)
    except UserError as error:
        return Prediction(row=one.row, gaps=one.gaps, reason=str(error))
    return Prediction(
        row=one.row,
        question=one.question,
        answer=answer,
        step_s=step_s,
        memory_gib=memory_gib(one.row.dataset, one.question, answer),
        gaps=one.gaps,
    )


def _chosen(one: Prepared, answers: Answers) -> tuple[Answer, float]:
    """The fastest candidate that fits, or the smallest when none does."""
    priced = [_step_of(one, candidate, answers) for candidate in one.candidates]
    fitting = [
        predicted
        for predicted in priced
        if predicted[0].needed_bytes <= one.question.cluster.gpu.memory_bytes
    ]
    if fitting:
        return min(fitting, key=lambda predicted: predicted[1])
    return min(priced, key=lambda predicted: predicted[0].needed_bytes)


def _step_of(one: Prepared, candidate: Candidate, answers: Answers) -> tuple[Answer, float]:
    """A candidate's step; a smaller last micro-batch costs its share of a whole one (Assumption)."""
    answer = _answer_of(one, candidate.plan, answers)
    if not candidate.beyond:
        return answer, answer.step_s
    more = _answer_of(one, candidate.longer, answers)
    return answer, answer.step_s + candidate.beyond * (more.step_s - answer.step_s)


def _answer_of(one: Prepared, plan: Plan, answers: Answers) -> Answer:
    """The answer from its table, or priced alone so that the error names this row's own trouble."""
    found = answers.get((one.table_key(plan), plan))
    return found if found is not None else price_plan(one.question, PlanTable.of(plan))[0]
