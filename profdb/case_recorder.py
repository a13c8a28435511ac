"""A cost model that records the cases of its queries: what would have to be measured to make its times measured ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from profdb.cases import Case, HostCase
from profdb.cost_model import CostModel
from profdb.on_demand import case_of
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    Query,
    TimeEstimate,
    busy_rows,
    curve_of,
)
from profdb.store.columns import number_names

AnyQuery = TypeVar("AnyQuery", bound=Query)


@dataclass(slots=True, kw_only=True)
class CaseRecorder:
    """Returns the times of ``cost_model``, and records in ``cases`` each case since it was last emptied, with the
    seconds of one launch."""

    cost_model: CostModel
    cases: dict[Case, float] = field(default_factory=dict)

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        """Returns times of batched matrix products."""
        return self._record(query, self.cost_model.linear_s)

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        """Returns times of the experts' grouped matrix products."""
        return self._record(query, self.cost_model.grouped_linear_s)

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        """Returns times of attention calls."""
        return self._record(query, self.cost_model.attention_s)

    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate:
        """Returns times of memory-bound kernels."""
        return self._record(query, self.cost_model.memory_bound_s)

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        """Returns times of collectives."""
        return self._record(query, self.cost_model.collective_s)

    def p2p_s(self, query: P2PQuery) -> TimeEstimate:
        """Returns times of messages between two ranks."""
        return self._record(query, self.cost_model.p2p_s)

    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate:
        """Returns times of optimizer steps."""
        return self._record(query, self.cost_model.optimizer_s)

    def cpu_s(self, kind: str) -> TimeEstimate:
        """Returns the CPU time of one launch, layer or micro-batch."""
        estimate = self.cost_model.cpu_s(kind)
        # Host costs are queried one kind at a time and have no shapes.
        self.cases[HostCase(kind=kind)] = float(estimate.seconds[0])
        return estimate

    def _record(self, query: AnyQuery, method: Callable[[AnyQuery], TimeEstimate]) -> TimeEstimate:
        estimate = method(query)
        family, labels = curve_of(query)
        rows = np.flatnonzero(busy_rows(query))
        if not rows.size:
            return estimate
        columns = query.columns()
        # Columns that only model terms use (such as the groups around a collective's group) are no part of a case.
        numbers = [name for name in columns if name in number_names(family)]
        shapes = np.stack([columns[name][rows] for name in columns], axis=1)
        # A query repeats shapes, layer by layer; one row of each different shape is enough.
        _, first = np.unique(shapes, axis=0, return_index=True)
        for row in rows[first].tolist():
            case = case_of(family, labels, {name: int(columns[name][row]) for name in numbers})
            self.cases[case] = float(estimate.seconds[row])
        return estimate
