"""How many pairs of queries and keys a traced attention looked at: what stays the same however its calls are cut."""

import numpy as np

from profdb.fits.attention import attended_pairs
from runner.traces.names import BACKWARD_NAME, CAUSAL_INPUT
from runner.traces.shapes import shapes_of
from runner.traces.trace_file import Event

CONCRETE = "Concrete Inputs"
"""Scalars of a call, by input (torch/csrc/profiler/collection.cpp, InputOutputEncoder)."""


def pairs_of(event: Event) -> float | None:
    """Of all its heads and sequences; None for a call of another library than ATen, or whose inputs were not recorded.

    A mask that is given as a tensor counts as a causal one: its numbers are in no trace.
    """
    if event.name not in CAUSAL_INPUT:
        return None
    causal, mask = CAUSAL_INPUT[event.name]
    said, shapes = event.args.get(CONCRETE), shapes_of(event.args)
    first = 1 if BACKWARD_NAME.search(event.name) else 0
    if not isinstance(said, list) or min(len(said), len(shapes)) <= causal:
        return None
    query, key = shapes[first : first + 2]
    if len(query) != 4 or len(key) != 4:
        return None
    # scaled_dot_product: [batch, heads, tokens, width]; the kernels below it: [batch, tokens, heads, width]
    tokens, heads = (2, 1) if "scaled_dot_product" in event.name else (1, 2)
    masked = said[causal] == "True" or (mask is not None and shapes[mask] != ())
    return heads_pairs(
        query[0] * query[heads], query[tokens], key[tokens], mask="causal" if masked else "full"
    )


def heads_pairs(heads: int, q_len: int, kv_len: int, *, mask: str, window: int = 0) -> float:
    """Of ``heads`` heads of all sequences."""
    columns = {"q_len": np.array([q_len]), "kv_len": np.array([kv_len]), "window": np.array([window])}
    return heads * float(attended_pairs(columns, mask)[0])
