"""Times of stages: a micro-batch through every stage and every chunk of one, and the messages between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import Axis, Comm, Op, Phase
from ops.roles import Identity, Module, Role
from ops.strategies import full_tokens_bytes
from profdb.lookup.overlap_losses import Losses
from solver.pipeline.stages import ChunkTable, PassTimes, StageTable
from solver.plans.layers import LayerTable
from solver.plans.plan_table import PlanTable
from solver.times.contention import Contention
from solver.times.expert_overlap import Exchanges, hidden_per_micro_s, pair_s
from solver.times.layer_times import ExchangeTimes, LayerTimes
from solver.times.op_times import Pricer
from solver.times.step_parts import SumByPart, added
from spec.arrays import FloatArray, IntArray, ints
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLayers:
    """Plans with their distinct layers, their stages, and the times of each block kind, of each as the first layer of
    its stage (solver.times.overlap), of embedding and head."""

    plans: PlanTable
    layers: LayerTable
    stages: StageTable
    times: list[LayerTimes]

    def stage_passes(self) -> PassTimes:
        """One micro-batch through every stage row."""
        return self._passes(self.stages, self.stages.plan)

    def beside_reductions(self) -> PassTimes:
        """``stage_passes``, of which no backward is left to run beside reductions where weight gradients come
        after the others (torch/distributed/pipelining/schedules.py, _add_reduce_grad: behind a chunk's last
        weight gradient)."""
        passes, traits = self.stage_passes(), self.plans.schedule.traits
        if traits.pairs or not traits.splits_backward:
            return passes
        return replace(passes, backward_s=np.zeros_like(passes.backward_s))

    def chunk_passes(self, contention: Contention) -> PassTimes:
        """One micro-batch through every chunk row, alone and, where the schedule pairs them, beside another's."""
        chunks = self.stages.chunks
        plan = self.stages.plan[chunks.stage]
        passes = self._passes(chunks, plan)
        if not self.plans.schedule.traits.pairs:
            return passes
        total, kept = self._row_sums(chunks, plan), self._exchanges()
        exchanges = Exchanges(
            forward_s=total([one.forward.seconds for one in kept]),
            backward_s=total([one.backward.seconds for one in kept]),
            forward_host_s=total([one.forward_host_s for one in kept]),
            backward_host_s=total([one.backward_host_s for one in kept]),
            losses=self._exchange_losses(total),
        )
        return replace(passes, pair_s=pair_s(passes, exchanges, contention))

    def _exchanges(self) -> list[ExchangeTimes]:
        none = ExchangeTimes.none(len(self.layers.layout))
        return [time.exchange or none for time in self.times]

    def _exchange_losses(self, total: Callable[[list[FloatArray]], FloatArray]) -> Losses | None:
        """What the exchange of every row and products lose to each other, by the seconds of its pieces; None unless
        that of all was measured."""
        kept = self._exchanges()
        exchange_s: list[FloatArray] = [one.forward.seconds + one.backward.seconds for one in kept]
        lost = [one.losses for one in kept]
        whole_s = total(exchange_s)
        none = Losses(compute=np.zeros(1), comm=np.zeros(1))
        if any(one is None and seconds.any() for one, seconds in zip(lost, exchange_s, strict=True)):
            return None

        def mean(shares: Sequence[FloatArray]) -> FloatArray:
            weighed: list[FloatArray] = [
                share * seconds for share, seconds in zip(shares, exchange_s, strict=True)
            ]
            return np.divide(total(weighed), whole_s, out=np.zeros_like(whole_s), where=whole_s > 0)

        known = [one or none for one in lost]
        return Losses(compute=mean([one.compute for one in known]), comm=mean([one.comm for one in known]))

    def per_micro(self, chunk_passes: PassTimes) -> SumByPart:
        """Forward and backward of every stage row over the micro-batches of a step, of which each copy of the model
        has its share, without the exchange that pairs hide."""
        rows = len(self.stages.plan)
        layouts = len(self.layers.layout)
        whole = self._stage_sum([added([time.forward, time.backward], layouts) for time in self.times])
        placement = self.plans.schedule.placement
        if not self.plans.schedule.traits.pairs:
            return whole
        exchange = self._stage_sum([added([one.forward, one.backward], layouts) for one in self._exchanges()])
        hidden = hidden_per_micro_s(self.plans, self.stages, chunk_passes)
        share = np.divide(hidden, exchange.seconds, out=np.zeros(rows), where=exchange.seconds > 0)
        return added([whole.scaled(1.0 / placement.directions), exchange.scaled(-share)], rows)

    def _passes(self, rows: StageTable | ChunkTable, plan: IntArray) -> PassTimes:
        """One micro-batch through every stage or chunk row; ``plan`` is the row's plan."""
        total = self._row_sums(rows, plan)
        forward_s = total([time.forward.seconds for time in self.times])
        backward_s = total([time.backward.seconds for time in self.times])
        products_s = total([time.products_s for time in self.times])
        both_s = forward_s + backward_s
        return PassTimes(
            forward_s=forward_s,
            backward_s=backward_s,
            weight_s=total([time.weight_s for time in self.times]),
            products=np.divide(products_s, both_s, out=np.zeros_like(both_s), where=both_s > 0),
        )

    def _row_sums(
        self, rows: StageTable | ChunkTable, plan: IntArray
    ) -> Callable[[list[FloatArray]], FloatArray]:
        """Seconds of every stage or chunk row from those of each piece."""
        row = self.layers.row[plan]
        weighed = self._weighed(rows)

        def total(seconds: list[FloatArray]) -> FloatArray:
            summed = np.zeros(len(row))
            for place, weight in weighed:
                summed = summed + seconds[place][row] * weight
            return summed

        return total

    def _stage_sum(self, times: list[SumByPart]) -> SumByPart:
        """The times of every piece, over the pieces of every stage row."""
        row = self.layers.row[self.stages.plan]
        scaled = [times[place].take(row).scaled(weight) for place, weight in self._weighed(self.stages)]
        return added(scaled, len(row))

    def _weighed(self, rows: StageTable | ChunkTable) -> list[tuple[int, IntArray]]:
        """Pieces that run, by place, and how often on each stage or chunk row; those with the very same times
        are one, as a first layer is that nothing comes ahead of."""
        weights: dict[int, tuple[int, IntArray]] = {}
        for place, (time, weight) in enumerate(zip(self.times, piece_weights(rows), strict=True)):
            first, known = weights.get(id(time), (place, np.zeros_like(weight)))
            weights[id(time)] = (first, known + weight)
        return [(first, weight) for first, weight in weights.values() if weight.any()]


def piece_weights(rows: StageTable | ChunkTable) -> tuple[IntArray, ...]:
    """How often each piece runs on each stage or chunk row: other layers of every kind, first layers of every
    kind, ends. Each chunk of a stage has a first layer: what came before it ran for another micro-batch."""
    if isinstance(rows, StageTable):
        return tuple(np.add.reduceat(weight, rows.chunk_starts) for weight in piece_weights(rows.chunks))
    firsts = first_layers(rows.layers)
    others = (count - first for count, first in zip(rows.layers, firsts, strict=True))
    return (*others, *firsts, rows.embedding.astype(np.int64), rows.head.astype(np.int64))


# DeepSpeed runtime/pipe/engine.py: _exec_forward_pass gathers what came; _exec_backward_pass the stage's own
# outputs and the gradient that came. A message is as often an activation as a gradient.
PARTITIONED_GATHERS = (1 + 2) / 2


def first_layers(layers: Sequence[IntArray]) -> tuple[IntArray, ...]:
    """Of layers by run, for every row one of the first run that it has any of."""
    found = np.zeros(len(layers[0]), dtype=np.bool_)
    firsts = []
    for count in layers:
        first = (count > 0) & ~found
        found = found | first
        firsts.append(ints(first))
    return tuple(firsts)


def hop_bytes(model: ModelSpec, job: JobSpec, plans: PlanTable) -> IntArray:
    """Bytes one rank sends to the next stage: a token shard where the strategy keeps shards or the
    framework cuts what it sends."""
    layout = plans.layout
    sharding = plans.sharding
    context = LayerContext(sharding=sharding, model=model, job=job, layout=layout)
    shards = layout.tp if job.preset.pipeline.scattered_hops else sharding.norm_shards(layout)
    return full_tokens_bytes(context) // shards


def hop_seconds(model: ModelSpec, job: JobSpec, plans: PlanTable, pricer: Pricer) -> FloatArray:
    """An activation or its gradient to the next stage; slices of a whole one are gathered on arrival."""
    layout = plans.layout
    if not (layout.pp > 1).any():
        return np.zeros(len(layout))
    seconds = pricer.hop(layout, hop_bytes(model, job, plans)).seconds
    if not job.preset.pipeline.scattered_hops:
        return seconds
    context = LayerContext(sharding=plans.sharding, model=model, job=job, layout=layout)
    whole = (plans.sharding.norm_shards(layout) == 1) & (layout.tp > 1) & (layout.pp > 1)
    gathered = gathered_slices(np.where(whole, full_tokens_bytes(context), 0), job)
    gathers = PARTITIONED_GATHERS if job.preset.pipeline.partitioned_tensors else 1.0
    for op in gathered:
        seconds = seconds + gathers * pricer.time(op, layout).seconds
    return seconds


def gathered_slices(size_bytes: IntArray, job: JobSpec) -> tuple[Op, ...]:
    """What brings slices of ``size_bytes`` in all together: an all-gather into a list, which PyTorch makes in
    a buffer of its own and copies out (ProcessGroupNCCL.cpp, allgather; Megatron-LM v2.5
    megatron/mpu/random.py, gather_split_1d_tensor). DeepSpeed's list are pieces of zeros, which are copied
    once more (runtime/utils.py, PartitionedTensor.full)."""
    gather = Comm(
        module=Module.OTHER,
        role=Role.GATHER,
        name="hop.gather",
        phase=Phase.FORWARD,
        collective=Collective.ALL_GATHER,
        axis=Axis.TP,
        size_bytes=size_bytes,
    )
    elements = (size_bytes // dtype_bytes(job.precision.activation)).astype(np.int64)

    def passed(word: str, repeat: int) -> Op:
        what = Identity(module=Module.OTHER, role=Role.COPY, serves=Role.GATHER, name=f"hop.{word}")
        one = memory_pass(what, Phase.FORWARD, word, elements, job.precision.activation)
        return replace(one, repeat=repeat)

    if not job.preset.pipeline.partitioned_tensors:
        return gather, passed("copy", 1)
    return passed("fill", 1), gather, passed("copy", 2)
