"""Updates of narrow parameters."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from runner.training.data_parallel import BETAS, LEARNING_RATE, WEIGHT_DECAY, LocalOptimizer

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


def test_one_kernel_updates_each_format() -> None:
    """The update that is priced: of fp32 parameters and gradients one fused call, nothing per tensor but the copies."""
    weights = [nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in [torch.float32, torch.bfloat16] * 3]
    optimizer = LocalOptimizer(weights, None)
    for weight in weights:
        weight.grad = torch.full_like(weight, 0.5)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        optimizer.step()
    ran = [event.name for event in profiler.events() or []]
    assert ran.count("aten::_fused_adamw_") == 1
    assert "aten::addcdiv_" not in ran
