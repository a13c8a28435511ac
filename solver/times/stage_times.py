"""Times of stages: a micro-batch through every stage and every chunk of one, and the messages between stages.

A stage's times are those of its pieces (layers, embedding, head), each times how often the stage runs it. The first
layer of a chunk has times of its own, as nothing before it hides the gather of its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import Axis, Comm, Op, Phase
from ops.roles import Identity, Module, Role
from ops.strategies import full_tokens_bytes
from profdb.overlap_losses import Losses
from solver.pipeline.stages import ChunkTable, PassTimes, StageTable
from solver.plans.layers import LayerTable
from solver.plans.plan_table import PlanTable
from solver.times.contention import Contention
from solver.times.expert_overlap import Exchanges, hidden_per_micro_s, pair_s
from solver.times.layer_times import ExchangeTimes, LayerTimes
from solver.times.op_times import OpTimer
from solver.times.step_parts import SumByPart, total_by_part
from spec.arrays import FloatArray, IntArray, ints
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedLayers:
    """Plans with their distinct layers, their stages, and the ``times`` of LayerTable.stage_pieces: of each block kind,
    of each as the first layer of its stage, of embedding and head."""

    plans: PlanTable
    layers: LayerTable
    stages: StageTable
    times: list[LayerTimes]

    def passes(self, rows: StageTable | ChunkTable) -> PassTimes:
        """Returns one micro-batch through every stage row, or through every chunk of one."""
        plan = rows.plan if isinstance(rows, StageTable) else self.stages.plan[rows.stage]
        row = self.layers.row[plan]
        forward_s, backward_s, weight_s, products_s = np.zeros((4, len(row)))
        for place, weight in self._weights(rows):
            piece = self.times[place]
            forward_s = forward_s + piece.forward.seconds[row] * weight
            backward_s = backward_s + piece.backward.seconds[row] * weight
            weight_s = weight_s + piece.weight_s[row] * weight
            products_s = products_s + piece.products_s[row] * weight
        both_s = forward_s + backward_s
        return PassTimes(
            forward_s=forward_s,
            backward_s=backward_s,
            weight_s=weight_s,
            products=np.divide(products_s, both_s, out=np.zeros_like(both_s), where=both_s > 0),
        )

    def with_pairs(self, passes: PassTimes, contention: Contention) -> PassTimes:
        """Returns the ``passes`` of every chunk row with the times of forwards that run together with a backward."""
        exchanges = self._exchanges()
        forward_s = self._row_sum([one.forward.seconds for one in exchanges])
        backward_s = self._row_sum([one.backward.seconds for one in exchanges])
        of_rows = Exchanges(
            forward_s=forward_s,
            backward_s=backward_s,
            forward_host_s=self._row_sum([one.forward_host_s for one in exchanges]),
            backward_host_s=self._row_sum([one.backward_host_s for one in exchanges]),
            losses=self._exchange_losses(exchanges, forward_s + backward_s),
        )
        return replace(passes, pair_s=pair_s(passes, of_rows, contention))

    def _exchanges(self) -> list[ExchangeTimes]:
        none = ExchangeTimes.none(len(self.layers.layout))
        return [time.exchange or none for time in self.times]

    def _exchange_losses(self, exchanges: list[ExchangeTimes], whole_s: FloatArray) -> Losses | None:
        """Returns what the exchange of every chunk row and products lose to each other, averaged over pieces by their
        seconds; None unless all of them were measured."""
        compute: list[FloatArray] = []
        comm: list[FloatArray] = []
        for one in exchanges:
            seconds = one.forward.seconds + one.backward.seconds
            if one.losses is None and seconds.any():
                return None
            compute.append(seconds * (one.losses.compute if one.losses else 0.0))
            comm.append(seconds * (one.losses.comm if one.losses else 0.0))
        shares = [
            np.divide(self._row_sum(seconds), whole_s, out=np.zeros_like(whole_s), where=whole_s > 0)
            for seconds in (compute, comm)
        ]
        return Losses(compute=shares[0], comm=shares[1])

    def per_micro(self, chunk_passes: PassTimes) -> SumByPart:
        """Returns forward and backward of every stage row per micro-batch of a step, without the exchange that pairs
        hide."""
        rows = len(self.stages.plan)
        # Of two copies of the model each runs half of the micro-batches, and the row holds chunks of both.
        directions = self.plans.schedule.placement.directions
        whole = self._stage_sum(self.times, 1.0 / directions)
        if not self.plans.schedule.traits.pairs:
            return whole
        exchange = self._stage_sum(self._exchanges())
        hidden = hidden_per_micro_s(self.plans, self.stages, chunk_passes)
        share = np.divide(hidden, exchange.seconds, out=np.zeros(rows), where=exchange.seconds > 0)
        return total_by_part([whole, exchange.take(np.arange(rows), -share)], rows)

    def _row_sum(self, seconds: list[FloatArray]) -> FloatArray:
        """Returns the seconds of every chunk row from those of each piece."""
        row = self.layers.row[self.stages.plan[self.stages.chunks.stage]]
        total = np.zeros(len(row))
        for place, weight in self._weights(self.stages.chunks):
            total = total + seconds[place][row] * weight
        return total

    def _stage_sum(self, times: Sequence[LayerTimes | ExchangeTimes], share: float = 1.0) -> SumByPart:
        """Returns a ``share`` of both passes, summed over the pieces of every stage row."""
        row = self.layers.row[self.stages.plan]
        sums: list[SumByPart] = []
        for place, weight in self._weights(self.stages):
            both = total_by_part([times[place].forward, times[place].backward], len(self.layers.layout))
            sums.append(both.take(row, weight))
        whole = total_by_part(sums, len(row))
        return whole if share == 1.0 else whole.take(np.arange(len(row)), share)

    def _weights(self, rows: StageTable | ChunkTable) -> list[tuple[int, IntArray]]:
        """Returns the place of each piece that runs, and how often it does on each stage or chunk row."""
        # Pieces that share one object of times (a first layer without gathers is like the others) are added up.
        weights: dict[int, tuple[int, IntArray]] = {}
        for place, (time, weight) in enumerate(zip(self.times, piece_weights(rows), strict=True)):
            if weight.any():
                first, so_far = weights.get(id(time), (place, np.zeros_like(weight)))
                weights[id(time)] = (first, so_far + weight)
        return list(weights.values())


def piece_weights(rows: StageTable | ChunkTable) -> tuple[IntArray, ...]:
    """Returns how often each of LayerTable.stage_pieces runs on each stage or chunk row: other layers of every kind,
    first layers of every kind, embedding and head. Each chunk of a stage has a first layer: what came before it ran for
    another micro-batch."""
    chunks = rows.chunks if isinstance(rows, StageTable) else rows
    has_first = np.zeros(len(chunks.embedding), dtype=np.bool_)
    firsts: list[IntArray] = []
    others: list[IntArray] = []
    for count in chunks.layers:
        first = ints((count > 0) & ~has_first)
        has_first = has_first | (count > 0)
        firsts.append(first)
        others.append(count - first)
    weights = [*others, *firsts, chunks.embedding.astype(np.int64), chunks.head.astype(np.int64)]
    if isinstance(rows, StageTable):
        return tuple(np.add.reduceat(weight, rows.chunk_starts) for weight in weights)
    return tuple(weights)


PARTITIONED_GATHERS = (1 + 2) / 2
"""Gathers a message where DeepSpeed sends parts of activations (runtime/pipe/engine.py): one in _exec_forward_pass, of
what arrived, two in _exec_backward_pass, of the stage's own outputs and the gradient that arrived. Half of the messages
are activations, half gradients."""


def p2p_bytes(model: ModelSpec, job: JobSpec, plans: PlanTable) -> IntArray:
    """Returns the bytes that one rank sends to the next stage: a shard of the tokens where the strategy keeps shards or
    the framework scatters what it sends."""
    layout = plans.layout
    sharding = plans.sharding
    context = LayerContext(sharding=sharding, model=model, job=job, layout=layout)
    shards = layout.tp if job.preset.pipeline.scattered_p2p else layout.tp_if(sharding.traits.cuts_tokens)
    return full_tokens_bytes(context) * model.residual_streams // shards


def p2p_seconds(model: ModelSpec, job: JobSpec, plans: PlanTable, op_timer: OpTimer) -> FloatArray:
    """Returns the seconds of an activation or its gradient to the next stage; scattered ones are gathered on
    arrival."""
    layout = plans.layout
    if not (layout.pp > 1).any():
        return np.zeros(len(layout))
    seconds = op_timer.p2p(layout, p2p_bytes(model, job, plans)).seconds
    if not job.preset.pipeline.scattered_p2p:
        return seconds
    context = LayerContext(sharding=plans.sharding, model=model, job=job, layout=layout)
    # Layers keep whole activations here, as tokens are not sharded.
    whole = (layout.tp_if(plans.sharding.traits.cuts_tokens) == 1) & (layout.tp > 1) & (layout.pp > 1)
    num_gathers = PARTITIONED_GATHERS if job.preset.pipeline.partitioned_tensors else 1.0
    for op in gather_slices(np.where(whole, full_tokens_bytes(context), 0), job):
        seconds = seconds + num_gathers * op_timer.time(op, layout).seconds
    return seconds


def gather_slices(size_bytes: IntArray, job: JobSpec) -> tuple[Op, ...]:
    """Returns the operations that gather slices of ``size_bytes`` in all: an all-gather into a list, which PyTorch
    makes in a buffer of its own and copies out (ProcessGroupNCCL.cpp, allgather; Megatron-LM v2.5
    megatron/mpu/random.py, gather_split_1d_tensor). DeepSpeed's list are pieces of zeros, which are copied once more
    (runtime/utils.py, PartitionedTensor.full)."""
    gather = Comm(
        module=Module.OTHER,
        role=Role.GATHER,
        name="p2p.gather",
        phase=Phase.FORWARD,
        collective=Collective.ALL_GATHER,
        axis=Axis.TP,
        size_bytes=size_bytes,
    )
    elements = (size_bytes // dtype_bytes(job.precision.activation)).astype(np.int64)

    def kernel(word: str, repeat: int) -> Op:
        what = Identity(module=Module.OTHER, role=Role.COPY, serves=Role.GATHER, name=f"p2p.{word}")
        one = memory_pass(what, Phase.FORWARD, word, elements, job.precision.activation)
        return replace(one, repeat=repeat)

    if not job.preset.pipeline.partitioned_tensors:
        return gather, kernel("copy", 1)
    return kernel("fill", 1), gather, kernel("copy", 2)
