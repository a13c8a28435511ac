"""A cost model that records the cases of its queries: what would have to be measured to make its times measured ones."""

from dataclasses import dataclass, field

import numpy as np

from profdb.cases import Case, HostCase
from profdb.cost_model import CostModel, ask
from profdb.on_demand import case_of
from profdb.queries import Query, TimeEstimate, busy_rows, curve_of
from profdb.store.columns import number_names


@dataclass(slots=True, kw_only=True)
class CaseRecorder:
    """Returns the times of ``cost_model``, and records in ``cases`` each case since it was last emptied, with the
    seconds of one launch."""

    cost_model: CostModel
    cases: dict[Case, float] = field(default_factory=dict)

    def answer(self, query: Query) -> TimeEstimate:
        """Returns the times of a query of any kind."""
        estimate = ask(self.cost_model, query)
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

    linear_s = grouped_linear_s = attention_s = memory_bound_s = collective_s = p2p_s = optimizer_s = answer

    def cpu_s(self, kind: str) -> TimeEstimate:
        """Returns the CPU time of one launch, layer or micro-batch."""
        estimate = self.cost_model.cpu_s(kind)
        # Host costs are queried one kind at a time and have no shapes.
        self.cases[HostCase(kind=kind)] = float(estimate.seconds[0])
        return estimate
