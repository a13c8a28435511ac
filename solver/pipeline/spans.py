"""How long every stage of every plan is busy or waiting in one step, whatever its schedule.

Plain 1F1B has a replay of its own that takes all plans of a depth at once (solver.pipeline.replay_1f1b); every
other schedule runs as a program (solver.pipeline.program).
"""

from dataclasses import dataclass, replace

import numpy as np

from solver.pipeline.program import ChunkTimes, program, run
from solver.pipeline.replay_1f1b import StageTimes, replay_1f1b_s
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from solver.schedules.registry import Schedule
from spec.arrays import BoolArray, FloatArray, IntArray

SETTLED_ROUNDS = 4
# nanotron's hidden states and their mask travel forward, a gradient backward, each after two descriptions of its shape
# (p2p.py, _send_meta and _recv_meta), whose sender and receiver look, sleep and look again: four and two.
LOOKS_PER_MESSAGE = (4 + 2) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """One micro-batch through each stage row, or each chunk row; ``weight_s`` is the part of
    ``backward_s`` that only makes weight gradients, ``pair_s`` what a chunk's forward takes beside the backward of
    the stage's other chunk (solver.pipeline.pairs), None where none does; ``products`` the share of both passes that
    matrix products take, None for none."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    pair_s: FloatArray | None = None
    products: FloatArray | None = None

    def take(self, rows: IntArray) -> "PassTimes":
        """The rows asked for, an array of any shape."""
        return PassTimes(
            forward_s=self.forward_s[rows],
            backward_s=self.backward_s[rows],
            weight_s=self.weight_s[rows],
            pair_s=None if self.pair_s is None else self.pair_s[rows],
            products=None if self.products is None else self.products[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """Seconds of one message to the next stage for every plan, whether interleaved stages wait for
    their messages (``waited``) or compute beside them, and the seconds by which a message holds up both its stages at once
    (``looks_s``, in the mean of both directions)."""

    seconds: FloatArray
    waited: bool = False
    looks_s: float = 0.0

    def hold_up(self, passes: "PassTimes") -> tuple["PassTimes", FloatArray]:
        """Passes of shape (pp, chunks, N) and the hops between them where a message takes both stages' time: each pass
        is longer by those it takes and hands on, and the next stage's begins while this one's still sends."""
        depth = len(passes.forward_s)
        if depth == 1 or self.looks_s == 0.0:
            return passes, self.seconds
        held = np.full((depth, 1, 1), 2.0 * self.looks_s)
        held[0], held[-1] = self.looks_s, self.looks_s
        longer = replace(passes, forward_s=passes.forward_s + held, backward_s=passes.backward_s + held)
        return longer, self.seconds - self.looks_s


def stage_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, hops: Hops, *, which: BoolArray | None = None
) -> FloatArray:
    """Seconds from the start of the step to the end of each stage row's last work; ``passes`` has a row
    for every row of ``stages.chunks``. ``which``: plans to play, all others are 0.

    For zero-bubble schedules, from the row's own first work: the next step begins on a stage as soon as
    it is done (post-validation, arXiv 2401.10241 sec. 4).
    """
    layout = plans.layout
    plain = plans.schedule is Schedule.ONE_F_ONE_B
    spans = np.zeros(len(stages.plan))
    shapes = np.stack([layout.pp, plans.vpp, np.where(plain & (plans.vpp == 1), 0, plans.num_micro)])
    played = np.flatnonzero(np.ones(len(plans), dtype=np.bool_) if which is None else which)
    alike, shape_of = np.unique(shapes[:, played], axis=1, return_inverse=True)
    for index, (depth, vpp, num_micro) in enumerate(alike.T):
        chosen = played[shape_of.reshape(-1) == index].astype(np.int64)
        rows = _rows_of(chosen, stages)
        # One column per plan: its classes repeated by how many stages each stands for.
        per_stage = np.repeat(rows, stages.count[rows]).reshape(len(chosen), int(depth)).T
        chunks = np.arange(plans.schedule.route.chunks(int(vpp)))
        per_chunk = stages.chunk_starts[per_stage][:, None, :] + chunks[None, :, None]
        part, hop_s = replace(hops, seconds=hops.seconds[chosen]).hold_up(passes.take(per_chunk))
        taken = replace(hops, seconds=hop_s)
        if num_micro == 0:
            times = StageTimes(
                forward_s=part.forward_s[:, 0], backward_s=part.backward_s[:, 0], hop_s=taken.seconds
            )
            by_stage = replay_1f1b_s(times, plans.num_micro[chosen])
        else:
            shape = (int(depth), int(vpp), int(num_micro))
            by_stage = _program_spans_s(plans.schedule, shape, part, taken)
        # Within a class the first stage ends last.
        column = np.searchsorted(chosen, stages.plan[rows])
        spans[rows] = by_stage[stages.position[rows], column]
    return spans


def _rows_of(chosen: IntArray, stages: StageTable) -> IntArray:
    """The stage rows of plans, in their order."""
    ends = np.append(stages.starts[1:], len(stages.plan))[chosen]
    counts = ends - stages.starts[chosen]
    before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(stages.starts[chosen] - before, counts) + np.arange(counts.sum())
    return rows


def chunk_times(schedule: Schedule, passes: PassTimes, hops: Hops) -> ChunkTimes:
    """Passes of every chunk (arrays of shape (pp, vpp, N)) as a program takes them; weight gradients apart
    where the schedule has them so."""
    split = schedule.splits_backward
    return ChunkTimes(
        forward_s=passes.forward_s,
        backward_s=passes.backward_s - (passes.weight_s if split else 0.0),
        weight_s=passes.weight_s if split else np.zeros_like(passes.weight_s),
        hop_s=hops.seconds,
        waited=hops.waited and passes.forward_s.shape[1] > 1 and not schedule.route.turns,
        pair_s=passes.pair_s,
    )


def _program_spans_s(
    schedule: Schedule, shape: tuple[int, int, int], passes: PassTimes, hops: Hops
) -> FloatArray:
    """Spans by stage, shape (pp, N). Long steps are replayed over their first rounds and continued by
    what the last of these rounds added."""
    pp, _, num_micro = shape
    apart = schedule.updates_apart
    times = chunk_times(schedule, passes, hops)

    def spans(count: int) -> FloatArray:
        began, ended = run(program(schedule, (*shape[:2], count), waited=times.waited), times)
        return ended - began if apart else ended

    rounds = max((num_micro - SETTLED_ROUNDS * pp) // pp, 0)
    settled = num_micro - rounds * pp
    whole = spans(settled)
    if rounds:
        whole = whole + rounds * (whole - spans(settled - pp))
    return whole
