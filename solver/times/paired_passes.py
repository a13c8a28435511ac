"""A forward beside a backward of the same stage: the experts' exchange of each runs beside the other's compute.

Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1, fig. 4): dispatch and combine of the forward run beside the input
gradients of the backward, those of the backward beside its weight gradients and the forward. Nothing hides more than
what it runs beside, and that computes slower meanwhile (solver.times.overlap).
"""

from dataclasses import dataclass

import numpy as np

from solver.pipeline.pass_times import PassTimes
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from solver.schedules.dual_pipe import pairs
from solver.times.overlap import beside
from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Seconds of the experts' exchange that the passes of each chunk row wait for."""

    forward_s: FloatArray
    backward_s: FloatArray


def pair_s(passes: PassTimes, exchanges: Exchanges, sm_share: float) -> FloatArray:
    """Each chunk row's forward beside the backward of its stage's other chunk; rows lie two by two."""
    other = np.arange(len(passes.forward_s)) ^ 1
    forward = passes.forward_s - exchanges.forward_s
    weight = passes.weight_s[other]
    gradient = passes.backward_s[other] - exchanges.backward_s[other] - weight
    waits = beside(exchanges.forward_s, gradient, sm_share)
    waits = waits + beside(exchanges.backward_s[other], forward + weight, sm_share)
    return np.asarray(forward + gradient + weight + waits, dtype=np.float64)


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
