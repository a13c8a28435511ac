"""Questions of a sweep answered elsewhere: as by this process, whatever becomes of the workers."""

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from solver.analysis import workers
from solver.analysis.sweep import SweepRow, run_sweep, sweep_requests
from solver.problem.loading import load_problem
from solver.problem.problem import Problem
from spec.errors import ConfigError, MissingCurveError, NoFeasiblePlanError
from tests.solver.questions import ROOT, gpt_request

REQUEST = gpt_request(
    profile=ROOT / "prof_data" / "data.pt",
    constraints={"fix": {"cp": 1, "vpp": 1}, "no_recompute": True, "max": {"micro_batch": 2, "tp": 4, "pp": 4}},
)
REQUESTS = sweep_requests(REQUEST, {"cluster": ("h100-sxm", "h200"), "world_size": (1, 8, 16, 32)})


@pytest.fixture(scope="module")
def rows() -> tuple[SweepRow, ...]:
    return run_sweep(REQUESTS)


def test_a_question_survives_the_way_to_another_process_and_its_answer_the_way_back(rows: tuple[SweepRow, ...]) -> None:
    for row, (_, request) in zip(rows[:2], REQUESTS, strict=False):
        asked = load_problem(request)
        parts = {part.name: getattr(asked.problem, part.name) for part in fields(Problem)}
        sent = pickle.loads(pickle.dumps(parts))
        answer = pickle.loads(pickle.dumps(workers.best_plan_of_parts(asked.constraints, asked.source, **sent)))
        assert answer == (row.answer or row.why_none)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("file", "key", 3, "4"),
        MissingCurveError(key="k", command="c"),
        NoFeasiblePlanError(rejected={"memory": 2}, nearest_miss="tp8 needs 90 GiB"),
    ],
)
def test_an_error_survives_it_too(error: ConfigError | MissingCurveError | NoFeasiblePlanError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(("where", "option"), [("tcp://host:8786", "--scheduler"), (2, "--jobs")])
def test_without_dask_one_line_says_what_to_install(
    where: str | int, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda name: None if name == "distributed" else pytest.fail(name))
    with pytest.raises(ConfigError, match=f"^{option}: .*pip install distributed"):
        run_sweep(REQUESTS[:1], workers=where)


@pytest.mark.parametrize("address", ["host", "http://host:80", "tcp://host/path:80", "host:"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:8786 of a Dask scheduler"):
        run_sweep(REQUESTS[:1], workers=address)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="the extra sweep is not installed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_workers_answer_alike_and_the_questions_of_lost_ones_are_asked_again(
    lost: int, cluster: Any, rows: tuple[SweepRow, ...]
) -> None:
    """Of two workers; with the last one the times are lost too that all questions share."""
    from distributed import Client

    ticks: list[int] = []
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        alive = list(client.run(os.getpid).values())

    def tick() -> None:
        ticks.append(1)
        while len(ticks) == 2 and len(alive) > 2 - lost:
            os.kill(alive.pop(), signal.SIGKILL)

    found = run_sweep(REQUESTS, workers=cluster.scheduler_address, tick=tick)
    assert len(ticks) == len(REQUESTS)
    assert [(row.values, row.answer, row.why_none) for row in found] == [
        (row.values, row.answer, row.why_none) for row in rows
    ]


def test_workers_without_this_program_are_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda name: None if name == "solver" else name)
    with pytest.raises(ConfigError, match=r"this program installed .not on tcp://.* tcp://"):
        run_sweep(REQUESTS[:1], workers=cluster.scheduler_address)


def test_processes_of_this_machine_answer_alike(rows: tuple[SweepRow, ...]) -> None:
    pytest.importorskip("distributed", reason="the extra sweep is not installed")
    found = run_sweep(REQUESTS, workers=2)
    assert [row.answer for row in found] == [row.answer for row in rows]


def test_a_scheduler_that_does_not_answer_is_refused_within_seconds() -> None:
    pytest.importorskip("distributed", reason="the extra sweep is not installed")
    with pytest.raises(ConfigError, match=r"^--scheduler: .*workers that answer \(Timed out .* after 5 s\)"):
        run_sweep(REQUESTS[:1], workers="127.0.0.1:9")
