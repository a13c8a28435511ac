"""The interface of token mixers, which models, rules and readers use."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol, Self

from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One parameter: its name and shape (elements)."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafModule:
    """A leaf module of the model: what a framework hooks, gathers and releases at once."""

    name: str
    tensors: tuple[Tensor, ...]

    @property
    def elements(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.elements for tensor in self.tensors)


def linear_module(name: str, shape: tuple[int, int], *, bias: bool = False) -> LeafModule:
    """A matrix (outputs, inputs) and perhaps a bias."""
    tensors = [Tensor(name=f"{name}.weight", shape=shape)]
    if bias:
        tensors.append(Tensor(name=f"{name}.bias", shape=(shape[0],)))
    return LeafModule(name=name, tensors=tuple(tensors))


def norm_module(name: str, width: int, *, bias: bool = False) -> LeafModule:
    """A weight per channel, and a bias as LayerNorm has it."""
    tensors = [Tensor(name=f"{name}.weight", shape=(width,))]
    if bias:
        tensors.append(Tensor(name=f"{name}.bias", shape=(width,)))
    return LeafModule(name=name, tensors=tuple(tensors))


def parameter_module(name: str, shape: tuple[int, ...]) -> LeafModule:
    """One tensor that is a module's own, without a suffix."""
    return LeafModule(name=name, tensors=(Tensor(name=name, shape=shape),))


class Mixer(Protocol):
    """The part of a layer that mixes tokens, between its first norm and its first residual add.

    A kind is a frozen dataclass of its sizes (elements, never bytes), so that equal layers compare equal.
    """

    name: ClassVar[str]
    """Its key in a block's table of a config, and the first word of its operations and weights."""

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """The mixer of a block's table in a model of ``hidden`` channels; closes the section. Raises
        ConfigError."""
        ...

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Returns the numbers of heads (or groups) that tensor parallelism partitions: tp must divide each."""
        ...

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """Returns the numbers of heads that others share: tp must divide each, or be a multiple of it where the
        framework repeats them."""
        ...

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """Its weights in forward order, whole; names begin with ``prefix``."""
        ...


def mixer_parameters(mixer: Mixer, hidden: int) -> int:
    """Parameters of one mixer: the elements of its weights."""
    return sum(module.elements for module in mixer.modules(hidden, mixer.name))
