"""The experts' exchange overlapped with compute of another micro-batch: a forward and a backward run layer by layer
together, and the exchanges of each hide beside the compute of the other.

Source: Megatron-LM ``core/models/common/model_chunk_schedule_plan.py``, TransformerLayerSchedulePlan.run. One
stream exchanges, one computes, in the order

    exchange:  combine back     | dispatch, dispatch back                 | combine
    compute:   attention        | experts back, their weights', experts   | attention back

(attention: all of a layer before its dispatch and after its combine; back: of the backward). With ``delay_wgrad``
(--delay-wgrad-compute) the weight gradients of what stands around the experts run at the end, beside the next layer's
first exchange, and those of the experts once their input gradients have let the next exchange begin; without it both
are part of "back". Nothing hides more than what it runs beside (solver.times.overlap). DualPipe pairs chunks of a stage
instead of layers (``pair_s``).

``Assumption:`` the first forward and the last backward of a step, which have no partner, are hidden like the others; an
exchange that is run again in a backward is waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.op import Comm, Lane, Phase
from profdb.overlap_losses import Losses
from solver.pipeline.stages import PassTimes, StageTable
from solver.plans.plan_table import PlanTable
from solver.plans.schedules import pairs
from solver.times.contention import COLLECTIVE_BLOCKS, Contention
from solver.times.op_times import PRODUCTS, TimedOp
from solver.times.overlap import exposed_s
from solver.times.step_parts import Share
from spec.arrays import FloatArray, IntArray

TimedPass = tuple[list[TimedOp], list[Share]]
"""The operations of a pass in order, and what the rank waits for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTime:
    """Seconds of compute, and those of matrix products among them."""

    seconds: FloatArray
    products_s: FloatArray

    def plus(self, other: "ComputeTime") -> "ComputeTime":
        """Returns both, one after the other."""
        return ComputeTime(seconds=self.seconds + other.seconds, products_s=self.products_s + other.products_s)

    def without(self, seconds: FloatArray) -> "ComputeTime":
        """Returns what is left of it after so many seconds, with the same share of products."""
        spent = np.minimum(seconds, self.seconds)
        left = 1.0 - np.divide(spent, self.seconds, out=np.zeros_like(spent), where=self.seconds > 0)
        return ComputeTime(seconds=self.seconds * left, products_s=self.products_s * left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A pass of a layer: its compute ``around`` the experts (attention) and ``inside`` (the experts), the weight
    gradients of both apart, and the places of its two exchanges in the list of operations."""

    around: ComputeTime
    inside: ComputeTime
    around_weights: ComputeTime
    inside_weights: ComputeTime
    first: int
    second: int


def across_passes(
    forward: TimedPass, backward: TimedPass, contention: Contention, *, delayed: bool
) -> tuple[TimedPass, TimedPass]:
    """Returns both passes with the exposed seconds of exchanges on Lane.ACROSS; unchanged where there are none."""
    ahead, back = _halves(forward, Phase.FORWARD), _halves(backward, Phase.INPUT_GRAD)
    if ahead is None or back is None:
        return forward, backward

    def wait(exchange: TimedOp, partner: ComputeTime) -> FloatArray:
        blocks = exchange.op.thread_blocks if isinstance(exchange.op, Comm) else 0
        shares_lost = contention.shares_lost(
            partner.seconds, partner.products_s, blocks or COLLECTIVE_BLOCKS, exchange.losses
        )
        return exposed_s(exchange.seconds, partner.seconds, *shares_lost)

    def behind(exchange: TimedOp, inputs: ComputeTime, weights: ComputeTime) -> ComputeTime:
        """Delayed weight gradients that are left to compute when an exchange beside both is over."""
        if not delayed:
            return weights.without(weights.seconds)
        return weights.without(np.maximum(exchange.seconds - inputs.seconds, 0.0))

    dispatch, combine = forward[0][ahead.first], forward[0][ahead.second]
    combine_back, dispatch_back = backward[0][back.first], backward[0][back.second]
    # The table of the page, column by column: dispatch runs beside the experts' backward, dispatch back beside what
    # that leaves and the experts' forward; combine beside attention's backward, combine back beside what that leaves
    # and attention's forward.
    inside = behind(dispatch, back.inside, back.inside_weights).plus(ahead.inside)
    around = behind(combine, back.around, back.around_weights).plus(ahead.around)
    waits_ahead = {
        ahead.first: wait(dispatch, back.inside.plus(back.inside_weights)),
        ahead.second: wait(combine, back.around.plus(back.around_weights)),
    }
    waits_back = {back.first: wait(combine_back, around), back.second: wait(dispatch_back, inside)}
    return _with_waits(forward, waits_ahead), _with_waits(backward, waits_back)


def _halves(timed_pass: TimedPass, phase: Phase) -> Halves | None:
    """Returns the pass cut at its exchanges; None where it has none on Lane.ACROSS."""
    timed, shares = timed_pass
    places = [index for index, one in enumerate(timed) if one.op.lane is Lane.ACROSS and one.op.phase is phase]
    if not places:
        return None
    first, second = places
    inside = [first < index < second for index in range(len(timed))]

    def compute_of(*, within: bool, weights: bool) -> ComputeTime:
        ops = [
            (one, share.seconds)
            for one, share, is_inside in zip(timed, shares, inside, strict=True)
            if is_inside is within and one.op.lane is not Lane.ACROSS and _can_be_delayed(one, timed) is weights
        ]
        none = np.zeros_like(timed[first].seconds)
        return ComputeTime(
            seconds=none + np.sum([seconds for _, seconds in ops], axis=0),
            products_s=none
            + np.sum([seconds * one.second_wave for one, seconds in ops if one.part in PRODUCTS], axis=0),
        )

    return Halves(
        around=compute_of(within=False, weights=False),
        inside=compute_of(within=True, weights=False),
        around_weights=compute_of(within=False, weights=True),
        inside_weights=compute_of(within=True, weights=True),
        first=first,
        second=second,
    )


def _can_be_delayed(one: TimedOp, timed: Sequence[TimedOp]) -> bool:
    """Returns whether an operation makes a weight gradient that no collective overlaps (Transformer Engine
    ``module/_common.py``, WeightGradStore: none that a bulk collective hides under)."""
    if one.op.phase is not Phase.WEIGHT_GRAD or one.op.lane is not Lane.MAIN:
        return False
    hosts = (other.op for other in timed if other.op.lane is Lane.OVERLAP)
    return all((op.overlaps, op.overlap_phase) != (one.op.key, one.op.phase) for op in hosts)


def _with_waits(timed_pass: TimedPass, waits: dict[int, FloatArray]) -> TimedPass:
    timed, shares = timed_pass
    return timed, [
        replace(share, seconds=waits[index]) if index in waits else share for index, share in enumerate(shares)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Seconds of the experts' exchange that the passes of each chunk row wait for, what it and products beside it lose
    to each other, where that was measured, and the seconds that the host needs to issue the passes."""

    forward_s: FloatArray
    backward_s: FloatArray
    forward_host_s: FloatArray
    backward_host_s: FloatArray
    losses: Losses | None = None

    def shares_lost(
        self, rows: IntArray, products: FloatArray, contention: Contention
    ) -> tuple[FloatArray | float, FloatArray | float]:
        """Returns the shares that computation and the exchange of ``rows`` lose, beside passes of which a share
        ``products`` are matrix products."""
        if self.losses is None:
            return contention.sm_share, 0.0
        measured = Losses(compute=self.losses.compute[rows], comm=self.losses.comm[rows])
        return contention.shares_lost(np.ones_like(products), products, measured=measured)


def pair_s(passes: PassTimes, exchanges: Exchanges, contention: Contention) -> FloatArray:
    """Returns the seconds of each chunk row's forward together with the backward of its stage's other chunk; the two
    chunks of a stage are neighbouring rows.

    Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1, fig. 4): dispatch and combine of the forward run beside the input
    gradients of the backward, those of the backward beside its weight gradients and the forward. Nothing hides more
    than what it runs beside, and that computes slower meanwhile (solver.times.overlap): by what was measured of
    all-to-alls beside products (profdb.overlap_losses), else by its multiprocessors. One host issues both passes, so
    the pair takes no less time than that needs."""
    own = np.arange(len(passes.forward_s))
    # Rows 2 i and 2 i + 1 are the chunks of a stage: flipping the last bit gives the other one.
    other = own ^ 1
    products = np.zeros(len(own)) if passes.products is None else passes.products
    forward = passes.forward_s - exchanges.forward_s
    weight = passes.weight_s[other]
    gradient = passes.backward_s[other] - exchanges.backward_s[other] - weight
    waits = exposed_s(exchanges.forward_s, gradient, *exchanges.shares_lost(own, products[other], contention))
    shares_lost = exchanges.shares_lost(other, products, contention)
    waits = waits + exposed_s(exchanges.backward_s[other], forward + weight, *shares_lost)
    host_s = exchanges.forward_host_s + exchanges.backward_host_s[other]
    return np.asarray(np.maximum(forward + gradient + weight + waits, host_s), dtype=np.float64)


def hidden_per_micro_s(plans: PlanTable, stages: StageTable, passes: PassTimes) -> FloatArray:
    """Returns the seconds of exchange that the pairs of a stage row hide, per micro-batch of a step."""
    assert passes.pair_s is not None
    chunk = np.arange(len(stages.chunks.stage))
    row = stages.chunks.stage
    plan = stages.plan[row]
    pp, vpp, placement = plans.layout.pp[plan], plans.vpp[plan], plans.schedule.placement
    place = placement.place(stages.position[row], chunk - stages.chunk_starts[row], pp, vpp)
    count = pairs(place, pp * vpp, plans.num_micro[plan] // placement.directions)
    hidden = passes.forward_s + passes.backward_s[chunk ^ 1] - passes.pair_s
    total: FloatArray = np.add.reduceat(hidden * count, stages.chunk_starts)
    return total / plans.num_micro[stages.plan]
