"""The registry and the presets know the same strategies."""

from ops.layout import Layout
from ops.strategies import STRATEGIES
from spec.settings.plan import STRATEGIES as WRITTEN
from workload.launch_files import EXPORTERS as WRITERS
from workload.settings.launch_file import strategy_launch

EXPORTERS = {name for name, writer in WRITERS.items() if writer.of_any is None}


def test_every_strategy_is_run_by_some_framework_and_every_framework_s_is_there() -> None:
    assert set(STRATEGIES) == set(WRITTEN)
    assert all(name == one.name for name, one in STRATEGIES.items())


def test_plans_that_cut_nothing_are_those_of_one_strategy() -> None:
    assert sum(one.traits.uncut for one in STRATEGIES.values()) == 1


def test_nothing_is_cut_over_one_rank() -> None:
    alone = Layout.of(1)
    for one in STRATEGIES.values():
        for shards in (
            one.weight_shards,
            one.norm_shards,
            one.gemm_shards,
            one.saved_input_shards,
            one.embedding_shards,
        ):
            assert shards(alone).tolist() == [1]


def test_every_strategy_can_be_launched_somewhere() -> None:
    for one in STRATEGIES.values():
        assert any(strategy_launch(name, one.name, 2) is not None for name in EXPORTERS), one.name
        assert strategy_launch("a framework nobody knows", one.name, 2) is None
