"""A forward beside a backward of the same stage: the experts' exchange of each runs beside the other's compute.

Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1, fig. 4): dispatch and combine of the forward run beside the input
gradients of the backward, those of the backward beside its weight gradients and the forward. Nothing hides more than
what it runs beside, and that computes slower meanwhile (solver.times.overlap): what both lose as it was measured of
all-to-alls beside products (profdb.lookup.overlap_losses), else its multiprocessors.
"""

from dataclasses import dataclass

import numpy as np

from profdb.lookup.overlap_losses import Losses
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from solver.schedules.dual_pipe import pairs
from solver.times.contention import Contention, lost_by_collective
from solver.times.overlap import beside
from spec.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Seconds of the experts' exchange that the passes of each chunk row wait for, and what it and products beside it
    lose to each other, where that was measured; ``forward_host_s`` and ``backward_host_s`` are what the host needs to issue
    the passes."""

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
        whole = np.ones_like(products)
        return contention.loss(whole, products, measured=lost), lost_by_collective(whole, products, lost)


def pair_s(passes: PassTimes, exchanges: Exchanges, contention: Contention) -> FloatArray:
    """Each chunk row's forward beside the backward of its stage's other chunk; rows lie two by two. One host issues both,
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
    pp, vpp, route = plans.layout.pp[plan], plans.vpp[plan], plans.schedule.route
    place = route.place(stages.position[row], chunk - stages.chunk_starts[row], pp, vpp)
    count = pairs(place, pp * vpp, plans.num_micro[plan] // route.ways)
    saved = passes.forward_s + passes.backward_s[chunk ^ 1] - passes.pair_s
    total: FloatArray = np.add.reduceat(saved * count, stages.chunk_starts)
    return total / plans.num_micro[stages.plan]
