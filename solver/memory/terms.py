"""What memory is counted of, and what it adds up to: the inputs and the result of every memory term.

``Stages`` are the inputs, one row a pipeline stage; ``MemoryEstimate`` is the result, one field a term. The sum itself
is solver.memory.stage."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.muon import matrices_of_stage
from ops.data_parallel.step import RankParameters, owned_elements
from ops.op import Owner
from solver.memory.device import CONTEXT_BYTES
from solver.pipeline.stages import StageTable
from solver.plans.layers import LayerBytes
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec
from spec.frameworks import DataParallel
from spec.job import JobSpec
from spec.model import ModelSpec

OUTSIDE_TENSORS = frozenset({"slack_bytes", "segment_bytes", "nccl_bytes", "host_bytes"})
"""Fields of MemoryEstimate that are no live tensors of the device at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of every row, by term. The terms TERM_NAMES sum to ``allocated_bytes``.

    ``narrow_weights_bytes`` are copies of parameters in the format of the products; ``activations_bytes`` with the
    outputs that pipeline stages keep; of ``logits_bytes`` and ``working_bytes`` only the larger is live at the peak,
    the other is 0; ``step_bytes`` is what the end of the step takes beyond the peak of the passes. Outside of tensors:
    ``slack_bytes`` are freed and split blocks that the caching allocator keeps, and what CUDA graphs keep for
    themselves; ``segment_bytes`` cached segments of buffers that lived at other times; ``nccl_bytes`` buffers of
    communicators, of the experts' dispatcher and of Transformer Engine; ``host_bytes`` what is in the host's memory
    instead (ops.data_parallel.offload)."""

    parameters_bytes: FloatArray
    narrow_weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    activations_bytes: FloatArray
    logits_bytes: FloatArray
    working_bytes: FloatArray
    weight_pool_bytes: FloatArray
    bucket_bytes: FloatArray
    step_bytes: FloatArray
    slack_bytes: FloatArray
    segment_bytes: FloatArray
    nccl_bytes: FloatArray
    host_bytes: FloatArray

    @property
    def allocated_bytes(self) -> FloatArray:
        """Returns what tensors occupy at the peak (torch.cuda.max_memory_allocated)."""
        total: FloatArray = np.zeros_like(self.parameters_bytes)
        for name in TERM_NAMES:
            total = total + getattr(self, name)
        return total

    @property
    def reserved_bytes(self) -> FloatArray:
        """Returns what the caching allocator reserves where memory is plenty (torch.cuda.max_memory_reserved)."""
        return self.allocated_bytes + self.slack_bytes + self.segment_bytes

    @property
    def device_bytes(self) -> FloatArray:
        """Returns what the device shows as used where memory is plenty: reserved, CUDA context and NCCL."""
        return self.reserved_bytes + CONTEXT_BYTES + self.nccl_bytes

    @property
    def needed_bytes(self) -> FloatArray:
        """Returns the least that a device must have: the allocator frees cached segments before it fails."""
        return self.device_bytes - self.segment_bytes

    def take(self, rows: IntArray) -> "MemoryEstimate":
        """Returns these rows."""
        terms = (term[rows] for term in attrgetter(*FIELDS)(self))
        return MemoryEstimate(**dict(zip(FIELDS, terms, strict=True)))


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(MemoryEstimate))
TERM_NAMES: tuple[str, ...] = tuple(name for name in FIELDS if name not in OUTSIDE_TENSORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Parameters of every stage row by owner, and its memory."""

    on_rank: RankParameters
    cost: MemoryEstimate

    def take(self, rows: IntArray) -> "StageBytes":
        """Returns these stage rows."""
        return StageBytes(on_rank=self.on_rank.take(rows), cost=self.cost.take(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The plans whose memory is counted.

    ``kinds`` are the bytes of every piece of a layer table (block kinds, embedding, head), ``row`` the layer row of
    every plan in them, ``stages`` what every stage holds. Without a ``cluster`` communicators are not counted, and
    device totals mean nothing."""

    plans: PlanTable
    kinds: list[LayerBytes]
    row: IntArray
    stages: StageTable
    cluster: ClusterSpec | None = None

    def take(self, rows: IntArray) -> "Tables":
        """Returns these plans, in that order."""
        return replace(self, plans=self.plans.take(rows), row=self.row[rows], stages=self.stages.take(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The inputs of a memory term, one row a stage.

    ``context`` has the layout of every row, with its ``job`` and the framework's choices for data parallelism
    (``sync``); ``numbers`` are the layers of every kind, embedding and head that the stage holds, ``row`` where their
    bytes are in ``kinds``; ``in_flight`` the micro-batches whose activations it holds at its peak; ``trainable`` the
    elements that it trains, ``owned`` those whose optimizer state it owns. ``offloads``: some optimizer state is on the
    host; ``on_device``: device totals are wanted.
    """

    tables: Tables
    context: LayerContext
    job: JobSpec
    sync: DataParallel
    row: IntArray
    numbers: tuple[IntArray, ...]
    in_flight: FloatArray
    trainable: RankParameters
    owned: IntArray
    offloads: bool
    on_device: bool

    @property
    def num_micro(self) -> IntArray:
        """Returns the micro-batches of a step."""
        return self.tables.plans.num_micro[self.tables.stages.plan]

    def total(self, name: str, kinds: slice = slice(None)) -> FloatArray:
        """Returns the sum of a field of LayerBytes over all layers, embedding and head, or over some ``kinds`` of them:
        the last two are embedding and head."""
        total: FloatArray = np.zeros(len(self.row))
        for kind, number in zip(self.tables.kinds[kinds], self.numbers[kinds], strict=True):
            total = total + getattr(kind, name)[self.row] * number
        return total

    def largest(self, name: str) -> FloatArray:
        """Returns the largest value of a field of LayerBytes among the stage's layers."""
        largest: FloatArray = np.zeros(len(self.row))
        for kind, number in zip(self.tables.kinds[:-2], self.numbers, strict=False):
            largest = np.maximum(largest, getattr(kind, name)[self.row] * (number > 0))
        return largest


def stages_of(model: ModelSpec, job: JobSpec, tables: Tables) -> Stages:
    """Returns the inputs of memory terms for every stage row."""
    plans, table = tables.plans, tables.stages
    layout = plans.layout.take(table.plan)
    context = LayerContext(sharding=plans.sharding, model=model, job=job, layout=layout)
    row = tables.row[table.plan]
    numbers = (*table.layers, table.embedding.astype(np.int64), table.head.astype(np.int64))
    trainable = elements_of(tables.kinds, "parameters", row, numbers)
    if job.optimizer == "muon":
        trainable = replace(trainable, matrices=matrices_of_stage(model, job, layout, table.layers))
    vpp, num_micro = plans.vpp[table.plan], plans.num_micro[table.plan]
    return Stages(
        tables=tables,
        context=context,
        job=job,
        sync=job.preset.data_parallel,
        row=row,
        numbers=numbers,
        in_flight=plans.schedule.in_flight(table.position, layout.pp, vpp, num_micro),
        trainable=trainable,
        owned=owned_elements(context, trainable),
        offloads=bool(layout.optimizer_offload.any()),
        on_device=tables.cluster is not None,
    )


def elements_of(kinds: list[LayerBytes], name: str, row: IntArray, numbers: tuple[IntArray, ...]) -> RankParameters:
    """Returns the elements by owner, ``parameters`` or ``frozen``, of so many layers and ends of each kind."""
    whole = dict.fromkeys(Owner, np.zeros_like(row))
    # Those among them that products of 8 bits or fewer read.
    low_precision = dict(whole)
    for kind, number in zip(kinds, numbers, strict=True):
        elements: RankParameters = getattr(kind, name)
        for owner in Owner:
            whole[owner] = whole[owner] + elements.of(owner)[row] * number
            if elements.low_precision is not None:
                low_precision[owner] = low_precision[owner] + elements.low_precision.of(owner)[row] * number
    has_low_precision = any(getattr(kind, name).low_precision is not None for kind in kinds)
    return RankParameters.by_owner(whole.__getitem__, low_precision.__getitem__ if has_low_precision else None)


class Term(NamedTuple):
    """One addend of the field ``name`` of MemoryEstimate; ``bytes_of`` is not called where it does not apply."""

    name: str
    applies: Callable[[Stages], bool]
    bytes_of: Callable[[Stages], FloatArray]
