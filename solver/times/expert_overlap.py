"""The experts' exchange of a forward and of a backward beside the compute of the other one: two
micro-batches, layer by layer.

Source: Megatron-LM ``core/models/common/model_chunk_schedule_plan.py``, TransformerLayerSchedulePlan.run. One
stream exchanges, one computes, in the order

    exchange:  combine back     | dispatch, dispatch back                 | combine
    compute:   attention        | experts back, their weights', experts   | attention back

(attention: all of a layer before its dispatch and after its combine; back: of the backward). With ``delay_wgrad``
(--delay-wgrad-compute) the weight gradients of what stands around the experts run at the end, beside the next layer's
first exchange, and those of the experts after their input gradients have let the next exchange go; without it both are
part of "back". Nothing hides more than what it runs beside (solver.times.overlap.beside).

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
from solver.times.overlap import beside
from solver.times.step_parts import Share
from spec.arrays import FloatArray, IntArray

TimedPass = tuple[list[TimedOp], list[Share]]
"""The operations of a pass in order, and what the rank waits for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """Seconds that something computes, and those of matrix products among them."""

    seconds: FloatArray
    products_s: FloatArray

    def plus(self, other: "Computed") -> "Computed":
        """One after the other."""
        return Computed(seconds=self.seconds + other.seconds, products_s=self.products_s + other.products_s)

    def without(self, seconds: FloatArray) -> "Computed":
        """Returns what is left of it after so many seconds."""
        over = np.minimum(seconds, self.seconds)
        left = 1.0 - np.divide(over, self.seconds, out=np.zeros_like(over), where=self.seconds > 0)
        return Computed(seconds=self.seconds * left, products_s=self.products_s * left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A pass of a layer: what it computes ``around`` the experts and ``inside``, the weight gradients of both
    apart, and where its exchanges stand, the one before the experts first."""

    around: Computed
    inside: Computed
    around_weights: Computed
    inside_weights: Computed
    first: int
    second: int


def across_passes(
    forward: TimedPass, backward: TimedPass, contention: Contention, *, delayed: bool
) -> tuple[TimedPass, TimedPass]:
    """Both passes with what is waited for of exchanges on Lane.ACROSS; as they are where there are none."""
    ahead, back = _halves(forward, Phase.FORWARD), _halves(backward, Phase.INPUT_GRAD)
    if ahead is None or back is None:
        return forward, backward

    def wait(exchange: TimedOp, partner: Computed) -> FloatArray:
        blocks = exchange.op.thread_blocks if isinstance(exchange.op, Comm) else 0
        whole_s, products_s, lost = partner.seconds, partner.products_s, exchange.losses
        shares_lost = contention.lost(whole_s, products_s, blocks or COLLECTIVE_BLOCKS, lost)
        return beside(exchange.seconds, whole_s, *shares_lost)

    def behind(exchange: TimedOp, inputs: Computed, weights: Computed) -> Computed:
        """Weight gradients put off that are left to compute when an exchange beside both is over."""
        if not delayed:
            return weights.without(weights.seconds)
        return weights.without(np.maximum(exchange.seconds - inputs.seconds, 0.0))

    dispatch, combine = forward[0][ahead.first], forward[0][ahead.second]
    combine_back, dispatch_back = backward[0][back.first], backward[0][back.second]
    inside = behind(dispatch, back.inside, back.inside_weights).plus(ahead.inside)
    around = behind(combine, back.around, back.around_weights).plus(ahead.around)
    waits_ahead = {
        ahead.first: wait(dispatch, back.inside.plus(back.inside_weights)),
        ahead.second: wait(combine, back.around.plus(back.around_weights)),
    }
    waits_back = {back.first: wait(combine_back, around), back.second: wait(dispatch_back, inside)}
    return _with_waits(forward, waits_ahead), _with_waits(backward, waits_back)


def _halves(timed_pass: TimedPass, phase: Phase) -> Halves | None:
    timed, shares = timed_pass
    places = [index for index, one in enumerate(timed) if one.op.lane is Lane.ACROSS and one.op.phase is phase]
    if not places:
        return None
    first, second = places
    inside = [first < index < second for index in range(len(timed))]

    def computed(*, within: bool, weights: bool) -> Computed:
        chosen = [
            (one, share.seconds)
            for one, share, there in zip(timed, shares, inside, strict=True)
            if there is within and one.op.lane is not Lane.ACROSS and _put_off(one, timed) is weights
        ]
        none = np.zeros_like(timed[first].seconds)
        return Computed(
            seconds=none + np.sum([seconds for _, seconds in chosen], axis=0),
            products_s=none + np.sum([seconds * one.twice for one, seconds in chosen if one.part in PRODUCTS], axis=0),
        )

    return Halves(
        around=computed(within=False, weights=False),
        inside=computed(within=True, weights=False),
        around_weights=computed(within=False, weights=True),
        inside_weights=computed(within=True, weights=True),
        first=first,
        second=second,
    )


def _put_off(one: TimedOp, timed: Sequence[TimedOp]) -> bool:
    """Returns whether it makes a weight gradient that nothing has to run beside (Transformer Engine
    ``module/_common.py``, WeightGradStore: none that a bulk collective hides under)."""
    if one.op.phase is not Phase.WEIGHT_GRAD or one.op.lane is not Lane.MAIN:
        return False
    hosts = (other.op for other in timed if other.op.lane is Lane.OVERLAP)
    return all((op.overlaps, op.overlap_phase) != (one.op.key, one.op.phase) for op in hosts)


def _with_waits(timed_pass: TimedPass, waits: dict[int, FloatArray]) -> TimedPass:
    timed, shares = timed_pass
    changed = [replace(share, seconds=waits[index]) if index in waits else share for index, share in enumerate(shares)]
    return timed, changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Seconds of the experts' exchange that the passes of each chunk row wait for, and what it and products beside it
    lose to each other, where that was measured; ``forward_host_s`` and ``backward_host_s`` are what the host needs to
    issue the passes."""

    forward_s: FloatArray
    backward_s: FloatArray
    forward_host_s: FloatArray
    backward_host_s: FloatArray
    losses: Losses | None = None

    def shares_lost(
        self, rows: IntArray, products: FloatArray, contention: Contention
    ) -> tuple[FloatArray | float, FloatArray | float]:
        """(of computation, of the exchange) of ``rows``, beside passes of which a share ``products`` are products."""
        if self.losses is None:
            return contention.sm_share, 0.0
        lost = Losses(compute=self.losses.compute[rows], comm=self.losses.comm[rows])
        return contention.lost(np.ones_like(products), products, measured=lost)


def pair_s(passes: PassTimes, exchanges: Exchanges, contention: Contention) -> FloatArray:
    """Seconds of each chunk row's forward beside the backward of its stage's other chunk; rows lie two by two.

    Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1, fig. 4): dispatch and combine of the forward run beside the input
    gradients of the backward, those of the backward beside its weight gradients and the forward. Nothing hides more
    than what it runs beside, and that computes slower meanwhile (solver.times.overlap): what both lose as it was
    measured of all-to-alls beside products (profdb.overlap_losses), else its multiprocessors. One host issues both,
    so what hides beside something takes it no less time."""
    own = np.arange(len(passes.forward_s))
    other = own ^ 1
    products = np.zeros(len(own)) if passes.products is None else passes.products
    forward = passes.forward_s - exchanges.forward_s
    weight = passes.weight_s[other]
    gradient = passes.backward_s[other] - exchanges.backward_s[other] - weight
    waits = beside(exchanges.forward_s, gradient, *exchanges.shares_lost(own, products[other], contention))
    lost = exchanges.shares_lost(other, products, contention)
    waits = waits + beside(exchanges.backward_s[other], forward + weight, *lost)
    issued = exchanges.forward_host_s + exchanges.backward_host_s[other]
    return np.asarray(np.maximum(forward + gradient + weight + waits, issued), dtype=np.float64)


def hidden_per_micro_s(plans: PlanTable, stages: StageTable, passes: PassTimes) -> FloatArray:
    """Seconds of exchange that a stage row's pairs hide, over the micro-batches of a step."""
    assert passes.pair_s is not None
    chunk = np.arange(len(stages.chunks.stage))
    row = stages.chunks.stage
    plan = stages.plan[row]
    pp, vpp, placement = plans.layout.pp[plan], plans.vpp[plan], plans.schedule.placement
    place = placement.place(stages.position[row], chunk - stages.chunk_starts[row], pp, vpp)
    count = pairs(place, pp * vpp, plans.num_micro[plan] // placement.directions)
    saved = passes.forward_s + passes.backward_s[chunk ^ 1] - passes.pair_s
    total: FloatArray = np.add.reduceat(saved * count, stages.chunk_starts)
    return total / plans.num_micro[stages.plan]
