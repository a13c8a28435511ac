"""Plans named by rank or written out, and what is neither."""

import pytest

from solver.decision.named_plans import answer_named, named_plan, priced_if_written, priced_in_any_mode
from solver.plans.plan_table import PlanTable
from solver.plans.space import full_space
from solver.search import price_plan, search
from solver.typed_plan import parse_plan, plan_of
from spec.errors import ConfigError
from spec.presets.registry import PRESETS
from spec.settings.constraints import constraints_of
from tests.solver.questions import question


def test_a_rank_is_of_the_plans_shown_and_a_plan_is_priced() -> None:
    asked = question(world_size=8, sequences=8, preset=PRESETS["megatron"])
    shown = search(asked, full_space(asked.model, asked.job), top_k=2).best
    assert answer_named(named_plan("rank=2", "--explain", shown=2), shown) == shown[1]
    named = priced_if_written(named_plan("strategy=fsp,tp=4,pp=2", "--explain", shown=2), asked)
    assert named.said == {"strategy": "fsp", "tp": 4, "pp": 2}
    written = answer_named(named, shown)
    assert (written.plan.strategy, written.plan.tp, written.plan.num_micro) == ("fsp", 4, 8)
    with pytest.raises(ConfigError, match="1 to 1, the plans shown"):
        answer_named(named_plan("rank=2", "--explain", shown=2), shown[:1])


def test_without_a_strategy_the_best_of_the_framework_is_held_against_the_winner() -> None:
    asked = question(world_size=8, sequences=8, preset=PRESETS["megatron"])

    def found(text: str, **constraints: object) -> tuple[str, tuple[str, ...]]:
        named = named_plan(text, "--why_not", shown=1)
        priced = priced_in_any_mode(named, asked, constraints_of(constraints))
        return answer_named(priced, ()).plan.strategy, priced.modes

    steps = {
        mode: price_plan(asked, PlanTable.of(plan_of(parse_plan(f"strategy={mode},tp=4"), asked, "a test")))[
            0
        ].step_s
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
    named = priced_in_any_mode(
        named_plan("wp=4", "--why_not", shown=1),
        question(world_size=8, sequences=8, preset=PRESETS["internevo"]),
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
        named_plan(text, "--why_not", shown=shown)
