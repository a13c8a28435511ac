"""LFM2's gated short convolution (arXiv 2511.23404): out(C * convolution(B * x)), with B, C, x = in(h)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.mixer import LeafModule, Tensor, linear_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolutionSpec:
    """``channels`` channels, each convolved on its own over ``conv_kernel`` tokens; ``bias`` of all three."""

    name: ClassVar[str] = "short_convolution"

    channels: int
    conv_kernel: int = 3
    bias: bool = False

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Returns the layer of a config, of as many channels as the model has where it does not say."""
        mixer = section.record(cls, channels=section.integer("channels", hidden))
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Channels."""
        return (self.channels,)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """None."""
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """transformers ``models/lfm2/modeling_lfm2.py``, Lfm2ShortConv: B, C and x in one product, the convolution, the output."""
        yield linear_module(f"{prefix}.in_proj", (3 * self.channels, hidden), bias=self.bias)
        taps = [Tensor(name=f"{prefix}.conv.weight", shape=(self.channels, 1, self.conv_kernel))]
        if self.bias:
            taps.append(Tensor(name=f"{prefix}.conv.bias", shape=(self.channels,)))
        yield LeafModule(name=f"{prefix}.conv", tensors=tuple(taps))
        yield linear_module(f"{prefix}.out_proj", (hidden, self.channels), bias=self.bias)
