"""The plan table against the table of plan fields."""

from ops.recompute.modules import MODULES
from ops.strategies.registry import STRATEGIES
from spec.settings.plan import plan_settings


def test_every_name_that_can_be_typed_is_priced() -> None:
    """The table stands below the code that prices, so it repeats the names."""
    words = {key: set(getattr(one.kind, "words", ())) for key, one in plan_settings().items()}
    assert words["strategy"] == set(STRATEGIES)
    assert words["recompute_modules"] == set(MODULES)
