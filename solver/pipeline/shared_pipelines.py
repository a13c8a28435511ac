"""Plans that differ in sharding, buckets or memory alone share one pipeline: it is played once."""

import numpy as np
from numpy.typing import NDArray

from profdb.lookup.unique_shapes import row_hashes
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray


def first_alike(
    plans: PlanTable, stages: StageTable, passes: PassTimes, hop_s: FloatArray, played: IntArray
) -> IntArray:
    """For each of the plans ``played`` the first of them with the same shape, passes and hops.

    Pipelines are told apart by a 64-bit hash that is then checked against their numbers; on a collision every plan is
    its own.
    """
    starts = stages.chunk_starts[stages.starts]
    counts = np.diff(np.append(starts, len(stages.chunks.stage)))[played]
    rows = rows_between(starts[played], counts)
    numbers = [passes.forward_s, passes.backward_s, passes.weight_s]
    numbers += [] if passes.pair_s is None else [passes.pair_s]
    place = rows - np.repeat(starts[played], counts)
    chunks = row_hashes([place.astype(np.uint64), *(_bits(one[rows]) for one in numbers)])
    whole = np.add.reduceat(chunks, np.cumsum(counts) - counts)
    shape = (plans.layout.pp, plans.vpp, plans.num_micro)
    keys = row_hashes([whole, _bits(hop_s[played]), *(one[played].astype(np.uint64) for one in shape)])
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    alike: IntArray = played[first[inverse.reshape(-1)]]
    same = all(np.array_equal(one[played], one[alike]) for one in (hop_s, *shape))
    if not same or not np.array_equal(counts, counts[first[inverse.reshape(-1)]]):
        return played
    others = rows_between(starts[alike], counts)
    return alike if all(np.array_equal(one[rows], one[others]) for one in numbers) else played


def rows_between(starts: IntArray, counts: IntArray) -> IntArray:
    """``counts[i]`` rows from ``starts[i]`` on, one after another."""
    before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(starts - before, counts) + np.arange(counts.sum())
    return rows


def _bits(values: FloatArray) -> NDArray[np.uint64]:
    return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
