"""A cost model of measured times restated, question by question, for another GPU of the same generation.

As profdb.transfer.by_model restates samples: the measured time times the ratio of the two sheets'
modelled times. What the measured book itself only models, and every group that leaves a scale-up domain,
comes from the target's own sheet.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profdb.cost_model import CostModel
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
)
from profdb.modelled.kept_book import KeptBook
from profdb.transfer import BY_MODEL_STD
from spec.arrays import BoolArray, ints
from spec.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class RestatedBook:
    """``lender`` is the measured book; ``here`` and ``there`` model its cluster and the target."""

    lender: CostModel
    here: KeptBook
    there: KeptBook

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        """Matrix products."""
        return self._restated(lambda cost_model: cost_model.linear_s(query))

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        """Grouped matrix products."""
        return self._restated(lambda cost_model: cost_model.grouped_linear_s(query))

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        """Attention calls."""
        return self._restated(lambda cost_model: cost_model.attention_s(query))

    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate:
        """Memory-bound kernels."""
        return self._restated(lambda cost_model: cost_model.memory_bound_s(query))

    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate:
        """Optimizer steps."""
        return self._restated(lambda cost_model: cost_model.optimizer_s(query))

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        """Collectives inside a domain; from the sheet where the links are of another kind."""
        return self._restated(lambda cost_model: cost_model.collective_s(query), self._inside(query))

    def p2p_s(self, query: P2PQuery) -> TimeEstimate:
        """Messages between two ranks, as collectives."""
        return self._restated(lambda cost_model: cost_model.p2p_s(query), self._inside(query))

    def cpu_s(self, kind: str) -> TimeEstimate:
        """A host is not the GPU's: the target's own."""
        return self.there.cpu_s(kind)

    def _inside(self, query: CollectiveQuery | P2PQuery) -> BoolArray:
        same = self.here.model.cluster.domains[0].link == self.there.model.cluster.domains[0].link
        return np.asarray((ints(query.inter) == 1) & same, dtype=np.bool_)

    def _restated(
        self, ask: Callable[[CostModel], TimeEstimate], usable: BoolArray | None = None
    ) -> TimeEstimate:
        target = ask(self.there)
        if usable is not None and not usable.any():
            return target
        lent, here = ask(self.lender), ask(self.here)
        known = (lent.origin < int(Origin.MODELLED)) & (here.seconds > 0.0)
        if usable is not None:
            known &= usable
        ratio = np.divide(target.seconds, here.seconds, out=np.ones_like(here.seconds), where=known)
        return TimeEstimate(
            seconds=np.where(known, lent.seconds * ratio, target.seconds),
            relative_std=np.where(known, np.hypot(lent.relative_std, BY_MODEL_STD), target.relative_std),
            origin=np.where(known, np.maximum(lent.origin, int(Origin.TRANSFERRED)), target.origin),
        )
