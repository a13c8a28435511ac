"""A book that answers one assumed time for everything computed and none for what is sent.

For workloads whose times come later (from a file, or from nowhere). Every answer says ASSUMED.
"""

from dataclasses import dataclass

import numpy as np

from profdb.lookup.priced import Priced
from profdb.lookup.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
)
from spec.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBook:
    """``seconds`` of every compute operation; collectives and launches take no time."""

    seconds: float

    def linear_s(self, query: LinearQuery) -> Priced:
        """One fixed time."""
        return _assumed(query.size, self.seconds)

    def grouped_linear_s(self, query: GroupedLinearQuery) -> Priced:
        """One fixed time."""
        return _assumed(query.size, self.seconds)

    def attention_s(self, query: AttentionQuery) -> Priced:
        """One fixed time."""
        return _assumed(query.size, self.seconds)

    def memory_bound_s(self, query: MemoryBoundQuery) -> Priced:
        """One fixed time."""
        return _assumed(query.size, self.seconds)

    def optimizer_s(self, query: OptimizerQuery) -> Priced:
        """One fixed time."""
        return _assumed(query.size, self.seconds)

    def collective_s(self, query: CollectiveQuery) -> Priced:
        """Nothing: a workload file holds bytes, not their seconds."""
        return _assumed(query.size, 0.0)

    def p2p_s(self, query: P2PQuery) -> Priced:
        """Nothing, as a collective."""
        return _assumed(query.size, 0.0)

    def host_s(self, kind: str) -> Priced:
        """Nothing: the fixed time stands for a whole operation."""
        return _assumed(1, 0.0)


def _assumed(size: int, seconds: float) -> Priced:
    return Priced(
        seconds=np.full(size, seconds),
        relative_std=np.zeros(size),
        origin=np.full(size, int(Origin.ASSUMED), dtype=np.int64),
    )
