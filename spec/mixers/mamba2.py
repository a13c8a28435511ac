"""Mamba-2 (arXiv 2405.21060 sec. 7): a selective state space whose recurrence runs in chunks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from spec.mixers.mixer import LeafModule, Tensor, linear_module, norm_module, parameter_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """``num_heads`` heads of ``head_dim`` channels, each with a state of ``state_size`` per channel.

    Heads of a group share B and C. The convolution before the recurrence spans ``conv_kernel`` tokens; ``chunk_size``
    tokens at a time become matrix products (ibid. sec. 6). Falcon-H1 leaves out the ``inner_norm`` before the output.
    """

    name: ClassVar[str] = "mamba2"

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_kernel: int = 4
    chunk_size: int = 256
    inner_norm: bool = True

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """Sizes that are not written are those of the authors' module (mamba_ssm/modules/mamba2.py, Mamba2):
        heads of 64 channels, as many as twice ``hidden`` makes, states of 128, one group."""
        head_dim = section.integer("head_dim", 64)
        if not section.has("num_heads") and 2 * hidden % head_dim:
            section.fail("num_heads", f"required: 2 x hidden = {2 * hidden} is no multiple of head_dim")
        heads = section.integer("num_heads", 2 * hidden // head_dim)
        state_size = section.integer("state_size", 128)
        mixer = section.record(cls, num_heads=heads, head_dim=head_dim, state_size=state_size)
        if mixer.num_heads % mixer.num_groups:
            section.fail("num_groups", f"a divisor of num_heads = {mixer.num_heads}")
        section.close()
        return mixer

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Heads and groups (Megatron-LM, core/ssm/mamba_mixer.py, asserts both)."""
        return (self.num_heads, self.num_groups)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """None."""
        return ()

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """mamba_ssm/modules/mamba2.py, ``Mamba2.__init__``: z, x, B, C and dt in one product; the convolution
        over x, B and C; per head a bias of dt, A and D; the gated norm; the output."""
        inner = self.num_heads * self.head_dim
        states = 2 * self.num_groups * self.state_size
        yield linear_module(f"{prefix}.in_proj", (2 * inner + states + self.num_heads, hidden))
        weight = Tensor(name=f"{prefix}.conv1d.weight", shape=(inner + states, 1, self.conv_kernel))
        bias = Tensor(name=f"{prefix}.conv1d.bias", shape=(inner + states,))
        yield LeafModule(name=f"{prefix}.conv1d", tensors=(weight, bias))
        for name in ("dt_bias", "A_log", "D"):
            yield parameter_module(f"{prefix}.{name}", (self.num_heads,))
        if self.inner_norm:
            yield norm_module(f"{prefix}.norm", inner)
        yield linear_module(f"{prefix}.out_proj", (hidden, inner))
