"""tests/questions.toml: the first answer to a new user's question is one that she can launch."""

import tomllib
from pathlib import Path

import pytest

import solver
from solver.memory.device import usable_bytes
from solver.plans.simplicity import num_switches
from solver.problem.problem import Problem
from solver.problem.result import Answer, is_tie
from spec.errors import ExportError
from tests.solver.questions import ROOT
from workload.launch_files import write_launch_files
from workload.settings.frameworks import WRITTEN

Question = tuple[str, str, str, int, int, int, float, float]
FILE = tomllib.loads((ROOT / "tests" / "questions.toml").read_text())
QUESTIONS: list[Question] = [tuple(one) for one in FILE["questions"]]
GAPS: dict[str, str] = FILE["gaps"]
EVERY_DAY = 2
"""Questions that are not asked at night alone."""


def exporters(problem: Problem, answer: Answer, folder: Path) -> list[str]:
    """The exporters that write the answer's plan, with the reasons of the others."""
    written, reasons = [], []
    for name, exporter in WRITTEN.items():
        if problem.job.preset.name in exporter.frameworks:
            try:
                write_launch_files(problem, answer.plan, {name: folder / name})
                written.append(name)
            except ExportError as error:
                reasons.append(str(error))
    assert written, reasons
    return written


def identity(question: Question) -> str:
    return "-".join(map(str, question[:4]))


def marks(place: int, question: Question) -> list[pytest.MarkDecorator]:
    known = GAPS.get(identity(question))
    gap = [pytest.mark.xfail(reason=known, raises=AssertionError)] if known else []
    return gap + [pytest.mark.nightly] * (place >= EVERY_DAY)


@pytest.mark.parametrize(
    "question", [pytest.param(one, id=identity(one), marks=marks(place, one)) for place, one in enumerate(QUESTIONS)]
)
def test_the_first_answer_can_be_launched(question: Question, tmp_path: Path) -> None:
    model, cluster, framework, gpus, tokens, seq_len, least_mfu, most_mfu = question
    job = {"world_size": gpus, "global_batch_tokens": tokens, "seq_len": seq_len}
    asked = solver.ask(
        model=ROOT / "configs" / model, cluster=cluster, job=job | ({"framework": framework} if framework else {})
    )
    shown = asked.search().best
    first, problem = shown[0], asked.inputs.problem
    assert first.needed_bytes <= 0.9 * usable_bytes(problem.cluster)
    assert asked.obstacles(first) == ()
    assert exporters(problem, first, tmp_path)
    fastest = min(one.step_s for one in shown)
    near = [one for one in shown if one.step_s <= 1.01 * fastest and is_tie(first, one)]
    assert num_switches(first.plan) == min(num_switches(one.plan) for one in near)
    assert least_mfu <= first.mfu <= most_mfu
    assert first.interval_low_s < first.step_s < first.interval_high_s


def test_forty_questions_are_asked_of_models_clusters_and_frameworks() -> None:
    assert len({identity(one) for one in QUESTIONS}) == len(QUESTIONS) == 40
    assert GAPS.keys() <= {identity(one) for one in QUESTIONS}
    assert len(GAPS) <= 5
    assert {framework for _, _, framework, *_ in QUESTIONS} >= {"", "megatron", "fsdp", "deepspeed", "internevo"}
