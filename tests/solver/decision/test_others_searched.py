"""The best plan that has a few keys as said."""

from solver.decision.best_plans import best_plans
from solver.decision.others_searched import are_searched, best_with
from spec.presets.registry import PRESETS
from spec.settings.constraints import Constraints, constraints_of
from tests.solver.questions import question, small_model

ASKED = question(world_size=8, sequences=16, preset=PRESETS["megatron"], model=small_model())
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
