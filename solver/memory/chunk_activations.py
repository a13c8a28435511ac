"""Activations of a stage of several chunks. Chunks hold different layers, and different numbers of micro-batches are
between the forward and the backward of each; the peak is the largest sum over chunks."""

import numpy as np

from solver.pipeline.stages import StageTable
from solver.plans.layers import LayerBytes
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray, ints


def chunk_activations(
    plans: PlanTable, stages: StageTable, kinds: list[LayerBytes], layer_row: IntArray, in_flight: FloatArray
) -> FloatArray:
    """Returns the bytes that every stage row saves of layers and embedding at its peak, with so many micro-batches
    ``in_flight``."""
    saved = saved_by_chunk(stages, kinds, layer_row)
    if not plans.schedule.placement.looped:
        return two_chunk_bytes(plans, stages, saved)
    # In passes of a chunk, which is what a looped schedule counts its warm-up in.
    return looped_bytes(plans, stages, saved, in_flight * plans.vpp[stages.plan])


def saved_by_chunk(stages: StageTable, kinds: list[LayerBytes], layer_row: IntArray) -> FloatArray:
    """Returns the bytes that layers and embedding of every chunk row save for one micro-batch."""
    chunks = stages.chunks
    row = layer_row[stages.plan[chunks.stage]]
    saved = kinds[len(chunks.layers)].saved_bytes[row] * chunks.embedding
    for kind, layers in zip(kinds, chunks.layers, strict=False):
        saved = saved + kind.saved_bytes[row] * layers
    return saved


def two_chunk_bytes(plans: PlanTable, stages: StageTable, saved: FloatArray) -> FloatArray:
    """Returns the bytes of every stage row at its peak, ``saved`` by chunk row, where a micro-batch turns and passes a
    stage twice (ZB-V, DualPipe-V) or two copies of the model pass it (DualPipe).

    With P virtual stages and v before it a chunk holds P - v micro-batches, as the stages of 1F1B do: P + 1 over both
    chunks (arXiv 2412.19437 table 2). Where no forward runs together with a backward both chunks never hold their most
    at once: P over both (arXiv 2405.15362 sec. 3), the heavier chunk at its most.
    """
    placement, chunks = plans.schedule.placement, stages.chunks
    plan = stages.plan[chunks.stage]
    pp, vpp = plans.layout.pp[plan], plans.vpp[plan]
    number = np.arange(len(plan)) - stages.chunk_starts[chunks.stage]
    place = placement.place(stages.position[chunks.stage], number, pp, vpp)
    in_flight = np.minimum(pp * vpp - place, plans.num_micro[plan] // placement.directions)
    total: FloatArray = np.add.reduceat(saved * in_flight, stages.chunk_starts)
    if plans.schedule.traits.pairs:
        return total
    # ZB-V: one micro-batch less, of the lighter chunk.
    one_more = np.add.reduceat(in_flight, stages.chunk_starts) > (pp * vpp)[stages.chunk_starts]
    return total - one_more * np.minimum.reduceat(saved, stages.chunk_starts)


def looped_bytes(plans: PlanTable, stages: StageTable, saved: FloatArray, ahead: FloatArray) -> FloatArray:
    """Returns the bytes of every stage row at its peak, ``saved`` by chunk row, where chunks take turns every pp
    micro-batches and a stage is ``ahead`` by so many forwards of a chunk (solver.plans.schedules)."""
    starts = stages.chunk_starts
    # Where the chunks of a stage save the same it does not matter which of them are in flight.
    uneven = np.maximum.reduceat(saved, starts) > np.minimum.reduceat(saved, starts)
    in_flight = in_flight_by_chunk(plans, stages, saved, ahead, of=np.flatnonzero(uneven))
    total: FloatArray = np.add.reduceat(saved * in_flight, starts)
    return total


def in_flight_by_chunk(
    plans: PlanTable, stages: StageTable, saved: FloatArray, ahead: FloatArray, *, of: IntArray
) -> FloatArray:
    """Returns the micro-batches in flight of every chunk row at the peak of its stage, for the stage rows ``of``; for
    others the same number of every chunk.

    After ``i`` backwards ``ahead + i`` forwards have begun, in the order of the chunks, and the backwards took them in
    the opposite order. Between two changes of a chunk, by the forwards or by the backwards, the bytes grow or shrink in
    a straight line, and after a round of pp micro-batches through every chunk they are the same again. So the peak is
    at one of these changes within a round, and only those are tried.
    """
    starts, number = stages.chunk_starts, plans.vpp[stages.plan]
    in_flight: FloatArray = (ahead / number)[stages.chunks.stage]
    for vpp in np.unique(number[of][number[of] > 1]).tolist():
        rows = of[number[of] == vpp]
        pp, warmup = plans.layout.pp[stages.plan[rows]], ints(np.rint(ahead[rows]))
        forwards_left = plans.num_micro[stages.plan[rows]] * vpp - warmup
        # Axes from here on: (chunk, stage row).
        chunk = np.arange(vpp)[:, None]
        at = starts[rows] + chunk
        of_chunks, before, behind = saved[at], chunk * pp, (vpp - 1 - chunk) * pp
        most, at_peak = np.full(len(rows), -1.0), np.zeros(at.shape)
        for turn in range(vpp + 1):
            # Backwards come to their next chunk after a multiple of pp, forwards once their own number is one.
            for until in (0, -warmup % pp):
                done = np.clip(turn * pp + until, 0, forwards_left)
                now = _of_chunk(warmup + done, before, pp, vpp) - _of_chunk(done, behind, pp, vpp)
                bytes_now = np.sum(of_chunks * now, axis=0)
                at_peak = np.where(bytes_now > most, now, at_peak)
                most = np.maximum(most, bytes_now)
        in_flight[at] = at_peak
    return in_flight


def _of_chunk(passes: IntArray, before: IntArray, pp: IntArray, vpp: int) -> IntArray:
    """Returns how many of the first ``passes`` go through the chunk that comes after so many ``before`` in a round."""
    rounds, rest = np.divmod(passes, pp * vpp)
    return ints(rounds * pp + np.minimum(np.maximum(rest - before, 0), pp))
