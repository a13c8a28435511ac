"""The page of a search or of one plan, and the page of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass

from solver.analysis.sweep import Judged, tokens_per_s
from solver.page.content import Page, PageTable, Section
from solver.page.plan_plots import shares_picture
from solver.page.plan_sections import Ranked, plan_sections, tiles
from solver.page.plan_tables import parts_table
from solver.page.scaling_plot import row_words, scaling_picture
from solver.report.swept import TITLES, Swept
from spec.parameters import num_parameters
from spec.settings.job import settings_apart
from spec.settings.setting import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a page repeats of how it was asked: the ``command`` ("" for a question from Python), the
    ``question`` as printed, and ``notes`` (a run's length, its goodput, why a plan cannot run)."""

    question: str
    command: str = ""
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
    """The page of a sweep: ``tables`` with their captions, the scaling curve, where every row's time goes,
    and the best row's plan taken apart. Rows without any plan make a page of tables alone."""
    model = rows[0].row.opened.question.model.name
    shown = scaling_picture(rows)
    sources = dict.fromkeys(one.row.opened.source for one in rows)
    sweep = Section(
        anchor="sweep",
        title="The questions side by side",
        paragraphs=[f"Times: {source}." for source in sources],
        pictures=() if shown is None else (shown,),
        tables=[
            PageTable(caption=caption, header=one.header, rows=one.cells, words=one.words)
            for caption, one in tables
        ],
    )
    named = [(row_words(one), one.row.answer) for one in rows if one.row.answer is not None]
    sections = [*_notes(told), sweep]
    best = best_row(rows).row
    if best.answer is None:
        return Page(
            title=f"{model}: {len(rows)} questions",
            lead="No plan fits any of the questions",
            tiles=(),
            sections=sections,
        )
    shares = Section(
        anchor="shares",
        title="Where the time goes in each",
        pictures=(shares_picture(named),),
        tables=(parts_table([answer for _, answer in named], [name for name, _ in named]),),
    )
    ranked = Ranked(opened=best.opened, answers=(best.answer,))
    said = ", ".join(f"{TITLES.get(axis, axis)} {value}" for axis, value in best.values.items())
    return Page(
        title=f"{model}: {len(rows)} questions",
        lead=f"Most tokens per second, and taken apart below: {said}: {best.answer.label()}",
        tiles=tiles(ranked),
        sections=[*sections, shares, *plan_sections(ranked), _asked(ranked, told)],
    )


def best_row(rows: Sequence[Judged]) -> Judged:
    """The row of most tokens per second; the first one of those without a plan."""
    return max(rows, key=lambda one: tokens_per_s(one.row))


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
        title="What was asked" + ", and how to ask again" * bool(told.command),
        paragraphs=("The same question, from the project's folder:",) if told.command else (),
        tables=(
            PageTable(
                caption="The question; settings are those that are not the framework's own",
                header=("what", "value"),
                rows=rows,
                words=frozenset({0, 1}),
            ),
        ),
        typed=f"{told.command}\n\n{told.question}".lstrip(),
    )
