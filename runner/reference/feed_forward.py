"""The dense feed-forward layer of the reference transformer, gated (SwiGLU, arXiv 2002.05202) or not."""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from runner.reference.column_products import Project, one_by_one
from spec.model import MlpSpec

Activation = Callable[[Tensor], Tensor]


def squared_relu(values: Tensor) -> Tensor:
    """relu(x)^2 (Primer, arXiv 2109.08668)."""
    return functional.relu(values).square()


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "squared_relu": squared_relu,
}


class FeedForward(nn.Module):
    """up, and gate where gated; activation; down."""

    def __init__(self, hidden: int, spec: MlpSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, spec.ffn_hidden, bias=spec.bias) if spec.gated else None
        self.up = nn.Linear(hidden, spec.ffn_hidden, bias=spec.bias)
        self.down = nn.Linear(spec.ffn_hidden, hidden, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.project: Project = one_by_one

    def forward(self, states: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        if self.gate is None:
            (up,) = self.project(states, (self.up,))
            inner = self.activation(up)
        else:
            gate, up = self.project(states, (self.gate, self.up))
            inner = self.activation(gate) * up
        out: Tensor = self.down(inner)
        return out
