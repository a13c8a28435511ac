"""The pages of --report: the printed sections with pictures, and details of the best plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from solver.analysis.explanation import Explanation, adjacent_equal, explain_plan
from solver.analysis.named_plans import Candidate, NamedPlan, candidate, challenger, with_best_price
from solver.analysis.sweep import SweepOutcome, tokens_per_s
from solver.api import PlanText, Session, plan_keys
from solver.memory.device import usable_bytes
from solver.problem.loading import LoadedProblem
from solver.problem.result import Answer
from solver.report.html import check_report_requirements, write_page
from solver.report.pictures import breakdown_picture, memory_picture, pareto_picture, shares_picture
from solver.report.plans import (
    Plans,
    front_of,
    in_gib,
    in_ms,
    mfu_convention,
    origin_words,
    plan_sections,
    plans_table,
    question_section,
    search_sections,
)
from solver.report.reasons import assembly_table, compare_section, operations_table, stages_table, why_not_section
from solver.report.scaling_picture import row_words, scaling_picture
from solver.report.sections import KeyFigure, Page, Picture, ReportSection, Table
from solver.report.summary import plan_words
from solver.report.sweeps import row_name
from solver.report.timeline_picture import timeline_picture
from spec.origin import ORIGIN_MEANINGS, ORIGIN_NAMES, Origin
from spec.settings.plan import PlanSettings
from spec.units import seconds_to_ms


def plans_page(plans: Plans, sections: Sequence[ReportSection], command: str = "") -> Page:
    """Returns the page of a search, or of a given plan: the printed ``sections`` with pictures, then details of the best
    plan, then the question with the ``command`` that asks it."""
    problem = plans.inputs.problem
    nodes = problem.cluster.nodes_for(problem.job.world_size)
    gpus = f"{problem.job.world_size:,} x {problem.cluster.gpu.name} ({nodes:,} node{'s' * (nodes > 1)})"
    lead = "The best plan" if plans.result is not None else "The plan"
    return Page(
        title=f"{problem.model.name} on {gpus}",
        lead=(f"{lead}: {plan_words(plans.best.plan)}", plans.best.label(), dict(sections[0].facts)["job"]),
        tiles=tiles(plans.inputs, plans.best),
        sections=(*_illustrated(plans, sections[1:]), _question_section(sections[0], command)),
    )


def sweep_page(
    outcomes: Sequence[SweepOutcome], sections: Sequence[ReportSection], command: str = "", ranked_by: str | None = None
) -> Page:
    """Returns the page of a sweep: its ``sections`` as printed, the scaling curve, the parts of every row's step, and
    details of the best row's plan: the first of rows ``ranked_by`` something, else that of most tokens per second. Only
    tables if no row has a plan."""
    best = outcomes[0].row if ranked_by else max(outcomes, key=lambda one: tokens_per_s(one.row)).row
    models = dict.fromkeys(one.row.inputs.problem.model.name for one in outcomes)
    title = f"{', '.join(models)}: {len(outcomes)} questions"
    if best.answer is None:
        return Page(title=title, lead=["No plan fits any of the questions"], tiles=(), sections=sections)
    curve = scaling_picture(outcomes)
    plotted = replace(sections[0], pictures=() if curve is None else (curve,))
    named = [(row_words(one), one.row.answer) for one in outcomes if one.row.answer is not None]
    answers, names = [answer for _, answer in named], [name for name, _ in named]
    shares = ReportSection(
        anchor="shares",
        title="Where the time goes in each",
        pictures=(shares_picture(named),),
        tables=(plans_table(answers, "parts of the step, ms", mfu_convention(best.inputs.problem), names),),
    )
    plans = Plans(inputs=best.inputs, answers=(best.answer,))
    problem = question_section(best.inputs.problem, best.inputs.times, constraints=best.inputs.constraints)
    return Page(
        title=title,
        lead=(
            f"{f'First by {ranked_by}' if ranked_by else 'Most tokens per second'}: {row_name(best.values)}: "
            f"{plan_words(best.answer.plan)}",
            best.answer.label(),
            dict(problem.facts)["job"],
        ),
        tiles=tiles(best.inputs, best.answer),
        sections=(
            plotted,
            *sections[1:],
            shares,
            *_illustrated(plans, plan_sections(plans)),
            _question_section(problem, command),
        ),
    )


def write_report(
    folder: str | Path,
    session: Session,
    *,
    plan: PlanText | None = None,
    top_k: int = 10,
    why_not: Sequence[PlanText] = (),
    compare: Sequence[PlanText] = (),
) -> Path:
    """Writes the page of ``--report`` to ``folder``/index.html and returns its path: of a search, or of one ``plan``, with
    plans compared with its best (``why_not``) and with each other (``compare``).

    Raises as Session.search and Session.price, ConfigError if jinja2 is not installed, ExportError if the page cannot be
    written.
    """
    check_report_requirements(Path(folder))
    inputs = session.inputs
    against = [_challenger(session, one) for one in why_not]
    compared = [_candidate(session, one, "compare") for one in compare]
    if plan is None:
        result = session.search(top_k=top_k)
        plans = Plans(inputs=inputs, answers=result.best, result=result)
        sections = search_sections(plans, result)
    else:
        alone = _candidate(session, plan, "plan")
        plans = Plans(inputs=inputs, answers=(alone.answer,))
        sections = plan_sections(plans, alone.obstacles)
    sections += [why_not_section(place, plans.best, one) for place, one in enumerate(against, start=1)]
    sections += [compare_section(compared)] if compared else []
    problem = question_section(inputs.problem, inputs.times, constraints=inputs.constraints)
    return write_page(plans_page(plans, [problem, *sections]), Path(folder))


def _candidate(session: Session, plan: PlanText, where: str) -> Candidate:
    named = NamedPlan(option=where, answer=session.price(plan, where=where))
    return candidate(named, session.inputs, ())


def _challenger(session: Session, plan: PlanText) -> Candidate:
    if isinstance(plan, Answer):
        return _candidate(session, plan, "why_not")
    keys = plan_keys(plan, "why_not")
    named = NamedPlan(option="why_not", settings=PlanSettings(**keys), keys=keys)
    priced = with_best_price(named, session.inputs.problem, session.inputs.constraints)
    return challenger(priced, session.inputs, ())


def tiles(inputs: LoadedProblem, best: Answer) -> tuple[KeyFigure, ...]:
    """Returns the summary of the best plan."""
    problem = inputs.problem
    low, high = (seconds_to_ms(bound) for bound in (best.interval_low_s, best.interval_high_s))
    figures = {
        "step": (f"{seconds_to_ms(best.step_s):,.1f} ms", f"80 % interval {low:,.0f} to {high:,.0f}"),
        "throughput": (
            f"{best.tgs:,.0f} tokens/s",
            f"of a GPU; {problem.job.global_batch_tokens / best.step_s:,.0f} of all",
        ),
        "MFU": (f"{100 * best.mfu:.1f} %", f"of the dense peak of {problem.job.precision.compute}"),
        "memory": (f"{in_gib(best.needed_bytes)} GiB", f"of {in_gib(usable_bytes(problem.cluster))} to use"),
        "origin": (origin_words(best).split(" ")[0], origin_words(best)),
    }
    return tuple(KeyFigure(label=label, value=value, note=note) for label, (value, note) in figures.items())


def _question_section(problem: ReportSection, command: str) -> ReportSection:
    """Returns the question as printed, with the command that asks it."""
    if not command:
        return problem
    return replace(
        problem,
        title="Question and command",
        paragraphs=["the same question, from the project's folder"],
        literal=command,
    )


def _illustrated(plans: Plans, sections: Sequence[ReportSection]) -> list[ReportSection]:
    """Returns the sections with their pictures, then memory, pipeline and origins of the best plan."""
    problem = plans.inputs.problem
    explanation = explain_plan(problem, plans.best.plan)
    usable = usable_bytes(problem.cluster)
    stages = adjacent_equal(explanation.stages)
    pictures: dict[str, Picture] = {"breakdown": breakdown_picture(plans.answers)}
    if plans.result is not None:
        pictures["pareto"] = pareto_picture(front_of(plans.result), plans.answers, usable)
    added: Mapping[str, tuple[Table, ...]] = {"breakdown": (assembly_table(explanation),)}
    calibrated = ["the sum below is before the calibration"] * (problem.calibration is not None)
    illustrated = [
        replace(
            one,
            pictures=[pictures[one.anchor]] if one.anchor in pictures else (),
            tables=[*one.tables, *added.get(one.anchor, ())],
            paragraphs=[*one.paragraphs, *(calibrated if one.anchor == "breakdown" else ())],
        )
        for one in sections
    ]
    memory = ReportSection(
        anchor="memory",
        title="Memory by stage",
        pictures=(memory_picture(stages, usable),),
        tables=(stages_table(stages),),
    )
    return [*illustrated, memory, _timeline(plans), _origins(plans, explanation)]


def _timeline(plans: Plans) -> ReportSection:
    plan = plans.best.plan
    if plan.pp == 1:
        return ReportSection(
            anchor="timeline", title="Pipeline", paragraphs=["the best plan has one stage: nothing waits in a pipeline"]
        )
    picture = timeline_picture(plans.inputs.problem, plan)
    return ReportSection(anchor="timeline", title="Pipeline", pictures=(picture,))


def _origins(plans: Plans, explanation: Explanation) -> ReportSection:
    best = plans.best
    share = 100 * best.standard_error_s / best.step_s
    origins = [
        [
            ORIGIN_NAMES[origin],
            f"{100 * best.origins_s[ORIGIN_NAMES[origin]] / best.step_s:.1f}",
            in_ms(best.origins_s[ORIGIN_NAMES[origin]]),
            ORIGIN_MEANINGS[origin],
        ]
        for origin in Origin
        if best.origins_s.get(ORIGIN_NAMES[origin], 0.0) > 0
    ]
    errors = [
        [family.replace("_", " "), in_ms(error), f"{100 * error / best.step_s:.1f}"]
        for family, error in sorted(best.errors_s.items(), key=lambda item: -item[1])
        if error > 0
    ]
    return ReportSection(
        anchor="origins",
        title="Where the numbers come from",
        paragraphs=(
            f"times: {plans.inputs.source}",
            f"standard error of the step from its curves: {share:.1f} %; the interval also holds the errors of "
            "formulas (docs/accuracy.md)",
        ),
        tables=(
            Table(
                caption="seconds of the best plan's step by origin",
                header=("origin", "% of the step", "ms", "means"),
                rows=origins,
                words=frozenset({0, 3}),
            ),
            Table(
                caption="standard error of the step by family of curves",
                header=("curves", "ms", "% of the step"),
                rows=errors,
            ),
            operations_table(explanation),
        ),
    )
