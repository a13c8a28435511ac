"""Settings of the experts' exchange that contradict are told at once."""

from dataclasses import replace

import pytest

from solver.plans.exchange_rules import check_exchange
from spec.errors import ConfigError
from tests.ops.layouts import job


def test_weight_gradients_are_put_off_beside_another_micro_batch_alone() -> None:
    """transformer_config.py: delay_wgrad_compute wants overlap_moe_expert_parallel_comm."""
    check_exchange(job(overlap_expert_a2a=True, delay_wgrad=True))
    with pytest.raises(ConfigError, match=r"delay_wgrad.*overlap_expert_a2a true"):
        check_exchange(replace(job(), delay_wgrad=True))
