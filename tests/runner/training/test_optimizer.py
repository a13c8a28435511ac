"""Updates of narrow parameters."""

import pytest
import torch
from torch import nn

from runner.training.optimizer import BETAS, LEARNING_RATE, WEIGHT_DECAY, LocalOptimizer

STEPS = 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_too_small_for_the_parameters_format_are_not_lost(dtype: torch.dtype) -> None:
    """Each update is some 3e-4 of a weight of one; bfloat16 has no number between 1 and 1 - 2^-8 = 1 - 3.9e-3. Under a
    constant gradient AdamW moves by lr (1 + decay w) a step (arXiv 1711.05101, algorithm 2)."""
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = LocalOptimizer([weight], None)
    expected = 1.0
    for _ in range(STEPS):
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
        assert weight.grad is None
        expected -= LEARNING_RATE * (1 + WEIGHT_DECAY * expected)
    assert weight.dtype is dtype
    assert float(weight.detach()[0]) == pytest.approx(
        expected, abs=2**-9 if dtype is torch.bfloat16 else 1e-6
    )
    assert expected < 1 - 2**-8
    assert BETAS == (0.9, 0.95)
