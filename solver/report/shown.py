"""What the main command prints and writes of an answer: the ranking of a search, or one priced plan."""

import argparse
from dataclasses import dataclass

from solver.analysis.named_plans import obstacles
from solver.memory.device_memory import usable_bytes
from solver.memory.shortfall import nearly_all_words, retries_words
from solver.opening import Opened
from solver.plans.space import full_space
from solver.question import Question
from solver.report import tables as report
from solver.report.beside import beside_lines, beside_record
from solver.report.explain import why
from solver.report.result_files import answer_record, question_record, search_record
from solver.request import Asked
from solver.result import Answer
from solver.search import SearchResult
from solver.session import Session
from spec.errors import ConfigError
from spec.program.progress import progress
from spec.settings.plan import WrittenPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The plans printed, best first, all that was found as plain values, and the search if there was one."""

    answers: tuple[Answer, ...]
    record: dict[str, object]
    result: SearchResult | None = None


def print_question(opened: Opened, asked: Asked) -> str:
    """Say what is asked, of which times; what was printed."""
    told = report.question_lines(
        opened.question,
        opened.times,
        assumed_framework=asked.assumed_framework,
        constraints=asked.constraints,
    )
    print(told, end="\n\n")
    return told


def searched(options: argparse.Namespace, opened: Opened) -> Shown:
    """Search every plan and print the ranking."""
    question = opened.question
    blocks = len(full_space(question.model, question.job).blocks)
    with progress(blocks, "search", "block") as bar:
        result = Session(opened=opened).search(top_k=options.top_k, tick=bar.update)
    print_search(opened, result)
    record = search_record(question, result, opened.constraints)
    record |= beside_record(result, usable_bytes(question.cluster))
    return Shown(answers=result.best, record=record, result=result)


def print_search(opened: Opened, result: SearchResult) -> None:
    """The ranking, the best of each mode, why, and what fell."""
    winner = result.best[0]
    print(f"best {len(result.best)} plans (parts of the step in ms)")
    print(report.plans_table(result.best), end="\n\n")
    print("best of each mode")
    print(report.plans_table(list(result.best_of_mode.values())), end="\n\n")
    print("why")
    for line in why(winner, result.best_of_mode):
        print(f"  {line}")
    print_details(winner, opened.question)
    print(f"preset   {winner.plan.preset}")
    print(*beside_lines(result, usable_bytes(opened.question.cluster)), sep="\n", end="\n\n")
    print(report.rejected_table(result), end="\n\n")
    if result.nearest_miss:
        print(f"nearest miss: {result.nearest_miss}")
    print(report.search_line(result))
    print(report.internlm_dict(winner, opened.question.job))


def print_details(answer: Answer, question: Question) -> None:
    """Whose its columns are, how MFU counts, memory with a warning where that is nearly all, and origins."""
    print(f"\nslowest  {answer.slowest.words()}; the columns are of it")
    print(f"mfu      {report.used_line(answer, question)}")
    print(f"memory   {report.memory_line(answer)}")
    limit = usable_bytes(question.cluster)
    if answer.needed_bytes <= limit and (warning := nearly_all_words(answer.needed_bytes, limit)):
        print(f"warning  {warning}")
    if warning := retries_words(answer.needed_bytes, answer.device_bytes, limit):
        print(f"warning  {warning}")
    print(f"origin   {report.origin_line(answer)}")


def priced(options: argparse.Namespace, opened: Opened, typed: WrittenPlan | None) -> Shown:
    """Price the ``typed`` plan or that of the config and print it."""
    question = opened.question
    written = typed or opened.config.plan
    if written is None or written == WrittenPlan():
        raise ConfigError(
            where=opened.config.path,
            key="plan",
            value=None,
            allowed="this config writes no plan: give --plan tp=..,pp=.. or search with --run_all_solu",
        )
    where = "--plan" if options.plan else opened.config.path
    answer = Session(opened=opened).price(written, where=where)
    print(report.plans_table([answer]), end="\n\n")
    print("why")
    for line in why(answer, {}):
        print(f"  {line}")
    print_details(answer, question)
    for reason in obstacles(question, answer, opened.constraints):
        print(f"not feasible: {reason}")
    print(report.internlm_dict(answer, question.job))
    return Shown(answers=(answer,), record=question_record(question) | {"plan": answer_record(answer)})
