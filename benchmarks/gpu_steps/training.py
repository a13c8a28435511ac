"""A Llama-like decoder in plain PyTorch modules, and one optimizer step of it in mixed precision.

RMSNorm, grouped-query attention with rotary embedding, SwiGLU; a bf16 model, an fp32 master copy (arXiv 1710.03740),
fused AdamW.
"""

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_steps.case import DecoderShape, StepCase
from profiler.benchmarks.attention import Attend, best_attention
from profiler.device import Device

ROTARY_BASE = 500000.0  # Llama 3; changes no time
EPSILON = 1e-5
MOST_NORM = 1.0


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

    def __init__(self, shape: DecoderShape, attend: Attend) -> None:
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
        mixed = self.attend(rotate(query, cosine, sine), rotate(key, cosine, sine), value)
        tokens = tokens + self.out(mixed.reshape(batch, length, -1))
        gate, up = self.gate_up(self.norm_mlp(tokens)).chunk(2, dim=-1)
        return tokens + self.down(functional.silu(gate) * up)


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x cos + rotate_half(x) sin (RoFormer, arXiv 2104.09864 eq. 34), as the Hugging Face models write it."""
    half = heads.shape[-1] // 2
    rotated_half = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine + rotated_half * sine


class Decoder(torch.nn.Module):
    """Embedding, layers, final norm and an untied head; ``recompute`` runs each layer's forward again in the
    backward."""

    def __init__(self, shape: DecoderShape, attend: Attend, *, recompute: bool) -> None:
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


def angles(shape: DecoderShape, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every position in bf16, (tokens, 1, head_dim)."""
    head = shape.hidden // shape.heads
    frequencies = ROTARY_BASE ** -(torch.arange(0, head, 2, device=where) / head)
    turns = torch.outer(torch.arange(shape.seq_len, device=where), frequencies)
    whole = torch.cat((turns, turns), dim=-1).unsqueeze(1)
    return whole.cos().bfloat16(), whole.sin().bfloat16()


class PlainTrainer:
    """A model with its optimizer on one device, and one batch of random words that every step takes."""

    def __init__(self, case: StepCase, device: Device) -> None:
        where = device.torch_device
        with torch.device(where):
            model = Decoder(case.shape, best_attention(device)[0], recompute=case.recompute)
        self.model = model.bfloat16()
        self.loss = self.model.loss
        if case.compiled:
            for layer in self.model.layers:
                layer.compile()
            self.loss = torch.compile(self.loss)
        self.weights = list(self.model.parameters())
        self.masters = [weight.detach().float() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-5, weight_decay=0.1, fused=True)
        self.angles = angles(case.shape, where)
        count = (case.num_micro, case.micro_batch, case.shape.seq_len)
        self.words = torch.randint(case.shape.vocab, count, device=where)
        self.labels = torch.randint(case.shape.vocab, count, device=where)

    def passes(self) -> None:
        """Forward and backward of every micro-batch; gradients are made by the first and added to by the others."""
        for words, labels in zip(self.words, self.labels, strict=True):
            self.loss(self.model(words, *self.angles), labels).backward()

    def flat_gradients(self) -> torch.Tensor:
        """All gradients copied into one flat tensor."""
        return _flatten_dense_tensors([weight.grad for weight in self.weights])

    def average_gradients(self, flat: torch.Tensor) -> None:
        """Gradients out of the flat sum over all ranks, divided by their number."""
        gradients = [weight.grad for weight in self.weights]
        share = 1.0 / dist.get_world_size()
        for gradient, total in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
            torch.mul(total, share, out=gradient)

    @torch.no_grad()
    def update(self) -> None:
        """Gradients to fp32, clipped; the masters stepped, and their values handed to the model. Those in 16
        bits are kept until then, as by frameworks whose optimizer is given copies of its own."""
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad = weight.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, MOST_NORM, foreach=True)
        self.optimizer.step()
        torch._foreach_copy_(self.weights, self.masters)
        self.optimizer.zero_grad()
        self.model.zero_grad()
