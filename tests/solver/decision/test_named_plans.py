"""Plans named by rank or written out, and what is neither."""

import pytest

from solver.decision.named_plans import answer_named, named_plan, priced_if_written
from solver.plans.space import full_space
from solver.search import search
from spec.errors import ConfigError
from spec.presets.registry import PRESETS
from tests.solver.questions import question


def test_a_rank_is_of_the_plans_shown_and_a_plan_is_priced() -> None:
    asked = question(world_size=8, sequences=8, preset=PRESETS["megatron"])
    shown = search(asked, full_space(asked.model, asked.job), top_k=2).best
    assert answer_named(named_plan("rank=2", "--explain", shown=2), shown) == shown[1]
    named = priced_if_written(named_plan("strategy=fsp,tp=4,pp=2", "--explain", shown=2), asked)
    written = answer_named(named, shown)
    assert (written.plan.strategy, written.plan.tp, written.plan.num_micro) == ("fsp", 4, 8)
    with pytest.raises(ConfigError, match="1 to 1, the plans shown"):
        answer_named(named_plan("rank=2", "--explain", shown=2), shown[:1])


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
