"""How much longer a whole layer takes than its kernels, each measured alone, add up to.

Together they find other caches, clocks and gaps than alone. Where a profile holds whole layers, their time over the sum
of their kernels' times is a curve over that sum; a layer of any shape is told by its own sum, beyond the measured ones
by the last. A layer that the device ran as one graph holds nothing of the host; one issued operation by operation
counts only where its kernels take longer than the host to issue a layer, and none counts where a kernel's own time is
not from measurements. Clocks under the load of a whole step (training_rate_ratio) come on top.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from profdb.cases import Family, LayerCase
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.queries import AttentionQuery, LinearQuery, MemoryBoundQuery, Query, TimeEstimate
from spec.arrays import FloatArray, floats
from spec.errors import MissingCurveError
from spec.origin import Origin

AnyQuery = TypeVar("AnyQuery", bound=Query)

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSum:
    """Measured layers: log of the sum of their kernels' seconds, ascending, and log of time over sum."""

    log_sum_s: FloatArray
    log_factor: FloatArray

    def factor(self, sum_s: FloatArray) -> FloatArray:
        """Seconds of a layer over the sum ``sum_s`` of its kernels; 1 where there are none."""
        log_s = np.log(np.maximum(sum_s, np.finfo(np.float64).tiny))
        factor = np.exp(np.interp(log_s, self.log_sum_s, self.log_factor))
        return np.where(sum_s > 0.0, factor, 1.0)


def layer_sum(cost_model: ProfileCostModel) -> LayerSum | None:
    """The curve of the cost model's profile; None where it has measured no layer that counts."""
    result: dict[float, list[float]] = {}
    samples = cost_model.profile.measured_samples(Family.LAYER)
    # As one graph where there are any, else as issued one by one.
    graphs = [sample for sample in samples if getattr(sample.case, "mode", "") == "graph"]
    for sample in graphs or samples:
        assert isinstance(sample.case, LayerCase)
        with contextlib.suppress(MissingCurveError):
            parts = parts_of_layer(cost_model, sample.case)
            sum_s = float(np.sum([part.seconds[0] for part in parts]))
            measured = all(int(part.origin[0]) <= int(Origin.EXTRAPOLATED) for part in parts)
            if measured and (sample.case.mode == "graph" or sum_s > _host_s(cost_model)):
                result.setdefault(sum_s, []).append(float(np.log(sample.median_s / sum_s)))
    if not result:
        return None
    ordered = sorted(result)
    return LayerSum(log_sum_s=np.log(floats(ordered)), log_factor=floats([np.mean(result[sum_s]) for sum_s in ordered]))


def _host_s(cost_model: ProfileCostModel) -> float:
    """Seconds of the host to issue a layer, forward and backward; endless where nobody measured it."""
    with contextlib.suppress(MissingCurveError):
        return float(cost_model.cpu_s("layer").seconds[0])
    return float("inf")


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


def _together(parts: Callable[[LayerCase], Iterator[AnyQuery]], cases: Sequence[LayerCase]) -> Iterator[AnyQuery]:
    """The questions of several layers, kernel by kernel: each of N shapes."""
    for queries in zip(*(parts(case) for case in cases), strict=True):
        columns = [query.columns() for query in queries]
        yield replace(queries[0], **{name: np.concatenate([one[name] for one in columns]) for name in columns[0]})
