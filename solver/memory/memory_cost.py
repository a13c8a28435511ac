"""Memory of plans in named terms, and the three totals that tools report."""

from dataclasses import dataclass, fields

import numpy as np

from solver.memory.device_memory import CONTEXT_BYTES
from spec.arrays import FloatArray, IntArray

BESIDE_TENSORS = frozenset({"slack_bytes", "segment_bytes", "nccl_bytes", "host_bytes"})
"""Fields of MemoryCost that are no live tensors of the device at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost:
    """Bytes per row. The terms (TERMS) sum to ``allocated_bytes``; ``slack_bytes`` are freed and split blocks that the
    caching allocator keeps, and those that CUDA graphs keep for themselves, ``segment_bytes`` what it keeps of buffers
    that lived at other times, ``nccl_bytes`` those of communicators, of the experts' dispatcher and of Transformer
    Engine's overlap, ``host_bytes`` what is kept in the host's memory instead (ops.data_parallel.offload).

    ``narrow_weights_bytes`` are copies of parameters in the format of the products; ``activations_bytes``
    with what stages keep of their outputs; of ``logits_bytes`` and ``working_bytes`` only the larger is live
    at the peak, the other shows as 0; ``step_bytes`` is what the end of the step takes beyond the peak of the
    passes.
    """

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
        """What tensors occupy at the peak (max_memory_allocated)."""
        total = np.zeros_like(self.parameters_bytes)
        for name in TERMS:
            total = total + getattr(self, name)
        return total

    @property
    def reserved_bytes(self) -> FloatArray:
        """What the caching allocator holds where memory is plenty (max_memory_reserved)."""
        return self.allocated_bytes + self.slack_bytes + self.segment_bytes

    @property
    def device_bytes(self) -> FloatArray:
        """What the device shows as used where memory is plenty: reserved, context and NCCL."""
        return self.reserved_bytes + CONTEXT_BYTES + self.nccl_bytes

    @property
    def needed_bytes(self) -> FloatArray:
        """The least a device must have: before it fails the allocator hands cached segments back."""
        return self.device_bytes - self.segment_bytes

    def take(self, rows: IntArray) -> "MemoryCost":
        """The rows asked for."""
        return MemoryCost(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


TERMS: tuple[str, ...] = tuple(field.name for field in fields(MemoryCost) if field.name not in BESIDE_TENSORS)
