"""A token mixer that the project does not have, written as anyone would add it: a gated linear recurrence.

y_t = a y_(t-1) + sigmoid(g_t) x_t over the channels of each head, with one decay a per head; x and g come from one
projection of the hidden states, and y goes back through another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import pytest

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.memory_bound import KERNELS, Kernel, KernelTraffic, kernel
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.mixers.registry import MIXERS as OPERATIONS
from ops.op import Pass
from ops.roles import Module as Part
from ops.roles import OpKey, Role
from spec.mixers.mixer import LeafModule, linear_module, parameter_module
from spec.mixers.registry import MIXERS as KINDS
from spec.section import Section

SCAN = "recurrence_scan"
# x and g read, y written; backward the gradient of y and both read, two gradients written
TRAFFIC = KernelTraffic(forward_reads=2, forward_writes=1, backward_reads=3, backward_writes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceSpec:
    """``num_heads`` heads of ``head_dim`` channels."""

    name: ClassVar[str] = "recurrence"

    num_heads: int
    head_dim: int

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        heads = section.integer("num_heads")
        if hidden % heads:
            section.fail("num_heads", f"a divisor of hidden = {hidden}")
        mixer = cls(num_heads=heads, head_dim=section.integer("head_dim", hidden // heads))
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        return (self.num_heads,)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        width = self.num_heads * self.head_dim
        yield linear_module(f"{prefix}.in", (2 * width, hidden))
        yield parameter_module(f"{prefix}.decay", (self.num_heads,))
        yield linear_module(f"{prefix}.out", (hidden, width))


def projections(context: LayerContext, mixer: RecurrenceSpec) -> Pass:
    width = projected_heads(context, mixer.num_heads) * mixer.head_dim
    return into_mixer(context, OpKey(Part.MIXER, Role.PROJECTION), 2 * width)


def core(context: LayerContext, mixer: RecurrenceSpec) -> Pass:
    heads = core_heads(context, mixer.num_heads)
    rows = context.layout.micro_batch * context.core_sequence
    width = heads * mixer.head_dim
    scan = Kernel(
        OpKey(Part.MIXER, Role.CORE),
        SCAN,
        rows,
        width,
        saved_bytes=context.activations(rows, 2 * width),
        parameters=projected_heads(context, mixer.num_heads),
    )
    return kernel(context, scan)


def output(context: LayerContext, mixer: RecurrenceSpec) -> Pass:
    width = projected_heads(context, mixer.num_heads) * mixer.head_dim
    return out_of_mixer(context, OpKey(Part.MIXER, Role.OUT), width)


def core_tensors(mixer: RecurrenceSpec) -> HeadTensors:
    into, out = (
        tuple(HeadTensor(name=name, heads=mixer.num_heads, dim=mixer.head_dim) for name in names)
        for names in ("xg", "y")
    )
    return HeadTensors(module=Part.MIXER, into=into, out=out)


RECURRENCE = MixerRow(
    module=Part.MIXER,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=frozenset({"all_to_all"}),
)


def register(patch: pytest.MonkeyPatch) -> None:
    """The three lines that adding it to the project would take."""
    patch.setitem(KINDS, RecurrenceSpec.name, RecurrenceSpec)
    patch.setitem(OPERATIONS, RecurrenceSpec, RECURRENCE)
    patch.setitem(KERNELS, SCAN, TRAFFIC)
