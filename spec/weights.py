"""A model's parameter tensors, and the leaf modules that own them, named as a checkpoint names them."""

from dataclasses import dataclass
from math import prod


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
class Module:
    """A leaf module of the model: what a framework hooks, gathers and releases at once."""

    name: str
    tensors: tuple[Tensor, ...]

    @property
    def elements(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.elements for tensor in self.tensors)


def linear_module(name: str, shape: tuple[int, int], *, bias: bool = False) -> Module:
    """A matrix (outputs, inputs) and perhaps a bias."""
    tensors = [Tensor(name=f"{name}.weight", shape=shape)]
    if bias:
        tensors.append(Tensor(name=f"{name}.bias", shape=(shape[0],)))
    return Module(name=name, tensors=tuple(tensors))


def norm_module(name: str, width: int, *, bias: bool = False) -> Module:
    """A weight per channel, and a bias as LayerNorm has it."""
    tensors = [Tensor(name=f"{name}.weight", shape=(width,))]
    if bias:
        tensors.append(Tensor(name=f"{name}.bias", shape=(width,)))
    return Module(name=name, tensors=tuple(tensors))


def parameter_module(name: str, shape: tuple[int, ...]) -> Module:
    """One tensor that is a module's own, without a suffix."""
    return Module(name=name, tensors=(Tensor(name=name, shape=shape),))
