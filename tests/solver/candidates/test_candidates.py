"""Plans kept out by a bound are none that the search would show."""

from dataclasses import replace

import numpy as np
import pytest

from solver.candidates.candidates import CandidatePool, Candidates, LeastSteps
from solver.estimate import estimate_memory, least_ends_s, pipelines, stage_times, steps_s
from solver.pipeline.spans import spans_of
from solver.plans.space import enumerate_block, full_space
from solver.problem.calibration import Calibration
from solver.problem.problem import Problem
from solver.search import Result, candidate_pool, ranked_result, search
from spec.frameworks import framework_preset
from tests.solver.questions import experts_model, question, small_model

SPACES = [
    ("internevo", 8, 32),
    ("megatron", 4, 4),
    *(
        pytest.param(*one, marks=pytest.mark.nightly)
        for one in (
            ("megatron", 8, 16),
            ("megatron", 16, 64),
            ("zero-bubble", 8, 32),
            ("zero-bubble", 4, 8),
            ("hai-llm", 8, 64),
            ("deepspeed", 8, 16),
            ("fsdp", 8, 32),
            ("nanotron", 8, 32),
        )
    ),
]


def by_night(*presets: str) -> list[object]:
    return [pytest.param(preset, marks=pytest.mark.nightly) for preset in presets]


def shown(result: Result) -> dict[str, object]:
    """Everything that a user sees, but for the time it took."""
    return {
        "best": [(one.plan, one.also_zero_sizes, one.also_zero_stages, one.step_s, one.parts_s) for one in result.best],
        "modes": {mode: (one.plan, one.step_s) for mode, one in result.best_of_mode.items()},
        "pareto": [(one.plan, one.step_s, one.needed_bytes) for one in result.pareto],
        "counts": (result.num_seen, result.num_priced, result.rejected),
    }


@pytest.mark.parametrize(("preset", "world", "sequences"), SPACES)
def test_the_answer_is_that_of_all_pipelines_replayed(preset: str, world: int, sequences: int) -> None:
    problem = question(preset=framework_preset(preset), world_size=world, sequences=sequences)
    space = full_space(problem.model, problem.job)
    everything = candidate_pool(problem, space, top_k=3, everything=True)
    assert shown(search(problem, space, top_k=3)) == shown(
        ranked_result(problem, *everything, space.constraints.rank_by)
    )


def candidates(problem: Problem) -> list[Candidates]:
    """All plans of a question's space, bounded."""
    found = []
    space = full_space(problem.model, problem.job)
    for block in space.blocks:
        plans = enumerate_block(problem.model, problem.job, problem.cluster, space, block).plans
        if len(plans):
            table = estimate_memory(problem.model, problem.job, plans, problem.cluster)
            found.append(Candidates.of(table, stage_times(problem.model, problem.job, table, problem.op_timer)))
    return found


@pytest.mark.parametrize("preset", ["megatron", "zero-bubble", *by_night("hai-llm", "internevo")])
def test_no_stage_ends_before_its_bound(preset: str) -> None:
    problem = question(preset=framework_preset(preset), world_size=8, sequences=64)
    tight = []
    for one in candidates(problem):
        timed = stage_times(problem.model, problem.job, one.table, problem.op_timer)
        least, played = least_ends_s(one.table, timed), spans_of([pipelines(one.table, timed)])[0]
        assert (least <= played * (1 + 1e-12)).all()
        assert (one.step_s <= steps_s(one.table, timed, played)).all()
        tight.append(one.step_s / steps_s(one.table, timed, played))
    # A bound of nothing would pass as well: half of them come within a fifth of the step.
    assert np.median(np.concatenate(tight)) > 0.8


def test_most_pipelines_need_no_replay() -> None:
    problem = question(preset=framework_preset("megatron"), world_size=16, sequences=256)
    pool = CandidatePool(candidates(problem), 3)
    pool.simulate_contenders()
    assert pool.simulated.mean() < 0.5


def test_calibrated_plans_are_ranked_by_their_calibrated_step() -> None:
    problem = question(world_size=8, sequences=32)
    factors = Calibration(compute_efficiency=0.5, intra_comm_efficiency=0.9)
    space = full_space(problem.model, problem.job)
    found = search(replace(problem, calibration=factors), space, top_k=3)
    assert found.best[0].step_s > 1.5 * search(problem, space, top_k=3).best[0].step_s
    assert [one.step_s for one in found.best] == sorted(one.step_s for one in found.best)


@pytest.mark.parametrize("preset", ["megatron", "zero-bubble", *by_night("internevo", "hai-llm", "fsdp", "deepspeed")])
def test_no_plan_is_faster_than_its_kernels_and_waits(preset: str) -> None:
    shares = []
    for model in (small_model(), experts_model()):
        problem = question(model=model, preset=framework_preset(preset), world_size=8, sequences=64)
        bound = LeastSteps(problem=problem)
        for one in candidates(problem):
            least_s = bound.of(one.table.plans)
            assert (least_s <= one.step_s).all()
            shares.append(least_s / one.step_s)
    # A bound of nothing would pass as well.
    assert np.median(np.concatenate(shares)) > 0.5


@pytest.mark.parametrize("preset", ["megatron", *by_night("fsdp", "zero-bubble")])
def test_a_quick_answer_is_the_same_without_its_bound(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = question(model=experts_model(), preset=framework_preset(preset), world_size=16, sequences=64)
    space = full_space(problem.model, problem.job)
    monkeypatch.setattr("solver.candidates.candidates.FIRST_ROUND", 1)
    quick = search(problem, space, top_k=1, relaxes=False)
    monkeypatch.setattr(LeastSteps, "of", lambda _, plans: np.zeros(len(plans)))
    every_plan = candidate_pool(problem, space, top_k=1, relaxes=False, everything=True)
    whole = ranked_result(problem, *every_plan, space.constraints.rank_by)
    assert quick.best == whole.best
    assert quick.num_priced < whole.num_priced
