"""Activations that a stage of several chunks keeps: each chunk its own layers, for the micro-batches that are
between its forward and its backward."""

import numpy as np

from solver.pipeline.stages import StageTable
from solver.plans.layers import LayerBytes
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray, ints


def chunk_activations(
    plans: PlanTable, stages: StageTable, kinds: list[LayerBytes], layer_row: IntArray, in_flight: FloatArray
) -> FloatArray:
    """Bytes that every stage row keeps of layers and embedding at its peak, with so many micro-batches
    ``in_flight``."""
    saved = saved_by_chunk(stages, kinds, layer_row)
    if not plans.schedule.placement.looped:
        return two_way_bytes(plans, stages, saved)
    return looped_bytes(plans, stages, saved, in_flight * plans.vpp[stages.plan])


def saved_by_chunk(stages: StageTable, kinds: list[LayerBytes], layer_row: IntArray) -> FloatArray:
    """Bytes of layers and embedding of every chunk row, for one micro-batch."""
    chunks = stages.chunks
    row = layer_row[stages.plan[chunks.stage]]
    saved = kinds[len(chunks.layers)].saved_bytes[row] * chunks.embedding
    for kind, layers in zip(kinds, chunks.layers, strict=False):
        saved = saved + kind.saved_bytes[row] * layers
    return saved


def two_way_bytes(plans: PlanTable, stages: StageTable, saved: FloatArray) -> FloatArray:
    """Bytes of every stage row at its peak, ``saved`` by chunk row, where a micro-batch turns and passes a
    stage twice, or two copies of the model pass it. With P virtual stages and v before it a chunk holds P - v
    micro-batches, as the stages of 1F1B do: P + 1 over both chunks (arXiv 2412.19437 table 2). Where no
    forward runs beside a backward both chunks never hold their most at once: P over both (arXiv 2405.15362
    sec. 3), the heavier at its most."""
    placement, chunks = plans.schedule.placement, stages.chunks
    plan = stages.plan[chunks.stage]
    pp, vpp = plans.layout.pp[plan], plans.vpp[plan]
    number = np.arange(len(plan)) - stages.chunk_starts[chunks.stage]
    place = placement.place(stages.position[chunks.stage], number, pp, vpp)
    resident = np.minimum(pp * vpp - place, plans.num_micro[plan] // placement.directions)
    total: FloatArray = np.add.reduceat(saved * resident, stages.chunk_starts)
    if plans.schedule.traits.pairs:
        return total
    one_more = np.add.reduceat(resident, stages.chunk_starts) > (pp * vpp)[stages.chunk_starts]
    return total - one_more * np.minimum.reduceat(saved, stages.chunk_starts)


def looped_bytes(plans: PlanTable, stages: StageTable, saved: FloatArray, pieces: FloatArray) -> FloatArray:
    """Bytes of every stage row at its peak, ``saved`` by chunk row, where chunks take turns every pp
    micro-batches and ``pieces`` of work are in flight (solver.plans.schedules): where a stage's chunks
    are alike it does not matter of which."""
    starts = stages.chunk_starts
    uneven = np.maximum.reduceat(saved, starts) > np.minimum.reduceat(saved, starts)
    in_flight = in_flight_by_chunk(plans, stages, saved, pieces, of=np.flatnonzero(uneven))
    total: FloatArray = np.add.reduceat(saved * in_flight, starts)
    return total


def in_flight_by_chunk(
    plans: PlanTable, stages: StageTable, saved: FloatArray, pieces: FloatArray, *, of: IntArray
) -> FloatArray:
    """Micro-batches that every chunk row holds when its stage holds most, of the stage rows ``of``; of others
    as many of each chunk.

    After ``i`` backwards ``pieces + i`` forwards have begun, in the order of the chunks, and the backwards
    took them in the opposite order. What is resident changes in a straight line until either comes to its next
    chunk, and is the same again after a round of pp micro-batches: it is largest where one of them comes to a
    chunk.
    """
    starts, number = stages.chunk_starts, plans.vpp[stages.plan]
    in_flight: FloatArray = (pieces / number)[stages.chunks.stage]
    of = of[number[of] > 1]
    if not len(of):
        return in_flight
    vpp, pp, begun = number[of], plans.layout.pp[stages.plan[of]], ints(np.rint(pieces[of]))
    left = plans.num_micro[stages.plan[of]] * vpp - begun
    chunk = np.arange(int(vpp.max()))[:, None]
    there = chunk < vpp
    at = starts[of] + np.minimum(chunk, vpp - 1)
    most, resident = np.full(len(of), -1.0), np.zeros(at.shape)
    for turn in range(len(chunk) + 1):
        for until in (0, -begun % pp):
            done = np.clip(turn * pp + until, 0, left)
            now = _of_chunk(begun + done, chunk, pp, vpp) - _of_chunk(done, vpp - 1 - chunk, pp, vpp)
            bytes_now = np.sum(saved[at] * now * there, axis=0)
            resident = np.where(bytes_now > most, now, resident)
            most = np.maximum(most, bytes_now)
    in_flight[at[there]] = resident[there]
    return in_flight


def _of_chunk(pieces: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    """Returns how many of the first ``pieces`` of work are of the ``chunk`` in turn."""
    rounds, rest = np.divmod(pieces, pp * vpp)
    return np.asarray(rounds * pp + np.clip(rest - chunk * pp, 0, pp), dtype=np.int64)
