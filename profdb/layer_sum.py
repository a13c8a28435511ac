"""Time of a whole layer over the sum of its kernels' times, each measured alone.

Together, kernels meet other caches, clocks and gaps than alone. Where a profile has whole layers, their time over the
sum of their kernels' times is a curve over that sum. The factor of a layer of any shape is read at its own sum, and is
constant beyond the measured sums. A layer that ran as one CUDA graph contains no time of the host. One issued operation
by operation counts only if its kernels take longer than the host's issue of a layer. A layer counts only if the times
of all its kernels come from measurements. Clocks under the load of a whole step (training_rate_ratio) are not part of
the factor.
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
        """Returns a layer's time over the sum ``sum_s`` of its kernels' times; 1 where there are none."""
        log_s = np.log(np.maximum(sum_s, np.finfo(np.float64).tiny))
        factor = np.exp(np.interp(log_s, self.log_sum_s, self.log_factor))
        return np.where(sum_s > 0.0, factor, 1.0)


def layer_sum(cost_model: ProfileCostModel) -> LayerSum | None:
    """Returns the curve of the cost model's profile; None where it has measured no layer that counts."""
    result: dict[float, list[float]] = {}
    samples = cost_model.profile.measured_samples(Family.LAYER)
    # Layers run as one graph where there are any, else those issued operation by operation.
    graphs = [sample for sample in samples if getattr(sample.case, "mode", "") == "graph"]
    for sample in graphs or samples:
        assert isinstance(sample.case, LayerCase)
        with contextlib.suppress(MissingCurveError):
            parts = parts_of_layer(cost_model, sample.case)
            sum_s = float(np.sum([part.seconds[0] for part in parts]))
            # An estimate of a part from elsewhere would make its error part of the factor.
            measured = all(int(part.origin[0]) <= int(Origin.EXTRAPOLATED) for part in parts)
            if measured and (sample.case.mode == "graph" or sum_s > _host_s(cost_model)):
                result.setdefault(sum_s, []).append(float(np.log(sample.median_s / sum_s)))
    if not result:
        return None
    ordered = sorted(result)
    return LayerSum(log_sum_s=np.log(floats(ordered)), log_factor=floats([np.mean(result[sum_s]) for sum_s in ordered]))


def _host_s(cost_model: ProfileCostModel) -> float:
    """Returns the host's seconds to issue a layer, forward and backward; infinity where nobody measured it."""
    with contextlib.suppress(MissingCurveError):
        return float(cost_model.cpu_s("layer").seconds[0])
    return float("inf")


def layer_products(case: LayerCase) -> Iterator[LinearQuery]:
    """Yields forward, input gradient and weight gradient of the four linear layers (ops.op.ProductCall)."""
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
    """Yields the causal attention call and its backward."""
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
    """Yields two norms, the rotation of queries and keys, the activation and two residual additions, in both
    directions."""
    rotated = (case.heads + case.kv_heads) * case.head_dim
    for direction in DIRECTIONS:
        for kernel, width in (
            *[("rmsnorm_torch", case.hidden)] * 2,
            ("rotary_unfused", rotated),
            ("swiglu_unfused", case.ffn_hidden),
            *[("add", case.hidden)] * 2,
        ):
            yield MemoryBoundQuery(
                kernel=kernel, rows=case.batch * case.seq_len, width=width, dtype=case.dtype, direction=direction
            )


def parts_of_layer(cost_model: CostModel, case: LayerCase) -> list[TimeEstimate]:
    """Returns the time of each kernel of the layer, forward and backward. Raises MissingCurveError as the cost model
    does."""
    return parts_of_layers(cost_model, [case])


def parts_of_layers(cost_model: CostModel, cases: Sequence[LayerCase]) -> list[TimeEstimate]:
    """Returns the times of each kernel over ``cases`` (N), which share their labels: one query per kernel."""
    return [
        *(cost_model.linear_s(one) for one in _together(layer_products, cases)),
        *(cost_model.attention_s(one) for one in _together(layer_attention, cases)),
        *(cost_model.memory_bound_s(one) for one in _together(layer_kernels, cases)),
    ]


def _together(parts: Callable[[LayerCase], Iterator[AnyQuery]], cases: Sequence[LayerCase]) -> Iterator[AnyQuery]:
    """Yields the queries of several layers, kernel by kernel, each of N shapes."""
    for queries in zip(*(parts(case) for case in cases), strict=True):
        columns = [query.columns() for query in queries]
        yield replace(queries[0], **{name: np.concatenate([one[name] for one in columns]) for name in columns[0]})
