"""Benchmark: the matrix products of attention without a fused kernel (kernel name ``core``).

Scores and context in the forward, the four products of the gradients in the backward; mask and
softmax between them are a memory-bound kernel of their own (ops.memory_bound, masked_softmax).
"""

import torch

from profdb.cases import AttentionCase
from profiler.benchmarks.launched import Call
from profiler.benchmarks.torch_dtypes import random_operand


def core_call(case: AttentionCase, where: torch.device) -> Call:
    """The products of all heads, keys and values repeated for the heads that share them."""
    products = case.batch * case.heads
    query = random_operand((products, case.q_len, case.qk_dim), case.dtype, where)
    key = random_operand((products, case.kv_len, case.qk_dim), case.dtype, where)
    value = random_operand((products, case.kv_len, case.v_dim), case.dtype, where)
    weights = random_operand((products, case.q_len, case.kv_len), case.dtype, where)
    gradient = random_operand((products, case.q_len, case.v_dim), case.dtype, where)
    scores = torch.empty_like(weights)

    def forward() -> None:
        torch.bmm(query, key.transpose(1, 2), out=scores)
        torch.bmm(weights, value)

    def backward() -> None:
        torch.bmm(weights.transpose(1, 2), gradient)
        torch.bmm(gradient, value.transpose(1, 2), out=scores)
        torch.bmm(weights, key)
        torch.bmm(weights.transpose(1, 2), query)

    return forward if case.direction == "forward" else backward
