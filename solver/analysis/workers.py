"""Who answers the questions of a sweep: this process, or the workers of a Dask cluster (``distributed``, the extra "sweep").

A question is a task: its model, job and constraints. The times of a cluster go to every worker once. The scheduler gives
the questions of a lost worker to another one. The answers are the same to the last digit: one function finds them.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from importlib.util import find_spec
from multiprocessing.resource_tracker import ensure_running
from threading import Lock
from typing import TYPE_CHECKING, Any

from solver.plans.space import full_space
from solver.problem.loading import LoadedProblem
from solver.problem.problem import Problem
from solver.problem.result import Answer, check_believable
from solver.search import search
from spec.errors import ConfigError, NoFeasiblePlanError
from spec.program.command import without_interrupts
from spec.settings.constraints import Constraints

if TYPE_CHECKING:
    from distributed import Client

ADDRESS = re.compile(r"((tcp|tls|ucx|wss?)://)?[^/\s]+:[0-9]{1,5}")
ANSWERS_WITHIN_S = 5.0
"""A scheduler, and the first of its workers."""
BACK_WITHIN_S = 60.0
"""A worker, once all are lost."""


def best_plan(problem: Problem, constraints: Constraints, source: str) -> Answer | str:
    """Returns the best plan of a question, or in words why there is none; ``source`` names the times in errors."""
    try:
        answer = search(problem, full_space(problem.model, problem.job, constraints), top_k=1).best[0]
    except NoFeasiblePlanError as error:
        return error.reason
    check_believable((answer,), source)
    return answer


def best_plans_of(
    questions: Sequence[LoadedProblem], tick: Callable[[], object], workers: str | int | None
) -> list[Answer | str]:
    """Returns ``best_plan`` of each question, found by the ``workers``: those of the Dask scheduler at this address, or
    so many processes of this machine; None is this process. ``tick`` is called after each.

    Raises ConfigError where distributed is not installed, and for a scheduler or workers that do not answer.
    """
    if workers is not None:
        return by_workers(questions, tick, workers)
    answers = []
    for one in questions:
        answers.append(best_plan(one.problem, one.constraints, one.source))
        tick()
    return answers


def by_workers(
    questions: Sequence[LoadedProblem], tick: Callable[[], object], workers: str | int
) -> list[Answer | str]:
    """Returns the answers of the workers, in the order of the questions."""
    if isinstance(workers, str) and not ADDRESS.fullmatch(workers):
        raise refused(workers, "HOST:8786 of a Dask scheduler, or tls://HOST:8786")
    if find_spec("distributed") is None:
        raise refused(workers, "only with dask.distributed (pip install distributed, or the extra sweep)")
    from distributed import CancelledError, as_completed

    answers: dict[int, Answer | str] = {}
    with connected(workers, len(questions)) as client:
        while left := [at for at in range(len(questions)) if at not in answers]:
            client.wait_for_workers(1, timeout=BACK_WITHIN_S)
            timers = {id(one.problem.op_timer): one.problem.op_timer for one in questions}
            sent = {key: client.scatter(timer, broadcast=True, hash=False) for key, timer in timers.items()}
            tasks = {}
            for at in left:
                one = questions[at]
                parts = {part.name: getattr(one.problem, part.name) for part in fields(Problem)}
                parts["op_timer"] = sent[id(one.problem.op_timer)]
                tasks[client.submit(best_plan_of_parts, one.constraints, one.source, **parts, pure=False)] = at
            for task in as_completed(tasks):
                try:
                    answers[tasks[task]] = task.result()
                except CancelledError:
                    # Times, or an answer, that went with the last worker that had them: sent again.
                    continue
                tick()
    return [answers[at] for at in range(len(questions))]


ONE_AT_A_TIME = Lock()
"""The threads of a worker share the times of a cluster, which remember the shapes of earlier queries and are for one thread."""


def best_plan_of_parts(constraints: Constraints, source: str, **parts: Any) -> Answer | str:
    """Returns ``best_plan`` of the problem of these ``parts``, whose op_timer lies on the worker."""
    with ONE_AT_A_TIME:
        return best_plan(Problem(**parts), constraints, source)


@contextmanager
def connected(workers: str | int, most: int) -> "Iterator[Client]":
    """Yields a client of the scheduler at this address, or of so many processes of this machine, ``most`` at most, that
    end with it."""
    from distributed import Client, KilledWorker, LocalCluster

    cluster: AbstractContextManager[Any] = nullcontext(workers)
    if isinstance(workers, int):
        settings = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
        # The processes inherit that they do not meet Ctrl-C, unless a tracker that starts with them lets it through.
        ensure_running()
        with without_interrupts():
            cluster = LocalCluster(n_workers=min(workers, most), **settings)
    try:
        with cluster as place, Client(place, timeout=ANSWERS_WITHIN_S) as client:
            client.wait_for_workers(1, timeout=ANSWERS_WITHIN_S)
            # Lambdas travel as code, without the package that they ask for.
            lack = [address for address, lacks in client.run(lambda: find_spec("solver") is None).items() if lacks]
            if lack or client.run_on_scheduler(lambda: find_spec("solver") is None):
                raise refused(workers, f"this program installed (not on {' '.join(lack) or 'the scheduler'})")
            yield client
    except (OSError, KilledWorker) as error:
        raise refused(workers, f"workers that answer ({error})") from error


def refused(workers: str | int, allowed: str) -> ConfigError:
    """Returns the error of the option that was typed."""
    name = "jobs" if isinstance(workers, int) else "scheduler"
    return ConfigError(where=f"--{name}", key=name, value=workers, allowed=allowed)
