"""The kernels of a whole measured layer, each as a question of its own: what their times add up to."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from profdb.cases import LayerCase
from profdb.cost_model import CostModel
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import AttentionQuery, LinearQuery, MemoryBoundQuery, Query

Asked = TypeVar("Asked", bound=Query)

DIRECTIONS = ("forward", "backward")


def layer_products(case: LayerCase) -> Iterator[LinearQuery]:
    """Forward, input gradient and weight gradient of the four linear layers (ops.op.ProductCall)."""
    tokens = case.batch * case.seq_len
    queries, keys = case.heads * case.head_dim, case.kv_heads * case.head_dim
    for inputs, outputs in (
        (case.hidden, queries + 2 * keys),
        (queries, case.hidden),
        (case.hidden, 2 * case.ffn_hidden),
        (case.ffn_hidden, case.hidden),
    ):
        yield LinearQuery(m=tokens, k=inputs, n=outputs, layout="NT", dtype=case.dtype)
        yield LinearQuery(m=tokens, k=outputs, n=inputs, layout="NN", dtype=case.dtype)
        yield LinearQuery(m=outputs, k=tokens, n=inputs, layout="TN", dtype=case.dtype)


def layer_attention(case: LayerCase) -> Iterator[AttentionQuery]:
    """The causal call and its backward."""
    for direction in DIRECTIONS:
        yield AttentionQuery(
            batch=case.batch,
            q_len=case.seq_len,
            kv_len=case.seq_len,
            heads=case.heads,
            kv_heads=case.kv_heads,
            qk_dim=case.head_dim,
            v_dim=case.head_dim,
            direction=direction,
            dtype=case.dtype,
        )


def layer_kernels(case: LayerCase) -> Iterator[MemoryBoundQuery]:
    """Two norms, the rotation of queries and keys, the activation and two residual additions, both ways."""
    rotated = (case.heads + case.kv_heads) * case.head_dim
    for direction in DIRECTIONS:
        for kernel, width in (
            *[("rmsnorm", case.hidden)] * 2,
            ("rotary_unfused", rotated),
            ("swiglu_unfused", case.ffn_hidden),
            *[("add", case.hidden)] * 2,
        ):
            yield MemoryBoundQuery(
                kernel=kernel,
                rows=case.batch * case.seq_len,
                width=width,
                dtype=case.dtype,
                direction=direction,
            )


def parts_of_layer(cost_model: CostModel, case: LayerCase) -> list[TimeEstimate]:
    """The time of each kernel of the layer, forward and backward. MissingCurveError as the cost model raises it."""
    return parts_of_layers(cost_model, [case])


def parts_of_layers(cost_model: CostModel, cases: Sequence[LayerCase]) -> list[TimeEstimate]:
    """The times of each kernel over ``cases`` (N), which share their words: a kernel's prices come from one
    question.
    """
    return [
        *(cost_model.linear_s(one) for one in _together(layer_products, cases)),
        *(cost_model.attention_s(one) for one in _together(layer_attention, cases)),
        *(cost_model.memory_bound_s(one) for one in _together(layer_kernels, cases)),
    ]


def _together(parts: Callable[[LayerCase], Iterator[Asked]], cases: Sequence[LayerCase]) -> Iterator[Asked]:
    """The questions of several layers, kernel by kernel: each of N shapes."""
    for queries in zip(*(parts(case) for case in cases), strict=True):
        columns = [query.columns() for query in queries]
        yield replace(
            queries[0], **{name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
        )
