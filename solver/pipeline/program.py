"""Any schedule as a program: all work of a pipeline and what each piece of it waits for, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from solver.schedules.registry import Schedule
from solver.schedules.route import Route
from solver.schedules.work import Kind, Work
from spec.arrays import BoolArray, IntArray, bools, ints

KINDS: tuple[Kind, ...] = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT, Kind.WHOLE_BACKWARD, Kind.PAIR)
FORWARD, BACKWARD, WEIGHT, WHOLE_BACKWARD, PAIR = range(len(KINDS))
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A row of a program; ``needs`` are the rows of other stages whose message it waits for."""

    kind: Kind
    stage: int
    chunk: int
    micro: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """All work of a pipeline of ``shape`` (pp, chunks, num_micro); columns of one length, in an order in which what
    each piece needs comes before it.

    ``kind`` is a place in KINDS; ``before`` the row of the stage's earlier work, NONE for none; ``needs`` two
    columns of rows of other stages whose message it waits for; ``exchanges`` whether the stage sends and
    receives when it is done: after the forwards of the warm-up and after every backward (Megatron-LM,
    forward_backward_pipelining_with_interleaving). ``level`` is the length of the longest chain of work
    before it: what is of one level waits for none of it.
    """

    shape: tuple[int, int, int]
    kind: IntArray
    stage: IntArray
    chunk: IntArray
    micro: IntArray
    before: IntArray
    needs: IntArray
    exchanges: BoolArray
    level: IntArray

    def __len__(self) -> int:
        return len(self.kind)

    def instructions(self) -> tuple[Instruction, ...]:
        """Every row."""
        columns = (self.kind, self.stage, self.chunk, self.micro, *self.needs)
        return tuple(
            Instruction(
                kind=KINDS[kind],
                stage=stage,
                chunk=chunk,
                micro=micro,
                needs=tuple(one for one in needs if one != NONE),
            )
            for kind, stage, chunk, micro, *needs in zip(*(one.tolist() for one in columns), strict=True)
        )


def program(schedule: Schedule, shape: tuple[int, int, int], *, waited: bool = False) -> Program:
    """The program of a pipeline of ``shape`` (pp, vpp, num_micro). ``waited``, of interleaved stages alone: a
    message leaves when its stage exchanges, which for a forward directly before a backward is after that.

    Raises ValueError when the schedule waits for itself.
    """
    # Schedules that differ in what they let a stage hold alone run the same program.
    like = next(one for one in Schedule if (one.orders, one.route) == (schedule.orders, schedule.route))
    return _program(like, shape, waited=waited)


@lru_cache(maxsize=512)
def _program(schedule: Schedule, shape: tuple[int, int, int], *, waited: bool) -> Program:
    pp, vpp, num_micro = shape
    orders = schedule.orders(shape)
    forwards_first = waited and num_micro == pp
    if forwards_first:
        orders = [_forwards_first(order) for order in orders]
    work = _Columns.of(orders)
    needs = _needs(work, schedule.route, (pp, vpp))
    if waited and not forwards_first:
        needs = np.where((needs >= 0) & work.leaves_late[needs], needs + 1, needs)
    level = _levels(work, needs)
    if level is None:
        raise ValueError(f"schedule {schedule.value} of shape {shape} waits for itself")
    order = np.argsort(level, kind="stable")
    place = np.append(np.argsort(order), NONE)
    return Program(
        shape=(pp, schedule.route.chunks(vpp), num_micro),
        kind=work.kind[order],
        stage=work.stage[order],
        chunk=work.chunk[order],
        micro=work.micro[order],
        before=place[work.before[order]],
        needs=place[needs[:, order]],
        exchanges=work.exchanges[order] | forwards_first,
        level=level[order],
    )


def _forwards_first(order: list[Work]) -> list[Work]:
    """All forwards, then all backwards: what interleaved stages that wait for messages run when there are just as many
    micro-batches as stages (Megatron-LM v2.5, schedules.py, all_warmup_microbatches)."""
    return sorted(order, key=lambda work: work.kind is not Kind.FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Work stage by stage, each in its order; ``beside`` (chunk, micro) of a pair's backward."""

    kind: IntArray
    stage: IntArray
    chunk: IntArray
    micro: IntArray
    beside: tuple[IntArray, IntArray]
    first: BoolArray

    @staticmethod
    def of(orders: Sequence[list[Work]]) -> "_Columns":
        """The orders of all stages as columns."""
        code = {kind: index for index, kind in enumerate(KINDS)}
        flat = [work for order in orders for work in order]
        sizes = np.array([len(order) for order in orders])
        besides = [work.beside or work for work in flat]
        first = np.zeros(len(flat), dtype=np.bool_)
        first[np.cumsum(sizes) - sizes] = True
        return _Columns(
            kind=ints([code[work.kind] for work in flat]),
            stage=np.repeat(np.arange(len(orders)), sizes).astype(np.int64),
            chunk=ints([work.chunk for work in flat]),
            micro=ints([work.micro for work in flat]),
            beside=(ints([work.chunk for work in besides]), ints([work.micro for work in besides])),
            first=first,
        )

    @property
    def before(self) -> IntArray:
        """The row of the stage's earlier work."""
        return np.where(self.first, NONE, np.arange(len(self.kind)) - 1).astype(np.int64)

    @property
    def leaves_late(self) -> BoolArray:
        """Forwards directly before a backward."""
        return np.asarray((self.kind == FORWARD) & self._before_backward, dtype=np.bool_)

    @property
    def exchanges(self) -> BoolArray:
        """Whether messages travel after this work: a forward directly before a backward waits for it."""
        last = np.append(self.first[1:], True)
        return bools(~last & ((self.kind == BACKWARD) | ~self._before_backward))

    @property
    def _before_backward(self) -> BoolArray:
        return np.append((self.kind[1:] == BACKWARD) & ~self.first[1:], False)


def _needs(work: _Columns, route: Route, depth: tuple[int, int]) -> IntArray:
    """Rows of other stages that each row waits for: of its forward and of its backward, NONE where it has none. What
    it needs of its own stage has to come earlier there: -2 where it does not, or where nothing makes it."""
    chunk, micro = work.beside
    forwards = np.flatnonzero((work.kind == FORWARD) | (work.kind == PAIR))
    backwards = np.flatnonzero((work.kind != FORWARD) & (work.kind != WEIGHT))
    pp, chunks, rows = depth[0], route.chunks(depth[1]), np.arange(len(work.kind))
    made = np.full((2, pp, chunks, int(max(work.micro.max(), micro.max())) + 1), -2, dtype=np.int64)
    made[0, work.stage[forwards], work.chunk[forwards], work.micro[forwards]] = forwards
    made[1, work.stage[backwards], chunk[backwards], micro[backwards]] = backwards
    # On a micro-batch's way the (stage, chunk) before and after each, itself at the ends.
    source = np.stack([np.indices((pp, chunks))] * 2)
    for chain in route.chains(pp, depth[1]):
        for one, later in pairwise(chain):
            source[0, :, later[0], later[1]], source[1, :, one[0], one[1]] = one, later
    needs = np.full((2, len(rows)), NONE, dtype=np.int64)
    for way, of_way, its_chunk, its_micro in (
        (0, forwards, work.chunk, work.micro),
        (1, backwards, chunk, micro),
    ):
        stage, c, m = work.stage[of_way], its_chunk[of_way], its_micro[of_way]
        from_stage, from_chunk = source[way, :, stage, c].T
        end = (from_stage == stage) & (from_chunk == c)
        found = made[way, from_stage, from_chunk, m]
        # A backward begins where the last forward ended.
        found = np.where(end, NONE if way == 0 else made[0, stage, c, m], found)
        needs[way, of_way] = _earlier(found, of_way, from_stage == stage)
    apart = np.flatnonzero(work.kind == WEIGHT)
    own = made[1, work.stage[apart], work.chunk[apart], work.micro[apart]]
    needs[1, apart] = _earlier(own, apart, np.ones(len(apart), dtype=np.bool_))
    return needs


def _earlier(found: IntArray, rows: IntArray, own: BoolArray) -> IntArray:
    """Work of a row's own stage is done before it, or never: nothing to wait for, or -2."""
    return np.where(own & (found != -2), np.where(found < rows, NONE, -2), found).astype(np.int64)


def _levels(work: _Columns, needs: IntArray) -> IntArray | None:
    """The length of the longest chain before each row, None where rows wait for each other."""
    first, second = needs.tolist()
    nexts = np.flatnonzero(work.first).tolist()
    ends = [*nexts[1:], len(first)]
    reached_of = [-1] * len(ends)
    level = [-1] * len(first) + [-2, -1]  # the last two are what -2 and NONE stand for
    left = len(first)
    while left:
        before = left
        for stage, end in enumerate(ends):
            row, reached = nexts[stage], reached_of[stage]
            while row < end:
                one, other = first[row], second[row]
                one_level, other_level = level[one], level[other]
                if (one != NONE and one_level < 0) or (other != NONE and other_level < 0):
                    break
                reached = max(reached, one_level, other_level) + 1
                level[row] = reached
                row += 1
            left -= row - nexts[stage]
            nexts[stage], reached_of[stage] = row, reached
        if left == before:
            return None
    return ints(level[:-2])
