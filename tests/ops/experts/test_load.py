"""How far the busiest rank's tokens exceed the mean, where a closed form says it exactly."""

import numpy as np
import pytest

from ops.context import LayerContext
from ops.experts.exchange import busiest_share
from ops.layout import Layout
from spec.model import MoeSpec
from tests.ops.experts.test_moe_block import model
from tests.ops.layouts import job

EXPERTS = 32


def share(ep: list[int], spread: float, imbalance: float = 1.0) -> list[float]:
    """Tokens of the busiest of ``ep`` ranks over those of the mean one."""
    asked = job(world_size=32, moe_expert_spread=spread, moe_imbalance=imbalance)
    context = LayerContext(model=model(), job=asked, layout=Layout.of(32, ep=np.array(ep)))
    moe = MoeSpec(num_experts=EXPERTS, topk=4, expert_ffn_hidden=128)
    return [float(one) for one in busiest_share(context, moe)]


def test_of_two_ranks_the_busier_is_as_far_up_as_the_other_is_down() -> None:
    """Half the experts each: sums of 16 of 32 drawn without replacement, of variance s^2 / 16 x 16 / 31; the
    mean of what a normal number is off by, sqrt(2 / pi) of its deviation (Blom's approximation of the largest
    of two: 4.5 % above)."""
    expected = 0.4 * np.sqrt(1 / 31) * np.sqrt(2 / np.pi)
    assert share([2], 0.4)[0] - 1.0 == pytest.approx(1.045 * expected, rel=0.002)


def test_one_rank_has_all_tokens_and_even_experts_no_busiest_share() -> None:
    assert share([1], 0.4) == [1.0]
    assert share([1, 2, 32], 0.0) == [1.0] * 3
    assert share([1, 2], 0.0, imbalance=1.3) == [1.3] * 2
