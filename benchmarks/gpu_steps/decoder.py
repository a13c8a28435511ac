"""A Llama-like decoder in plain PyTorch modules: RMSNorm, grouped-query attention with rotary embedding, SwiGLU."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_steps.case import Shape
from profiler.benchmarks.attention import Attend

ROTARY_BASE = 500000.0  # Llama 3; changes no time
EPSILON = 1e-5


class Norm(torch.nn.Module):
    """RMSNorm (arXiv 1910.07467) over ``hidden`` channels."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return functional.rms_norm(tokens, self.weight.shape, self.weight, EPSILON)


class Layer(torch.nn.Module):
    """One decoder layer: queries, keys and values in one product, gate and up in another."""

    def __init__(self, shape: Shape, attend: Attend) -> None:
        super().__init__()
        head = shape.hidden // shape.heads
        self.widths = [shape.heads * head, shape.kv_heads * head, shape.kv_heads * head]
        self.head = head
        self.attend = attend
        self.norm_attention = Norm(shape.hidden)
        self.qkv = torch.nn.Linear(shape.hidden, sum(self.widths), bias=False)
        self.out = torch.nn.Linear(self.widths[0], shape.hidden, bias=False)
        self.norm_mlp = Norm(shape.hidden)
        self.gate_up = torch.nn.Linear(shape.hidden, 2 * shape.ffn, bias=False)
        self.down = torch.nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, tokens: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, hidden) to the same; angles are (tokens, 1, head_dim)."""
        batch, length, _ = tokens.shape
        parts = self.qkv(self.norm_attention(tokens)).split(self.widths, dim=-1)
        query, key, value = (part.view(batch, length, -1, self.head) for part in parts)
        mixed = self.attend(rotated(query, cosine, sine), rotated(key, cosine, sine), value)
        tokens = tokens + self.out(mixed.reshape(batch, length, -1))
        gate, up = self.gate_up(self.norm_mlp(tokens)).chunk(2, dim=-1)
        return tokens + self.down(functional.silu(gate) * up)


def rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x cos + rotate_half(x) sin (RoFormer, arXiv 2104.09864 eq. 34), as the Hugging Face models write it."""
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine + turned * sine


class Decoder(torch.nn.Module):
    """Embedding, layers, final norm and an untied head; ``recompute`` runs each layer's forward again in the
    backward."""

    def __init__(self, shape: Shape, attend: Attend, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = torch.nn.Embedding(shape.vocab, shape.hidden)
        self.layers = torch.nn.ModuleList(Layer(shape, attend) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.output = torch.nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, words: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Hidden states of (batch, tokens) words, before the final norm."""
        tokens: torch.Tensor = self.embedding(words)
        for layer in self.layers:
            if self.recompute:
                tokens = checkpoint(layer, tokens, cosine, sine, use_reentrant=False)
            else:
                tokens = layer(tokens, cosine, sine)
        return tokens

    def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the next words, from fp32 logits."""
        logits = self.output(self.norm(tokens))
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def angles(shape: Shape, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position in bf16, (tokens, 1, head_dim)."""
    head = shape.hidden // shape.heads
    frequencies = ROTARY_BASE ** -(torch.arange(0, head, 2, device=where) / head)
    turns = torch.outer(torch.arange(shape.seq_len, device=where), frequencies)
    whole = torch.cat((turns, turns), dim=-1).unsqueeze(1)
    return whole.cos().bfloat16(), whole.sin().bfloat16()
