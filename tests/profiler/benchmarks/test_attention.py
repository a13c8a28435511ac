"""An attention call as a training step makes it."""

import pytest
import torch

from profdb.cases import AttentionCase
from profiler.benchmarks import attention
from profiler.benchmarks.attention import AttentionFunction, Order, attention_call

CASE = AttentionCase(batch=1, q_len=4, kv_len=4, heads=1, kv_heads=1, qk_dim=8, v_dim=8, direction="forward")


@pytest.mark.parametrize(("kind", "for_a_gradient"), [("cuda", True), ("cpu", False)])
def test_a_forward_on_a_gpu_is_one_of_training(
    kind: str, for_a_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN and the memory-efficient kernel write the sums of the softmax for a gradient alone (attention.cpp,
    should_compute_logsumexp)."""
    asked: list[bool] = []

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        asked.append(torch.is_grad_enabled() and query.requires_grad)
        return query

    here = attention.attention_operands(CASE, Order.TOKENS, torch.device("cpu"))
    monkeypatch.setattr(attention, "attention_operands", lambda *_: here)
    function = AttentionFunction(forward=forward, name="noting", order=Order.TOKENS)
    call = attention_call(CASE, function, torch.device(kind))
    asked.clear()
    call()
    assert asked == [for_a_gradient]
