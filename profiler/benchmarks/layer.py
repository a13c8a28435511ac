"""Benchmark: forward and backward of one whole decoder layer, eager or as one CUDA graph.

Its time over the sum of its kernels' own times (profdb.layer_sum) is the effect of running them together:
caches, clocks, and (eager) the host. Its attention is therefore the kernel that ``flash`` means there, which
torch does not select by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from profdb.cases import LayerCase
from profiler.benchmarks.attention import Attend, best_attention
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.device import Device

WARM_UPS = 3
"""Runs before a graph is captured (PyTorch documentation, "CUDA Graphs", whole-network capture)."""


class DecoderLayer(torch.nn.Module):
    """Pre-norm layer: RMSNorm, q k v in one product, rotary, causal attention, RMSNorm, SwiGLU; no bias."""

    def __init__(self, case: LayerCase, attend: Attend, where: torch.device) -> None:
        super().__init__()
        self.case = case
        self.attend = attend
        factory = {"device": where, "dtype": torch_dtype(case.dtype)}
        queries, keys = case.heads * case.head_dim, case.kv_heads * case.head_dim
        self.norm_attention = torch.nn.RMSNorm(case.hidden, **factory)
        self.norm_mlp = torch.nn.RMSNorm(case.hidden, **factory)
        self.qkv = torch.nn.Linear(case.hidden, queries + 2 * keys, bias=False, **factory)
        self.out = torch.nn.Linear(queries, case.hidden, bias=False, **factory)
        self.gate_up = torch.nn.Linear(case.hidden, 2 * case.ffn_hidden, bias=False, **factory)
        self.down = torch.nn.Linear(case.ffn_hidden, case.hidden, bias=False, **factory)
        angles = torch.rand(case.seq_len, 1, case.head_dim, **factory)
        self.cosine, self.sine = angles.cos(), angles.sin()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the layer's output, (batch, seq_len, hidden) like its input."""
        case = self.case
        # Queries, keys and values side by side, split by their numbers of heads.
        heads = self.qkv(self.norm_attention(tokens)).view(case.batch, case.seq_len, -1, case.head_dim)
        query, key, value = heads.split((case.heads, case.kv_heads, case.kv_heads), dim=2)
        query, key = self.rotate(query), self.rotate(key)
        mixed = self.attend(query, key, value)
        tokens = tokens + self.out(mixed.reshape(case.batch, case.seq_len, -1))
        gate, up = self.gate_up(self.norm_mlp(tokens)).chunk(2, dim=-1)
        return tokens + self.down(functional.silu(gate) * up)

    def rotate(self, heads: torch.Tensor) -> torch.Tensor:
        """Returns rotary embedding as plain PyTorch code has it: x cos + rotate_half(x) sin (ops.memory_bound,
        rotary_unfused)."""
        first, second = heads.chunk(2, dim=-1)
        return heads * self.cosine + torch.cat((-second, first), dim=-1) * self.sine


def launch_layer(case: LayerCase, device: Device) -> Launched:
    """Returns the forward and backward of a layer with its weights, which leaves no gradients.

    Raises UnsupportedCaseError for an unknown mode, heads that do not divide, and a graph without CUDA.
    """
    if case.mode not in ("eager", "graph"):
        raise UnsupportedCaseError(f"mode {case.mode!r} is neither eager nor graph")
    if case.mode == "graph" and device.kind != "cuda":
        raise UnsupportedCaseError("a CUDA graph needs CUDA")
    if case.heads % case.kv_heads or case.head_dim % 2:
        raise UnsupportedCaseError(f"{case.heads} heads over {case.kv_heads}, of {case.head_dim}: do not divide")
    attend, kernel = best_attention(device)
    run = forward_and_backward(case, attend, device.torch_device)
    # A graph replays the device's work without the host; eager includes the host's launches where these are longer.
    if case.mode == "graph":
        return Launched(case=case, calls=(capture_graph(run),), implementation=f"torch layer, CUDA graph, {kernel}")
    return Launched(case=case, calls=(run,), implementation=f"torch layer, eager, {kernel}")


def forward_and_backward(case: LayerCase, attend: Attend, where: torch.device) -> Callable[[], None]:
    """Returns one micro-batch through the layer and back, with gradients of its input and all its weights."""
    layer = DecoderLayer(case, attend, where)
    tokens = torch.randn(case.batch, case.seq_len, case.hidden, device=where).to(torch_dtype(case.dtype))
    tokens.requires_grad_(True)
    gradient = torch.randn_like(tokens)
    inputs = (tokens, *layer.parameters())

    def run() -> None:
        # grad() returns the gradients instead of adding them to .grad, so that runs are equal.
        torch.autograd.grad(layer(tokens), inputs, gradient)

    return run


def capture_graph(run: Callable[[], None]) -> Call:
    """Returns the same as one graph: the device runs it without the host (torch.cuda.CUDAGraph). The call keeps
    ``run`` and so the layer: a graph has the addresses of the weights that it reads, not the weights."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return Replay(graph=graph, captured=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A graph and the function that was captured."""

    graph: torch.cuda.CUDAGraph
    captured: Callable[[], None]

    def __call__(self) -> None:
        """Runs the graph on the current stream."""
        self.graph.replay()
