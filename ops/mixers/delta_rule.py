"""The gated delta rule over chunks as products, kernel by kernel of flash-linear-attention.

Source: fla/ops/gated_delta_rule/chunk.py (chunk_gated_delta_rule_fwd, _bwd, save_for_backward), chunk_fwd.py,
wy_fast.py, fla/ops/common/chunk_delta_h.py and chunk_o.py: every ``tl.dot`` is counted, with chunks of 64
tokens (gdn.py). A head of a chunk is one problem; its operands are C x K queries and keys, C x V values, K x
V states, C x C scores.

``Assumption:`` products of one kernel that share a dimension run as one batched product of their FLOPs,
masked halves cost as much as the rest, and the recurrence, one block of threads a head that takes chunk after
chunk, runs as a product whose inner dimension is the sequence.
"""

from dataclasses import dataclass, replace

from ops.context import LayerContext
from ops.op import BatchedGemm, Phase, Piece, run_again
from ops.roles import Module, Role
from spec.arrays import IntArray, ceil_div

CHUNK = 64
# Solving a chunk's triangle multiplies 16 pairs of 16 x 16 blocks (chunk_fwd.py, step 4): as much as 16 more channels
# of the keys do.
SOLVE_CHANNELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """A rank's ``sequences`` (one for each head of a micro-batch) of ``length`` tokens."""

    sequences: IntArray
    length: IntArray
    key_dim: int
    value_dim: int

    @property
    def chunks(self) -> IntArray:
        """Of one sequence; the last one is padded."""
        return ceil_div(self.length, CHUNK)


def delta_rule(context: LayerContext, rule: DeltaRule) -> Piece:
    """Forward and backward; the backward first makes the WY representation and the states again."""
    forward = _forward(context, rule)
    _, weights, recurrence, *_ = forward
    return Piece(
        forward=forward,
        backward=(run_again(weights), run_again(recurrence), *_backward(context, rule)),
    )


def _forward(context: LayerContext, rule: DeltaRule) -> tuple[BatchedGemm, ...]:
    """Scores of keys against keys with their triangle solved (kept, C x C); w and u of the WY representation; the
    corrected values and the states; queries against keys; the output from states and values."""
    k, v = rule.key_dim, rule.value_dim
    tokens = rule.sequences * rule.chunks * CHUNK
    states = rule.sequences * rule.chunks * k * v
    # w, u, the corrected values and every chunk's state wait for the kernel after them
    waiting = context.activation_bytes * (tokens * (k + 2 * v) + states)
    solved = _chunk_product(context, rule, "solve", (CHUNK, k + SOLVE_CHANNELS, CHUNK))
    return (
        replace(solved, saved_bytes=context.activation_bytes * tokens * CHUNK),
        _chunk_product(context, rule, "weights", (CHUNK, CHUNK, k + v)),
        replace(_recurrence(context, rule, "recurrence", 2), transient_bytes=waiting + 0.0),
        _chunk_product(context, rule, "scores", (CHUNK, k, CHUNK)),
        _chunk_product(context, rule, "outputs", (CHUNK, k + CHUNK, v)),
    )


def _backward(context: LayerContext, rule: DeltaRule) -> tuple[BatchedGemm, ...]:
    """chunk_bwd_dv_local, chunk_gated_delta_rule_bwd_dhu, chunk_bwd_dqkwg and prepare_wy_repr_bwd, in that order."""
    k, v = rule.key_dim, rule.value_dim
    shapes = {
        "d_values_scores": (CHUNK, k, CHUNK),
        "d_values": (CHUNK, CHUNK, v),
        "d_scores": (CHUNK, v, CHUNK),
        # of queries, keys and w through the states
        "d_through_states": (3 * CHUNK, v, k),
        "d_within": (2 * CHUNK, CHUNK, k),
        "d_solved": (CHUNK, k + v, CHUNK),
        "d_weights": (CHUNK, CHUNK, k + v),
        "d_solve": (CHUNK, CHUNK, 2 * CHUNK),
        "solve_scores": (CHUNK, k, CHUNK),
        "d_solve_keys": (2 * CHUNK, CHUNK, k),
    }
    first, second, *rest = (
        replace(_chunk_product(context, rule, name, shape), phase=Phase.INPUT_GRAD)
        for name, shape in shapes.items()
    )
    recurrence = replace(_recurrence(context, rule, "d_recurrence", 3), phase=Phase.INPUT_GRAD)
    return (first, second, recurrence, *rest)


def _chunk_product(
    context: LayerContext, rule: DeltaRule, name: str, shape: tuple[int, int, int]
) -> BatchedGemm:
    """A product of ``shape`` (m, k, n) for every head of every chunk."""
    m, k, n = (context.layout.constant(size) for size in shape)
    return BatchedGemm(
        module=Module.GATED_DELTA,
        role=Role.CORE,
        name=f"gated_delta.{name}",
        phase=Phase.FORWARD,
        batch=rule.sequences * rule.chunks,
        m=m,
        k=k,
        n=n,
        layout="NN",
        dtype=context.job.precision.activation,
    )


def _recurrence(context: LayerContext, rule: DeltaRule, name: str, products: int) -> BatchedGemm:
    """``products`` of C x K x V a chunk, one chunk after the other."""
    return replace(
        _chunk_product(context, rule, name, (rule.key_dim, 1, rule.value_dim)),
        batch=rule.sequences,
        k=products * rule.chunks * CHUNK,
        layout="TN",
    )
