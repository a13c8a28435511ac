"""Sections about one question's plans: the same for a search, a priced plan, and the best row of a sweep."""

from dataclasses import dataclass

from solver.analysis.explanation import Explanation, explain_plan
from solver.analysis.sensitivity import WhatIf
from solver.memory.device_memory import limit_bytes, usable_bytes
from solver.memory.shortfall import nearly_all_words
from solver.opening import Opened
from solver.page.content import PageTable, Section, Tile
from solver.page.plan_plots import alike_together, breakdown_picture, memory_picture, pareto_picture
from solver.page.plan_tables import (
    assembly_table,
    errors_table,
    front_table,
    operations_table,
    origins_table,
    parts_table,
    ranking_table,
    rejected_table,
    stages_table,
)
from solver.page.reason_sections import reason_sections
from solver.page.timeline_plot import timeline_picture
from solver.report.asked_reasons import NOTHING_ASKED, Answered
from solver.report.beside import WHAT_IF_HEADER, ties, what_if_cells
from solver.report.explain import why
from solver.report.tables import origin_words, used_line
from solver.result import Answer
from solver.search import SearchResult
from spec.units import bytes_to_gib, seconds_to_ms

MOST_OF_FRONT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Plans of one question, best first, the search that found them, None where one was typed, and what else
    was asked: what changes would bring, and reasons."""

    opened: Opened
    answers: tuple[Answer, ...]
    result: SearchResult | None = None
    what_if: tuple[WhatIf, ...] = ()
    reasons: Answered = NOTHING_ASKED

    @property
    def best(self) -> Answer:
        """The plan that the page takes apart."""
        return self.answers[0]


def tiles(ranked: Ranked) -> tuple[Tile, ...]:
    """The best plan at a glance."""
    best, question = ranked.best, ranked.opened.question
    limit = limit_bytes(question.cluster, ranked.opened.constraints)
    low, high = (seconds_to_ms(bound) for bound in (best.interval_low_s, best.interval_high_s))
    return (
        Tile(
            what="step",
            value=f"{seconds_to_ms(best.step_s):,.1f} ms",
            note=f"eight in ten between {low:,.0f} and {high:,.0f}",
        ),
        Tile(
            what="throughput",
            value=f"{best.tgs:,.0f} tokens/s",
            note=f"of a GPU; {question.job.global_batch_tokens / best.step_s:,.0f} of all",
        ),
        Tile(
            what="MFU",
            value=f"{100 * best.mfu:.1f} %",
            note=f"of the dense peak of {question.job.precision.compute}",
        ),
        Tile(
            what="memory",
            value=f"{bytes_to_gib(best.needed_bytes):.1f} GiB",
            note=f"of {bytes_to_gib(limit):.1f} to use",
        ),
        Tile(what="origin", value=origin_words(best).split(" ")[0], note=origin_words(best)),
    )


def plan_sections(ranked: Ranked) -> list[Section]:
    """The ranking, where there is one, then the best plan taken apart."""
    question = ranked.opened.question
    found = explain_plan(question, ranked.best.plan)
    several = ranked.result is not None or len(ranked.answers) > 1
    sections = [*[_ranking(ranked)] * several, _breakdown(ranked, found)]
    if ranked.result is not None:
        sections.append(_front(ranked, ranked.result))
    if ranked.what_if:
        sections.append(_what_if(ranked))
    calibrated = question.calibration is not None
    sections += reason_sections(ranked.reasons, ranked.best, calibrated=calibrated)
    sections += [_memory(ranked, found), _timeline(ranked), _origins(ranked, found)]
    if ranked.result is not None:
        sections.append(_dropped(ranked.result))
    return sections


def _ranking(ranked: Ranked) -> Section:
    usable = usable_bytes(ranked.opened.question.cluster)
    alike = ties(ranked.answers)
    said = []
    if alike:
        places = ", ".join(map(str, alike))
        said = [
            f"Nobody can tell from the best one place{'s' * (len(alike) > 1)} {places}: within the 80 % interval of the difference."
        ]
    return Section(
        anchor="ranking", title="Ranking", paragraphs=said, tables=(ranking_table(ranked.answers, usable),)
    )


def _breakdown(ranked: Ranked, found: Explanation) -> Section:
    modes = ranked.result.best_of_mode if ranked.result is not None else {}
    words = [f"{line[0].upper()}{line[1:]}." for line in why(ranked.best, modes)[:1]]
    words += [f"{line}." for line in why(ranked.best, modes)[1:]]
    words.append(f"Slowest: {ranked.best.slowest.words()}; the parts are of it.")
    if ranked.opened.question.calibration is not None:
        words.append("The sum below is before the calibration.")
    return Section(
        anchor="breakdown",
        title="Where the time goes",
        paragraphs=words,
        pictures=(breakdown_picture(ranked.answers),),
        tables=(assembly_table(found), parts_table(ranked.answers)),
    )


def _front(ranked: Ranked, result: SearchResult) -> Section:
    usable = usable_bytes(ranked.opened.question.cluster)
    front = sorted(result.pareto, key=lambda one: one.step_s)[:MOST_OF_FRONT]
    return Section(
        anchor="pareto",
        title="Step against memory",
        pictures=(pareto_picture(front, ranked.answers, usable),),
        tables=(front_table(front, usable),),
    )


def _what_if(ranked: Ranked) -> Section:
    shown = PageTable(
        caption="The best plan after one change, all else equal",
        header=WHAT_IF_HEADER,
        rows=what_if_cells(ranked.best, ranked.what_if),
        words=frozenset({0, 4}),
    )
    return Section(anchor="what-if", title="What if", tables=(shown,))


def _memory(ranked: Ranked, found: Explanation) -> Section:
    cluster = ranked.opened.question.cluster
    usable, limit = usable_bytes(cluster), limit_bytes(cluster, ranked.opened.constraints)
    stages = alike_together(found.stages)
    warning = nearly_all_words(ranked.best.needed_bytes, usable)
    return Section(
        anchor="memory",
        title="Memory by stage",
        paragraphs=[f"Warning: {warning}."] if warning and ranked.best.needed_bytes <= usable else [],
        pictures=(memory_picture(stages, usable_bytes=usable, limit_bytes=limit),),
        tables=(stages_table(stages),),
    )


def _timeline(ranked: Ranked) -> Section:
    plan = ranked.best.plan
    if plan.pp == 1:
        return Section(
            anchor="timeline",
            title="Pipeline",
            paragraphs=["The best plan has one stage: nothing waits in a pipeline."],
        )
    return Section(
        anchor="timeline",
        title="Pipeline",
        pictures=(timeline_picture(ranked.opened.question, plan),),
    )


def _origins(ranked: Ranked, found: Explanation) -> Section:
    question = ranked.opened.question
    return Section(
        anchor="origins",
        title="Where the numbers come from",
        paragraphs=(
            f"Times: {ranked.opened.source}.",
            f"MFU: {used_line(ranked.best, question)}.",
            f"Standard error of the step from its curves: {100 * ranked.best.standard_error_s / ranked.best.step_s:.1f} %; the interval "
            "also holds what formulas err by (docs/accuracy.md).",
        ),
        tables=(origins_table(ranked.best), errors_table(ranked.best), operations_table(found)),
    )


def _dropped(result: SearchResult) -> Section:
    said = [f"{result.num_seen:,} plans looked at, {result.num_priced:,} priced, in {result.seconds:.1f} s."]
    if result.nearest_miss:
        said.append(f"Nearest miss: {result.nearest_miss}.")
    return Section(
        anchor="dropped", title="What was left out", paragraphs=said, tables=(rejected_table(result),)
    )
