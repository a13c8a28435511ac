"""Stages of a pipeline and its schedule: torch's 1F1B and interleaved 1F1B (arXiv 2104.04473 sec.
2.2), all forwards first (GPipe, arXiv 1811.06965; breadth first, 2211.05953), its zero bubble, which with one chunk
a rank is ZB-H1 (arXiv 2401.10241 sec. 2.1), and that in a V (2405.15362), or one micro-batch after another where
there is one stage."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from runner.reference.transformer import Share
from runner.training.data_parallel import Group
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from spec.pipeline_layout import parse_pipeline_layout

Loss = Callable[[Tensor, Tensor], Tensor]

# Those of which torch has the same order of work. Of 1F1B it has one for a single chunk, ``Schedule1F1B``.
TORCH: dict[Schedule, type] = {
    Schedule.ONE_F_ONE_B: ScheduleInterleaved1F1B,
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.LOOPED_BFS: ScheduleLoopedBFS,
    Schedule.ZB_H1: ScheduleInterleavedZeroBubble,
    Schedule.ZB_1P: ScheduleInterleavedZeroBubble,
    Schedule.ZB_INTERLEAVED: ScheduleInterleavedZeroBubble,
    Schedule.ZB_V: ScheduleZBVZeroBubble,
}
OF_ONE_CHUNK = (Schedule1F1B, ScheduleGPipe)


def layers_of(plan: Plan, num_layers: int) -> tuple[int, ...]:
    """Layers of every virtual stage in the order a token passes them; even unless the plan has a layout."""
    if plan.stage_layout:
        return parse_pipeline_layout(plan.stage_layout).layers
    stages = plan.pp * plan.vpp
    return (num_layers // stages,) * stages


def shares_of(plan: Plan, stage: int, layers: Sequence[int]) -> list[Share]:
    """Shares of pipeline rank ``stage``, one a chunk."""
    shares = []
    for virtual in virtual_stages(plan, stage):
        first = sum(layers[:virtual])
        shares.append(
            Share(
                blocks=range(first, first + layers[virtual]),
                embedding=virtual == 0,
                head=virtual == plan.pp * plan.vpp - 1,
            )
        )
    return shares


def virtual_stages(plan: Plan, stage: int) -> list[int]:
    """Place of every chunk of pipeline rank ``stage`` on the way of a micro-batch."""
    way = plan.schedule.placement.chains(plan.pp, plan.vpp)[0]
    return [way.index((stage, chunk)) for chunk in range(plan.vpp)]


@dataclass(slots=True, kw_only=True)
class OneAfterAnother:
    """Forward and backward of each micro-batch in turn, on the only stage. ``losses`` are of the last step."""

    module: nn.Module
    num_micro: int
    loss: Loss
    losses: list[Tensor] = field(default_factory=list)

    def run(self, tokens: Tensor, targets: Tensor) -> None:
        """One step: both are [num_micro x batch, tokens]."""
        self.losses = []
        micro = zip(tokens.chunk(self.num_micro), targets.chunk(self.num_micro), strict=True)
        for place, (inputs, wanted) in enumerate(micro, start=1):
            last = place == self.num_micro
            module = self.module
            waits = module if isinstance(module, DistributedDataParallel) and not last else None
            with nullcontext() if waits is None else waits.no_sync():
                loss = self.loss(module(inputs), wanted)
                loss.backward()  # type: ignore[no-untyped-call]
            self.losses.append(loss.detach())


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """torch's schedule over the stages of this rank's pipeline, ``modules``."""

    schedule: Any
    modules: Sequence[nn.Module]
    first: bool
    last: bool
    losses: list[Tensor] = field(default_factory=list)

    def run(self, tokens: Tensor, targets: Tensor) -> None:
        """One step; only the ends of the pipeline look at what they are given."""
        self.losses = []
        given = (tokens,) if self.first else ()
        with ExitStack() as waiting:
            # The stage asks for the reduction itself, at its last backward; a forward that only looks for
            # shapes must not.
            for module in self.modules:
                if isinstance(module, DistributedDataParallel):
                    waiting.enter_context(module.no_sync())
            if self.last:
                self.schedule.step(*given, target=targets, losses=self.losses)
            else:
                self.schedule.step(*given)
        self.losses = [loss.detach() for loss in self.losses]


def pipeline_of(modules: Sequence[nn.Module], plan: Plan, stage: int, group: Group, loss: Loss) -> Pipeline:
    """The schedule of pipeline rank ``stage``, which runs ``modules``, one a chunk."""
    device = next(modules[0].parameters()).device
    places, count = virtual_stages(plan, stage), plan.pp * plan.vpp
    chunks: list[Any] = [
        PipelineStage(module, place, count, device, group=group) for place, module in zip(places, modules, strict=True)
    ]
    plain = plan.schedule is Schedule.ONE_F_ONE_B and plan.vpp == 1
    made = Schedule1F1B if plain else TORCH[plan.schedule]
    stages = chunks[0] if made in OF_ONE_CHUNK else chunks
    # The loss is divided already: scaling gradients again would take a pass over all of them.
    schedule = made(stages, plan.num_micro, loss_fn=loss, scale_grads=False)
    return Pipeline(schedule=schedule, modules=modules, first=0 in places, last=count - 1 in places)
