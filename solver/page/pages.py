"""The page of a search or of one plan, and the page of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass

from solver.decision.ranking import Judged
from solver.decision.sweep import tokens_per_s
from solver.page.content import Page, PageTable, Section, Tile
from solver.page.plan_sections import Ranked, plan_sections, tiles
from solver.page.scaling_plot import row_words, scaling_picture
from solver.report.swept import Swept
from spec.parameters import num_parameters
from spec.settings.job import settings_apart
from spec.settings.setting import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a page repeats of how it was asked: the ``command``, the ``question`` as printed, and ``notes`` (a run's length,
    its goodput, why a plan cannot run)."""

    command: str
    question: str
    notes: Sequence[str] = ()


def plans_page(ranked: Ranked, told: Told) -> Page:
    """The page of a search, or of a plan that was typed."""
    question = ranked.opened.question
    nodes = question.cluster.nodes_for(question.job.world_size)
    on = f"{question.job.world_size:,} x {question.cluster.gpu.name} ({nodes:,} node{'s' * (nodes > 1)})"
    found = "The fastest plan that fits" if ranked.result is not None else "The plan"
    return Page(
        title=f"{question.model.name} on {on}",
        lead=f"{found}: {ranked.best.label()}",
        tiles=tiles(ranked),
        sections=(*_notes(told), *plan_sections(ranked), _asked(ranked, told)),
    )


def sweep_page(rows: Sequence[Judged], tables: Sequence[tuple[str, Swept]], told: Told) -> Page:
    """The page of a sweep: ``tables`` with their captions, the scaling curve, and the best row's plan taken apart: the first
    one where rows are ``ranked``, else that of the most tokens per second. Rows without any plan make a page of tables alone."""
    model = rows[0].row.opened.question.model.name
    shown = scaling_picture(rows)
    sweep = Section(
        anchor="sweep",
        title="The questions side by side",
        pictures=() if shown is None else (shown,),
        tables=[
            PageTable(caption=caption, header=one.header, rows=one.cells, words=one.words)
            for caption, one in tables
        ],
    )
    best = max(rows, key=lambda one: tokens_per_s(one.row))
    sections = [*_notes(told), sweep]
    lead = "No plan fits any of the questions"
    at_a_glance: Sequence[Tile] = ()
    if best.row.answer is not None:
        ranked = Ranked(opened=best.row.opened, answers=(best.row.answer,))
        lead = f"Most tokens per second: {row_words(best)}, {best.row.answer.label()}"
        at_a_glance = tiles(ranked)
        sections += [*plan_sections(ranked), _asked(ranked, told)]
    return Page(title=f"{model}: {len(rows)} questions", lead=lead, tiles=at_a_glance, sections=sections)


def _notes(told: Told) -> tuple[Section, ...]:
    if not told.notes:
        return ()
    return (Section(anchor="run", title="Beside the plan", paragraphs=told.notes),)


def _asked(ranked: Ranked, told: Told) -> Section:
    question = ranked.opened.question
    job, cluster, model = question.job, question.cluster, question.model
    count = num_parameters(model)
    apart = settings_apart(job, cluster.gpu.architecture)
    rows = [
        ["model", model.name],
        ["parameters", f"{count.total:,}"],
        ["layers", f"{model.num_layers}"],
        ["hidden", f"{model.hidden:,}"],
        ["GPUs", f"{job.world_size:,}"],
        ["cluster", f"{cluster.name}: {cluster.gpu.name}"],
        ["tokens a step", f"{job.global_batch_tokens:,}"],
        ["sequence length", f"{job.seq_len:,}"],
        ["framework", job.preset.name],
        ["asked of plans", "; ".join(ranked.opened.constraints.words()) or "nothing"],
        *([key, str(typed(value))] for key, value in apart.items()),
    ]
    return Section(
        anchor="asked",
        title="What was asked, and how to ask again",
        paragraphs=("The same question, from the project's folder:",),
        tables=(
            PageTable(
                caption="The question; settings are those that are not the framework's own",
                header=("what", "value"),
                rows=rows,
                words=frozenset({0, 1}),
            ),
        ),
        typed=f"{told.command}\n\n{told.question}",
    )
