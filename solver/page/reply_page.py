"""The page of --report, of a question asked from Python."""

from collections.abc import Sequence
from pathlib import Path

from solver.analysis.named_plans import NamedPlan, answer_named, obstacles, with_best_price
from solver.page.pages import Told, plans_page
from solver.page.plan_sections import Ranked
from solver.page.written_page import check_page_can_be_made, write_page
from solver.report.asked_reasons import Answered, Held, held_with_others
from solver.report.tables import question_lines
from solver.result import Answer, check_believable
from solver.session import Session, Typed, plan_keys
from spec.settings.plan import WrittenPlan


def write_report(
    folder: str | Path,
    asked: Session,
    *,
    plan: Typed | None = None,
    top_k: int = 10,
    why_not: Sequence[Typed] = (),
    compare: Sequence[Typed] = (),
) -> Path:
    """Write the page of ``--report`` as ``folder``/index.html and return its path: of a search, or of one
    ``plan``, with plans held against its best (``why_not``) and side by side (``compare``).

    Raises as Reply.search and Reply.price, ConfigError where jinja2 is not installed, ExportError where it
    cannot be written.
    """
    check_page_can_be_made(Path(folder))
    opened = asked.opened

    def held(one: Typed, where: str) -> Held:
        answer = asked.price(one, where=where)
        return Held(answer=answer, broken=obstacles(opened.question, answer, opened.constraints))

    def held_against(one: Typed) -> Held:
        if isinstance(one, Answer):
            return held(one, "why_not")
        said = plan_keys(one, "why_not")
        named = NamedPlan(option="why_not", written=WrittenPlan(**said), said=said)
        found = with_best_price(named, opened.question, opened.constraints)
        answer = answer_named(found, ())
        check_believable((answer,), opened.source)
        return held_with_others(held(answer, "why_not"), found, opened)

    reasons = Answered(
        why_not=tuple(held_against(one) for one in why_not),
        compare=tuple(held(one, "compare") for one in compare),
    )
    if plan is None:
        result = asked.search(top_k=top_k)
        broken: tuple[str, ...] = ()
        ranked = Ranked(opened=opened, answers=result.best, result=result, reasons=reasons)
    else:
        alone = held(plan, "plan")
        broken = alone.broken
        ranked = Ranked(opened=opened, answers=(alone.answer,), reasons=reasons)
    told = Told(
        question=question_lines(opened.question, opened.times, constraints=opened.constraints),
        notes=[f"Not feasible: {reason}" for reason in broken],
    )
    return write_page(plans_page(ranked, told), Path(folder))
