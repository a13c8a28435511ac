"""A discrete replay of many programs side by side: all work of one level, of all plans, at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from solver.pipeline.program import NONE, Program
from spec.arrays import FloatArray, IntArray, ints

COLUMNS = 32
"""Plans of one shape that are held in one row of numbers; fewer where fewer are asked for."""

MOST_CELLS = 3_000_000
"""Ends held at once, of which there are two of 8 bytes and the seconds that lead to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch through one chunk, arrays of shape (pp, chunks, N); ``hop_s`` of shape (N,).

    ``weight_s`` is 0 where the schedule does not split the backward, ``pair_s`` what a forward of the chunk takes
    beside a backward of the stage's other one. ``waited``: a stage computes nothing while it exchanges messages;
    ``updates_apart``: it begins its next step as soon as it is done, and not when all are.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    hop_s: FloatArray
    waited: bool = False
    updates_apart: bool = False
    pair_s: FloatArray | None = None

    def by_kind(self) -> FloatArray:
        """Shape (kinds of solver.pipeline.program.KINDS, pp, chunks, N)."""
        pair_s = self.forward_s if self.pair_s is None else self.pair_s
        whole_s = self.backward_s + self.weight_s
        return np.stack([self.forward_s, self.backward_s, self.weight_s, whole_s, pair_s])

    def take(self, columns: slice | IntArray) -> "ChunkTimes":
        """Some of the plans."""
        return ChunkTimes(
            forward_s=self.forward_s[:, :, columns],
            backward_s=self.backward_s[:, :, columns],
            weight_s=self.weight_s[:, :, columns],
            hop_s=self.hop_s[columns],
            waited=self.waited,
            updates_apart=self.updates_apart,
            pair_s=None if self.pair_s is None else self.pair_s[:, :, columns],
        )


Run = tuple[Program, ChunkTimes]


def starts_and_ends(one: Program, times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """When each piece of work begins and ends, arrays of shape (len(program), N)."""
    ends_s = np.concatenate([ends for _, _, ends in ends_side_by_side([(one, times)])], axis=1)
    return ends_s - times.by_kind()[one.kind, one.stage, one.chunk], ends_s


def run(one: Program, times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """When each stage begins its first work and ends its last, arrays of shape (pp, N)."""
    starts, ends = starts_and_ends(one, times)
    first, last = first_and_last(one)
    return starts[first], ends[last]


def first_and_last(one: Program) -> tuple[list[int], list[int]]:
    """The rows of each stage's first and last work."""
    firsts = np.flatnonzero(one.before == NONE)
    lasts = np.setdiff1d(np.arange(len(one)), one.before)
    by_stage = (rows[np.argsort(one.stage[rows])].tolist() for rows in (firsts, lasts))
    first, last = by_stage
    return first, last


def ends_side_by_side(runs: Sequence[Run]) -> Iterator[tuple[int, slice, FloatArray]]:
    """For every run and some of its plans at a time (their index and columns), when each piece of work ends, shape
    (len(program), plans)."""
    most = max((times.hop_s.shape[0] for _, times in runs), default=0)
    width = int(min(COLUMNS, 2 ** int(np.ceil(np.log2(max(most, 1))))))
    waiting: list[tuple[int, slice]] = []
    cells = 0
    for index, (one, times) in enumerate(runs):
        for low in range(0, times.hop_s.shape[0], width):
            if waiting and cells + len(one) * width > MOST_CELLS:
                yield from _played(runs, waiting, width)
                waiting, cells = [], 0
            waiting.append((index, slice(low, min(low + width, times.hop_s.shape[0]))))
            cells += len(one) * width
    if waiting:
        yield from _played(runs, waiting, width)


def _played(
    runs: Sequence[Run], parts: Sequence[tuple[int, slice]], width: int
) -> Iterator[tuple[int, slice, FloatArray]]:
    """Play parts of runs, each a program with up to ``width`` columns."""
    programs = [runs[index][0] for index, _ in parts]
    times = [runs[index][1].take(columns) for index, columns in parts]
    sizes = np.array([len(one) for one in programs])
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    level = np.concatenate([one.level for one in programs])
    order = np.argsort(level, kind="stable")
    # Work that nothing precedes follows a row of zeros, the last; a row's end with its hop stands total + 1 further on.
    place = np.append(np.argsort(order), total)

    def rows_of(columns: Sequence[IntArray]) -> IntArray:
        moved = [np.where(c == NONE, total, c + start) for c, start in zip(columns, starts, strict=True)]
        return ints(place[np.concatenate(moved)[order]])

    hops = np.concatenate(
        [
            (one.before != NONE) & one.exchanges[one.before] & of.waited
            for one, of in zip(programs, times, strict=True)
        ]
    )
    before = rows_of([one.before for one in programs]) + (total + 1) * hops[order]
    either = [np.where(one.needs[0] == NONE, one.needs[1], one.needs[0]) for one in programs]
    # Of a pair, what its backward waits for beside what its forward does.
    other = [np.where(one.needs[0] == NONE, NONE, one.needs[1]) for one in programs]
    first, second = rows_of(either) + total + 1, rows_of(other) + total + 1
    tables = [_padded(of.by_kind().reshape(-1, of.hop_s.shape[0]), width) for of in times]
    heights = np.array([len(table) for table in tables])
    seconds = np.concatenate(tables)
    which = np.concatenate(
        [
            start + (one.kind * one.shape[0] + one.stage) * one.shape[1] + one.chunk
            for one, start in zip(programs, np.cumsum(heights) - heights, strict=True)
        ]
    )[order]
    hop_s = np.concatenate([_padded(of.hop_s[None, :], width) for of in times])
    part = np.repeat(np.arange(len(parts)), sizes)[order]
    ends = np.zeros((2 * (total + 1), width))
    bounds = np.searchsorted(level[order], np.arange(int(level.max()) + 2)).tolist()
    paired = any((rows != NONE).any() for rows in other)
    for low, high in pairwise(bounds):
        free = np.maximum(ends.take(before[low:high], axis=0), ends.take(first[low:high], axis=0))
        if paired:
            np.maximum(free, ends.take(second[low:high], axis=0), out=free)
        free += seconds.take(which[low:high], axis=0)
        ends[low:high] = free
        np.add(free, hop_s.take(part[low:high], axis=0), out=ends[total + 1 + low : total + 1 + high])
    for (index, columns), start, size in zip(parts, starts, sizes, strict=True):
        found = ends[place[start : start + size], : columns.stop - columns.start]
        yield index, columns, found


def _padded(values: FloatArray, width: int) -> FloatArray:
    """``values`` with columns of zeros up to ``width``."""
    whole = np.zeros((values.shape[0], width))
    whole[:, : values.shape[1]] = values
    return whole
