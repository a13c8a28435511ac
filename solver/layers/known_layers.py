"""Layers that the questions of a process share: many have the same, whatever batch they ask about and
whichever plans fit.
"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np

from ops.layout import Layout, unique_rows
from solver.layers.distinct_layers import DistinctLayers, again_of, layer_keys, rows_among
from solver.layers.written_layers import WrittenLayers
from solver.plans.plan_table import PlanTable
from spec.arrays import IntArray, ints
from spec.job import JobSpec
from spec.model import ModelSpec

MOST_ROWS = 512
"""Distinct layouts held of a model, job and strategy: about here all of them take as long as what each
operation takes anew.
"""

MOST_KINDS = 64
"""Models, jobs and strategies held, the last ones asked about."""

Kind = tuple[ModelSpec, JobSpec, str, int]


class KnownLayers:
    """Layers written down by model, job (without its batch where no layer depends on it), strategy and world."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, WrittenLayers] = OrderedDict()

    def of(self, model: ModelSpec, job: JobSpec, plans: PlanTable) -> DistinctLayers | None:
        """The layers of the plans, of which those not known yet are written down; None where they are too many to hold,
        and where weights are cast once a step, so that a layer's share of it hangs on the plan."""
        if job.precision.casts_once_a_step:
            return None
        by_data = job.preset.data_parallel
        if not (by_data.reduces_once or by_data.sliced_collectives):
            job = replace(
                job, global_batch_tokens=job.seq_len
            )  # Elsewhere a layer's share of a step depends on it.
        kind = (model, job, plans.strategy, plans.layout.world_size)
        held = self._kinds.get(kind)
        row = None if held is None else rows_among(job, held.layout, plans.layout)
        if held is None or row is None or (row < 0).any():
            fresh = _distinct(job, plans.layout if row is None else plans.layout.take(_lacking(row)))
            if held is None or row is None or len(held) + len(fresh) > MOST_ROWS:
                held, fresh = None, _distinct(job, plans.layout)
            if len(fresh) > MOST_ROWS:
                return None
            written = WrittenLayers(model, job, fresh, plans.strategy, remembers=True)
            held = written if held is None else WrittenLayers.joined([*(held.parts or (held,)), written])
            row = rows_among(job, held.layout, plans.layout)
        assert row is not None
        self._kinds[kind] = held
        self._kinds.move_to_end(kind)
        if len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)
        return DistinctLayers(written=held, row=row, again=again_of(plans))


def _lacking(row: IntArray) -> IntArray:
    return ints(np.flatnonzero(row < 0))


def _distinct(job: JobSpec, layout: Layout) -> Layout:
    """The first of all rows with the same layers."""
    return layout.take(unique_rows(layer_keys(job, layout))[0])
