"""How the micro-batches of a step run: one after another on a single stage, or by one of torch's pipeline schedules.

Schedules: 1F1B and interleaved 1F1B (arXiv 2104.04473 sec. 2.2), all forwards first (GPipe, arXiv 1811.06965; breadth
first, 2211.05953), zero bubble, which is ZB-H1 for one chunk per rank (arXiv 2401.10241 sec. 2.1), and zero bubble in a
V (2405.15362).
"""

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

from runner.reference.transformer import ModelSlice
from runner.training.data_parallel import Group
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from spec.pipeline_layout import parse_pipeline_layout

Loss = Callable[[Tensor, Tensor], Tensor]

# Schedules that torch runs in the same order of work. torch has a class of its own for 1F1B with a single chunk,
# ``Schedule1F1B``.
TORCH_SCHEDULES: dict[Schedule, type] = {
    Schedule.ONE_F_ONE_B: ScheduleInterleaved1F1B,
    Schedule.GPIPE: ScheduleGPipe,
    Schedule.LOOPED_BFS: ScheduleLoopedBFS,
    Schedule.ZB_H1: ScheduleInterleavedZeroBubble,
    Schedule.ZB_1P: ScheduleInterleavedZeroBubble,
    Schedule.ZB_INTERLEAVED: ScheduleInterleavedZeroBubble,
    Schedule.ZB_V: ScheduleZBVZeroBubble,
}
SINGLE_CHUNK = (Schedule1F1B, ScheduleGPipe)


def layers_of(plan: Plan, num_layers: int) -> tuple[int, ...]:
    """Number of layers of every virtual stage, in the order of the forward; equal unless the plan has a layout."""
    if plan.stage_layout:
        return parse_pipeline_layout(plan.stage_layout).layers
    stages = plan.pp * plan.vpp
    return (num_layers // stages,) * stages


def slices_of(plan: Plan, stage: int, layers: Sequence[int]) -> list[ModelSlice]:
    """The slices of the model that pipeline rank ``stage`` holds, one for each chunk."""
    slices = []
    for virtual in virtual_stages(plan, stage):
        first = sum(layers[:virtual])
        slices.append(
            ModelSlice(
                blocks=range(first, first + layers[virtual]),
                embedding=virtual == 0,
                head=virtual == plan.pp * plan.vpp - 1,
            )
        )
    return slices


def virtual_stages(plan: Plan, stage: int) -> list[int]:
    """Virtual stage of every chunk of pipeline rank ``stage``: its position in the forward of a micro-batch."""
    chain = plan.schedule.placement.chains(plan.pp, plan.vpp)[0]
    return [chain.index((stage, chunk)) for chunk in range(plan.vpp)]


@dataclass(slots=True, kw_only=True)
class SequentialExecutor:
    """Runs forward and backward of each micro-batch in turn, without a pipeline. ``losses`` are of the last step."""

    module: nn.Module
    num_micro: int
    loss: Loss
    losses: list[Tensor] = field(default_factory=list)

    def run(self, tokens: Tensor, targets: Tensor) -> None:
        """Run one step on tokens and targets of [num_micro x batch, tokens]."""
        self.losses = []
        # DistributedDataParallel reduces gradients once, in the backward of the last micro-batch.
        micro_batches = zip(tokens.chunk(self.num_micro), targets.chunk(self.num_micro), strict=True)
        for number, (inputs, labels) in enumerate(micro_batches, start=1):
            last = number == self.num_micro
            module = self.module
            unsynced = module if isinstance(module, DistributedDataParallel) and not last else None
            with nullcontext() if unsynced is None else unsynced.no_sync():
                loss = self.loss(module(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
            self.losses.append(loss.detach())


@dataclass(slots=True, kw_only=True)
class PipelineExecutor:
    """Runs torch's schedule over ``modules``, the chunks of this pipeline rank; ``first`` and ``last`` tell whether it
    holds the first and the last virtual stage."""

    schedule: Any
    modules: Sequence[nn.Module]
    first: bool
    last: bool
    losses: list[Tensor] = field(default_factory=list)

    def run(self, tokens: Tensor, targets: Tensor) -> None:
        """Run one step; only the first stage reads the tokens and only the last reads the targets."""
        self.losses = []
        inputs = (tokens,) if self.first else ()
        with ExitStack() as no_sync:
            # torch's stage starts the reduction itself, at its last backward. Its first step runs a forward to infer
            # shapes, which must not.
            for module in self.modules:
                if isinstance(module, DistributedDataParallel):
                    no_sync.enter_context(module.no_sync())
            if self.last:
                self.schedule.step(*inputs, target=targets, losses=self.losses)
            else:
                self.schedule.step(*inputs)
        self.losses = [loss.detach() for loss in self.losses]


def pipeline_executor(
    modules: Sequence[nn.Module], plan: Plan, stage: int, group: Group, loss: Loss
) -> PipelineExecutor:
    """The executor of pipeline rank ``stage``, whose chunks are ``modules``."""
    device = next(modules[0].parameters()).device
    places, count = virtual_stages(plan, stage), plan.pp * plan.vpp
    chunks: list[Any] = [
        PipelineStage(module, place, count, device, group=group) for place, module in zip(places, modules, strict=True)
    ]
    plain = plan.schedule is Schedule.ONE_F_ONE_B and plan.vpp == 1
    schedule_class = Schedule1F1B if plain else TORCH_SCHEDULES[plan.schedule]
    stages = chunks[0] if schedule_class in SINGLE_CHUNK else chunks
    # The loss is already divided by the number of micro-batches; scaling gradients would take a pass over all of them.
    schedule = schedule_class(stages, plan.num_micro, loss_fn=loss, scale_grads=False)
    return PipelineExecutor(schedule=schedule, modules=modules, first=0 in places, last=count - 1 in places)
