"""The plan table against the table of plan fields."""

import numpy as np

from ops.recompute import MODULES
from ops.strategies import STRATEGIES
from solver.plans.plan_table import CONSTANTS, NAMES, Plan, PlanTable
from spec.settings.plan import plan_settings


def test_every_name_that_can_be_typed_is_priced() -> None:
    """The table stands below the code that prices, so it repeats the names."""
    words = {key: set(getattr(getattr(one.kind, "of", one.kind), "words", ())) for key, one in plan_settings().items()}
    assert words["strategy"] == set(STRATEGIES)
    assert words["recompute_modules"] == set(MODULES)


def test_a_column_of_the_table_is_a_column_of_plans() -> None:
    for key, setting in plan_settings().items():
        name = NAMES.get(key, key)
        assert (name in PlanTable.of(PLAN).columns) == setting.column, key
        assert (name in CONSTANTS) != setting.column, key


PLAN = Plan(
    strategy="mtp",
    preset="megatron",
    dp=8,
    num_micro=4,
    recompute_modules=("moe_act", "mlp"),
    stage_layout="Et|tL",
    optimizer_offload=0.25,
    offloaded_layers=3,
)


def test_a_plan_comes_out_of_its_table_as_it_went_in() -> None:
    table = PlanTable.of(PLAN)
    assert table.plan(0) == PLAN
    twice = table.take(np.array([0, 0]))
    assert len(twice) == 2
    assert [twice.plan(row) for row in (0, 1)] == [PLAN, PLAN]


def test_a_label_says_what_differs_from_one_device() -> None:
    """Degrees above 1, the ZeRO stage above 1, schedule, layout, what runs again and what is offloaded."""
    assert PLAN.label() == (
        "mtp dp8 mb1x4 layout=Et|tL recompute-moe_act+mlp optimizer_offload=0.25 offloaded_layers=3"
    )
    assert Plan(strategy="fsp", preset="megatron").label() == "fsp mb1x1"
    cut = Plan(strategy="isp", preset="internevo", tp=2, wp=4, pp=2, dp=4, zero_stage=1, zero_size=4)
    assert cut.label() == "isp tp2 pp2 wp4 dp4 zero4 mb1x1"
    deep = Plan(strategy="mtp", preset="deepspeed", dp=8, zero_stage=3, zero_size=8, micro_batch=2)
    assert deep.label() == "mtp dp8 zero3/8 mb2x1"
