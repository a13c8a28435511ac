"""The recurrent block of Griffin (arXiv 2402.19427 sec. 2.3 and 2.4): a convolution and a real-gated linear recurrence of every
channel, times a gate."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.mixer import LeafModule, Tensor, linear_module, parameter_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class RgLruSpec:
    """``num_blocks`` blocks of ``block_width`` channels, whose gates are products within a block."""

    name: ClassVar[str] = "rg_lru"

    num_blocks: int
    block_width: int
    conv_kernel: int = 4

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Returns the layer of a config; blocks share the hidden size where it does not say how wide they are."""
        blocks = section.integer("num_blocks")
        width = section.integer("block_width", max(hidden // blocks, 1))
        mixer = section.record(cls, num_blocks=blocks, block_width=width)
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Blocks."""
        return (self.num_blocks,)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """None."""
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """transformers ``models/recurrent_gemma/modeling_recurrent_gemma.py``, RecurrentGemmaRecurrentBlock; all with biases."""
        width, block = self.num_blocks * self.block_width, self.block_width
        for name in ("linear_y", "linear_x"):
            yield linear_module(f"{prefix}.{name}", (width, hidden), bias=True)
        taps = Tensor(name=f"{prefix}.conv_1d.weight", shape=(width, 1, self.conv_kernel))
        yield LeafModule(
            name=f"{prefix}.conv_1d", tensors=(taps, Tensor(name=f"{prefix}.conv_1d.bias", shape=(width,)))
        )
        for name in ("input_gate", "recurrent_gate"):
            yield parameter_module(f"{prefix}.{name}_weight", (self.num_blocks, block, block))
            yield parameter_module(f"{prefix}.{name}_bias", (self.num_blocks, block))
        yield parameter_module(f"{prefix}.recurrent_param", (width,))
        yield linear_module(f"{prefix}.linear_out", (hidden, width), bias=True)
