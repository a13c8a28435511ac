"""How many layers of each kind every stage has memory for, as rows of a linear program.

What a stage needs grows with its layers: parameters and their state by the layer, saved activations by the
layer and the micro-batches in flight there. Where something else peaks it grows more slowly, so that it is
convex in the layers and a tangent never forbids what fits (Kelley's cutting planes, SIAM J. 8, 1960); what a
tangent lets through is cut off by the one where it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.estimate import Estimate
from solver.memory.chunk_activations import in_flight_by_chunk, saved_by_chunk
from solver.memory.stage_memory import Tables, stage_memory
from solver.pipeline.stages import ChunkTable, StageTable
from solver.question import Question
from spec.arrays import BoolArray, FloatArray, IntArray, ints

# A bound is found to so many halvings of its range.
HALVINGS = 30
# A layer that is so little short of whole, by rounding, is one.
WHOLE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A stage ``place`` holds what satisfies ``sum(bytes_of * layers) <= room_bytes``; ``bytes_of`` is by
    chunk of the stage and kind of layer, as the layers of a StageTable without prediction blocks, which are
    not dealt."""

    place: int
    bytes_of: tuple[tuple[float, ...], ...]
    room_bytes: float

    @property
    def largest(self) -> float:
        """Bytes of the largest layer."""
        return max(max(kinds) for kinds in self.bytes_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRooms:
    """Every stage of every plan of a table, each a row: what a layer more of each kind needs there in each
    chunk (shape (chunks, kinds, R); infinite where a stage has fewer), the bytes that all of its layers may
    need together, and whether those of the table need more (``short``)."""

    stages: StageTable
    vpp: IntArray
    bytes_of: FloatArray
    room_bytes: FloatArray
    short: BoolArray

    def of_plan(self, row: int) -> tuple[Room, ...]:
        """The stages of one plan."""
        return self._of(np.flatnonzero(self.stages.plan == row))

    def of_short(self) -> tuple[Room, ...]:
        """The stages that need more than there is."""
        return self._of(np.flatnonzero(self.short))

    def _of(self, rows: IntArray) -> tuple[Room, ...]:
        return tuple(
            Room(
                place=int(self.stages.position[at]),
                bytes_of=tuple(tuple(kinds) for kinds in self.bytes_of[: self.vpp[at], :, at].tolist()),
                room_bytes=float(self.room_bytes[at]),
            )
            for at in rows
        )

    def most_layers(self, run: int, again: IntArray) -> FloatArray:
        """How many whole layers of a run every stage has memory for, with nothing else on it; ``again``
        layers of every stage of a plan may be of the kinds that run again, where there are such."""
        least: FloatArray = self.bytes_of.min(axis=0)
        runs = len(least) // 2 if again.any() else len(least)
        return _most(self.room_bytes, again[self.stages.plan], least[run], least[run - runs])

    def may_hold(self, counts: Sequence[int]) -> BoolArray:
        """Of every plan of layers alike, whether all stages have memory for so many whole layers of each run,
        were those of one run all there are."""
        none = np.zeros(len(self.stages.starts), dtype=np.int64)
        run = int(np.argmax(counts))
        most = np.add.reduceat(self.most_layers(run, none), self.stages.starts)
        short = np.logical_or.reduceat(self.room_bytes < 0, self.stages.starts)
        return np.asarray((most >= counts[run]) & ~short, dtype=np.bool_)

    def least_span_s(self, run: int, count: int, again: IntArray, seconds: FloatArray) -> FloatArray:
        """Seconds of a micro-batch that the busiest stage of every plan works at least where ``count`` layers
        of a run stand whole where memory has room, infinite where it has not; ``seconds`` are of a layer that
        runs again and of one as it is, of the embedding, of the head, and of prediction blocks on one of the
        last two stages, whose memory then is not asked about, by plan."""
        plan, starts = self.stages.plan, self.stages.starts
        of_again_s, plain_s, first_s, last_s, predicted_s = seconds
        ends_s = first_s[plan] * self.stages.embedding + last_s[plan] * self.stages.head
        behind = starts[plan] + np.diff(np.append(starts, len(plan)))[plan] - np.arange(len(plan))
        last_two = (behind <= 2) & (predicted_s[plan] > 0)
        most = np.where(last_two, count, self.most_layers(run, again))

        def enough(span_s: FloatArray) -> BoolArray:
            found = np.zeros(len(again), dtype=np.bool_)
            for place in (1, 2):
                left_s = span_s[plan] - ends_s - predicted_s[plan] * (behind == place)
                short = np.logical_or.reduceat(left_s < 0, starts)
                layers = np.minimum(_most(left_s, again[plan], of_again_s[plan], plain_s[plan]), most)
                found |= (np.add.reduceat(layers, starts) >= count) & ~short
            return found

        low = np.zeros(len(again))
        high = count * np.maximum(of_again_s, plain_s) + first_s + last_s + predicted_s
        possible = enough(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            fits = enough(middle)
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        return np.where(possible, low, np.inf)


def _most(room: FloatArray, fewer: IntArray, light: FloatArray, plain: FloatArray) -> FloatArray:
    """Whole layers in a room, of which so many ``fewer`` are ``light``."""
    room = np.maximum(room, 0.0)
    held = np.minimum(fewer, room / light) + np.maximum(room - fewer * light, 0.0) / plain
    return np.asarray(np.floor(held + WHOLE), dtype=np.float64)


def stage_rooms(question: Question, table: Estimate, limit: float) -> StageRooms:
    """The room below ``limit`` bytes on every stage of ``table``."""
    return rooms_of(question, tables_of(question, table), limit)


def tables_of(question: Question, table: Estimate) -> Tables:
    """What the memory of ``table`` is counted of."""
    return Tables(
        plans=table.plans,
        kinds=table.layers.bytes,
        row=table.layers.row,
        stages=table.stages,
        cluster=question.cluster,
    )


def rooms_of(question: Question, tables: Tables, limit: float) -> StageRooms:
    """As stage_rooms, of plans of which each may run other parts of its layers again."""
    stages = _each_stage(tables.stages)
    vpp = tables.plans.vpp[stages.plan]
    held = np.stack(stages.chunks.layers)
    runs = question.model.blocks
    dealt = [kind for kind in range(len(held)) if not runs[kind % len(runs)].block.mtp]
    tables = replace(tables, flying=_flying(tables, stages))
    everywhere = ints(np.arange(len(vpp)))
    ways = [(everywhere, held)]
    for chunk in range(int(vpp.max(initial=1))):
        rows = ints(np.flatnonzero(vpp > chunk))
        here = _rows(stages, rows)
        for kind in dealt:
            once = np.stack(here.chunks.layers)
            at = here.chunk_starts + chunk
            # The first layer of a kind may bring what the others share.
            once[kind, at] += here.layers[kind] == 0
            more = once.copy()
            more[kind, at] += 1
            ways += [(rows, once), (rows, more)]
    needed = _needed(question, tables, stages, ways)
    each = np.full((int(vpp.max(initial=1)), len(dealt), len(vpp)), np.inf)
    room_bytes = limit - needed[0]
    for index, (once_bytes, more_bytes) in enumerate(zip(needed[1::2], needed[2::2], strict=True)):
        chunk, kind = divmod(index, len(dealt))
        rows = ways[1 + 2 * index][0]
        each[chunk, kind, rows] = more_bytes - once_bytes
        room_bytes[rows] += (more_bytes - once_bytes) * held[dealt[kind], stages.chunk_starts[rows] + chunk]
    return StageRooms(stages=stages, vpp=vpp, bytes_of=each, room_bytes=room_bytes, short=needed[0] > limit)


def _flying(tables: Tables, stages: StageTable) -> FloatArray:
    """Micro-batches that every chunk of ``stages`` holds at its stage's peak: with these what the stage needs
    grows evenly with its layers, and no less with any others."""
    plans, layout = tables.plans, tables.plans.layout
    vpp, num_micro = plans.vpp[stages.plan], plans.num_micro[stages.plan]
    pieces = plans.schedule.in_flight(stages.position, layout.pp[stages.plan], vpp, num_micro) * vpp
    saved = saved_by_chunk(stages, tables.kinds, tables.row)
    return in_flight_by_chunk(plans, stages, saved, pieces, of=np.arange(len(vpp)))


def _needed(
    question: Question, tables: Tables, stages: StageTable, ways: Sequence[tuple[IntArray, IntArray]]
) -> list[FloatArray]:
    """Bytes that some stages need with each of these layers of their chunks: all in one table."""
    rows = ints(np.concatenate([rows for rows, _ in ways]))
    each = _holding(_rows(stages, rows), tuple(np.concatenate([layers for _, layers in ways], axis=1)))
    flying = None if tables.flying is None else tables.flying[_chunks_of(stages, rows)[1]]
    held = replace(tables, stages=each, flying=flying)
    needed = stage_memory(question.model, question.job, held).cost.needed_bytes
    return np.split(needed, np.cumsum([len(rows) for rows, _ in ways])[:-1])


def _chunks_of(stages: StageTable, rows: IntArray) -> tuple[IntArray, IntArray]:
    """The chunks of rows of a stage table, in no order of plans: which of ``rows`` each belongs to, and where
    it stands.
    """
    width = np.diff(stages.chunk_starts, append=len(stages.chunks.stage))[rows]
    stage = np.repeat(np.arange(len(rows)), width)
    first = np.cumsum(width) - width
    return ints(stage), ints(np.arange(len(stage)) + (stages.chunk_starts[rows] - first)[stage])


def _rows(stages: StageTable, rows: IntArray) -> StageTable:
    """Rows of a stage table, in no order of plans, with their chunks."""
    chunks = stages.chunks
    stage, of = _chunks_of(stages, rows)
    return replace(
        stages,
        plan=stages.plan[rows],
        position=stages.position[rows],
        count=stages.count[rows],
        embedding=stages.embedding[rows],
        head=stages.head[rows],
        layers=tuple(layers[rows] for layers in stages.layers),
        chunk_starts=np.searchsorted(stage, np.arange(len(rows))).astype(np.int64),
        chunks=ChunkTable(
            stage=stage,
            embedding=chunks.embedding[of],
            head=chunks.head[of],
            layers=tuple(layers[of] for layers in chunks.layers),
        ),
    )


def _holding(stages: StageTable, layers: tuple[IntArray, ...]) -> StageTable:
    """The stages with these layers of their chunks."""
    return replace(
        stages,
        layers=tuple(np.add.reduceat(kind, stages.chunk_starts) for kind in layers),
        chunks=replace(stages.chunks, layers=layers),
    )


def _each_stage(stages: StageTable) -> StageTable:
    """A row for every stage, also of equal ones, of which later ones hold fewer micro-batches in flight."""
    row = np.repeat(np.arange(len(stages.plan)), stages.count)
    first = np.cumsum(stages.count) - stages.count
    each = _rows(stages, ints(row))
    return replace(
        each,
        position=each.position + np.arange(len(row)) - first[row],
        count=np.ones_like(row),
        starts=np.searchsorted(each.plan, np.arange(len(stages.starts))).astype(np.int64),
    )
