"""Plans as written that no strategy can mean are one error."""

import pytest

from solver.problem.requested_plan import parse_plan, plan_of, strategy_of
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.settings.plan import PlanSettings
from tests.solver.questions import question


@pytest.mark.parametrize("strategy", ["msp", "mtp", None])
def test_weight_groups_want_a_strategy_that_has_them(strategy: str | None) -> None:
    with pytest.raises(ConfigError, match=rf"train.py: wp = 2: 1 with strategy {strategy or 'mtp'}"):
        plan_of(PlanSettings(strategy=strategy, tp=2, wp=2), question(world_size=8), "train.py")
    asked = question(world_size=8)
    assert plan_of(PlanSettings(strategy="isp", tp=2, wp=4), asked, "train.py").wp == 4


def test_a_sequence_said_to_be_cut_wants_a_strategy_that_cuts_it() -> None:
    with pytest.raises(ConfigError, match="sequence_parallel = True: False with strategy mtp"):
        strategy_of(PlanSettings(strategy="mtp", tp=2), "train.py", sequence_parallel=True)
    for name in ("msp", "fsp", "isp"):
        cut = strategy_of(PlanSettings(strategy=name, tp=2), "train.py", sequence_parallel=True)
        assert cut.name == name


def test_an_unknown_strategy_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"train\.py: strategy = 'tsp': one of mtp, msp, fsp, isp"):
        strategy_of(PlanSettings(strategy="tsp"), "train.py")


def test_zero_cannot_shard_over_more_ranks_than_hold_the_same_weights() -> None:
    asked = question(world_size=8)
    with pytest.raises(ConfigError, match="mine: zero_size = 3: at most the 1 ranks that hold"):
        plan_of(PlanSettings(tp=8, zero_size=3), asked, "mine")
    assert plan_of(PlanSettings(tp=2, zero_size=4), asked, "mine").zero_size == 4


@pytest.mark.parametrize(
    ("framework", "text", "plan"),
    [
        ("megatron", "tp=2", ("fsp", 1, 4)),
        ("megatron", "tp=1", ("mtp", 1, 8)),
        ("megatron", "tp=2,strategy=mtp", ("mtp", 1, 4)),
        ("megatron", "tp=2,zero_stage=0", ("fsp", 0, 1)),
        ("megatron", "tp=2,zero_size=1", ("fsp", 0, 1)),
        ("megatron", "tp=2,zero_size=2", ("fsp", 1, 2)),
        ("megatron", "tp=8", ("fsp", 0, 1)),
        ("megatron-bridge", "tp=2", ("fsp", 1, 4)),
        ("fsdp", "tp=1", ("mtp", 3, 8)),
        ("deepspeed", "tp=2", ("mtp", 0, 1)),
        ("internevo", "tp=2", ("mtp", 0, 1)),
    ],
)
def test_open_keys_are_what_the_framework_would_run(framework: str, text: str, plan: tuple[str, int, int]) -> None:
    asked = question(world_size=8, sequences=8, preset=framework_preset(framework))
    found = plan_of(parse_plan(text), asked, "a test")
    assert (found.strategy, found.zero_stage, found.zero_size) == plan
