"""Plans named by rank or written out, and what is neither."""

from dataclasses import replace
from pathlib import Path

import pytest

from solver.analysis.best_plans import best_plans
from solver.analysis.named_plans import (
    NamedPlan,
    answer_named,
    are_searched,
    best_with,
    candidate,
    named_plan,
    obstacles,
    with_best_price,
    with_price,
)
from solver.memory.device import UNUSABLE_SHARE
from solver.plans.plan_table import PlanTable
from solver.plans.space import full_space
from solver.problem.loading import LoadedProblem
from solver.problem.price import price_plan
from solver.problem.requested_plan import parse_plan, plan_of
from solver.report.reasons import why_not_section
from solver.search import search
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.settings.constraints import Constraints, constraints_of
from spec.units import GIB
from tests.solver.questions import question, small_model


def test_a_rank_is_of_the_plans_shown_and_a_plan_is_priced() -> None:
    asked = question(world_size=8, sequences=8, preset=framework_preset("megatron"))
    shown = search(asked, full_space(asked.model, asked.job), top_k=2).best
    assert answer_named(named_plan("rank=2", "--explain", num_displayed=2), shown) == shown[1]
    named = with_price(named_plan("strategy=fsp,tp=4,pp=2", "--explain", num_displayed=2), asked)
    assert named.keys == {"strategy": "fsp", "tp": 4, "pp": 2}
    written = answer_named(named, shown)
    assert (written.plan.strategy, written.plan.tp, written.plan.num_micro) == ("fsp", 4, 8)
    with pytest.raises(ConfigError, match="1 to 1, the plans shown"):
        answer_named(named_plan("rank=2", "--explain", num_displayed=2), shown[:1])


def test_without_a_strategy_the_best_of_the_framework_is_held_against_the_winner() -> None:
    asked = question(world_size=8, sequences=8, preset=framework_preset("megatron"))

    def found(text: str, **constraints: object) -> tuple[str, tuple[str, ...]]:
        named = named_plan(text, "--why_not", num_displayed=1)
        priced = with_best_price(named, asked, constraints_of(constraints))
        return answer_named(priced, ()).plan.strategy, priced.modes

    steps = {
        mode: price_plan(asked, PlanTable.of(plan_of(parse_plan(f"strategy={mode},tp=4"), asked, "a test")))[0].step_s
        for mode in ("mtp", "fsp")
    }
    faster, slower = sorted(steps, key=lambda mode: steps[mode])
    assert found("tp=4") == (faster, ("mtp", "fsp"))
    # What a constraint forbids is named only where all of it is forbidden.
    assert found("tp=4", modes=[slower])[0] == slower
    assert found("tp=4", modes=["isp"])[0] == faster
    assert found("strategy=mtp,tp=4") == ("mtp", ())
    # What has weight groups is isp's alone, which Megatron-LM does not run.
    with pytest.raises(ConfigError, match="--why_not: wp"):
        found("wp=2,tp=4")
    named = with_best_price(
        named_plan("wp=4", "--why_not", num_displayed=1),
        question(world_size=8, sequences=8, preset=framework_preset("internevo")),
        constraints_of({}),
    )
    assert named.modes == ("isp",)


@pytest.mark.parametrize(
    ("text", "shown", "said"),
    [
        ("rank=3", 2, "1 to 2, the plans shown at most"),
        ("rank=0", 2, "1 to 2"),
        ("rank=x", 2, "1 to 2"),
        ("rank=1", 0, "with --run_all_solu"),
        ("tp=0", 2, "a whole number"),
        ("best", 2, "key=value"),
    ],
)
def test_what_is_neither_is_refused(text: str, shown: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        named_plan(text, "--why_not", num_displayed=shown)


# The best plan that has a few keys as said.

ASKED = question(world_size=8, sequences=16, preset=framework_preset("megatron"), model=small_model())
FEW = {"modes": ["fsp"], "fix": {"cp": 1, "vpp": 1}, "max": {"micro_batch": 2}}


def test_it_is_the_winner_of_a_search_with_these_keys_fixed() -> None:
    found = best_with({"tp": 2, "pp": 2}, ASKED, constraints_of(FEW))
    same = {**FEW, "fix": {"cp": 1, "vpp": 1, "tp": 2, "pp": 2}}
    assert found == best_plans(ASKED, constraints_of(same), top_k=1).best[0]
    assert found is not None
    assert (found.plan.tp, found.plan.pp) == (2, 2)


def test_constraints_hold_on_the_keys_that_are_not_said() -> None:
    asked = constraints_of({**FEW, "fix": {"cp": 1, "vpp": 1, "tp": 4, "micro_batch": 2}})
    found = best_with({"tp": 2}, ASKED, asked)
    assert found is not None
    assert (found.plan.strategy, found.plan.tp, found.plan.micro_batch) == ("fsp", 2, 2)


def test_nothing_is_told_of_what_no_search_chooses_and_of_what_never_fits() -> None:
    assert are_searched({"tp": 2, "dp": 4})
    assert not are_searched({"tp": 2, "layout": "Et*2|t*2L"})
    assert not are_searched({})
    assert best_with({"tp": 7}, ASKED, Constraints()) is None


def test_a_given_plan_that_lacks_headroom_can_run_and_is_said_to_lack_it() -> None:
    asked = question(world_size=1, sequences=8)
    answer = price_plan(asked, PlanTable.of(plan_of(parse_plan("tp=1"), asked, "a test")))[0]
    full = answer.needed_bytes / (1.0 - UNUSABLE_SHARE)
    cluster = replace(asked.cluster, gpu=replace(asked.cluster.gpu, memory_bytes=1.02 * full))
    tight = replace(asked, cluster=cluster)
    assert obstacles(tight, answer, Constraints(headroom=0.1)) == ()
    assert obstacles(tight, answer, Constraints(memory_gib=0.9 * answer.needed_bytes / GIB)) != ()
    inputs = LoadedProblem(
        problem=tight,
        config=None,  # type: ignore[arg-type]
        times=None,  # type: ignore[arg-type]
        profile_path=Path("p.pt"),
        source="p.pt",
        constraints=Constraints(headroom=0.1),
    )
    named = candidate(NamedPlan(option="--why_not", answer=answer), inputs, ())
    assert named.obstacles == ()
    assert named.lacks_headroom.startswith("needs ")
    assert "leaves less memory free than --headroom" in why_not_section(1, answer, named).paragraphs[0]
