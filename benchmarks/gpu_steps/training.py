"""A Llama-like decoder in plain PyTorch modules, and one optimizer step of it in mixed precision.

RMSNorm, grouped-query attention with rotary embedding, SwiGLU; a bf16 model, an fp32 master copy (arXiv 1710.03740),
fused AdamW.
"""

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_steps.case import StepCase
from profdb.cases import LayerCase
from profiler.benchmarks.attention import best_attention
from profiler.benchmarks.layer import DecoderLayer
from profiler.device import Device

MOST_NORM = 1.0


class Decoder(torch.nn.Module):
    """Embedding, layers (profiler.benchmarks.layer), final norm and an untied head; ``recompute`` runs each layer's
    forward again in the backward."""

    def __init__(self, case: StepCase, device: Device) -> None:
        super().__init__()
        self.recompute = case.recompute
        shape, attend = case.shape, best_attention(device)[0]
        layer = LayerCase(
            batch=case.micro_batch,
            seq_len=shape.seq_len,
            hidden=shape.hidden,
            ffn_hidden=shape.ffn,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.hidden // shape.heads,
        )
        self.embedding = torch.nn.Embedding(shape.vocab, shape.hidden)
        self.layers = torch.nn.ModuleList(DecoderLayer(layer, attend, device.torch_device) for _ in range(shape.layers))
        self.norm = torch.nn.RMSNorm(shape.hidden)
        self.output = torch.nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Hidden states of (batch, tokens) words, before the final norm."""
        tokens: torch.Tensor = self.embedding(words)
        for layer in self.layers:
            tokens = checkpoint(layer, tokens, use_reentrant=False) if self.recompute else layer(tokens)
        return tokens

    def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the next words, from fp32 logits."""
        logits = self.output(self.norm(tokens))
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class PlainTrainer:
    """A model with its optimizer on one device, and one batch of random words that every step takes."""

    def __init__(self, case: StepCase, device: Device) -> None:
        where = device.torch_device
        with torch.device(where):
            model = Decoder(case, device)
        self.model = model.bfloat16()
        self.loss = self.model.loss
        if case.compiled:
            for layer in self.model.layers:
                layer.compile()
            self.loss = torch.compile(self.loss)
        self.weights = list(self.model.parameters())
        self.masters = [weight.detach().float() for weight in self.weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-5, weight_decay=0.1, fused=True)
        count = (case.num_micro, case.micro_batch, case.shape.seq_len)
        self.words = torch.randint(case.shape.vocab, count, device=where)
        self.labels = torch.randint(case.shape.vocab, count, device=where)

    def passes(self) -> None:
        """Forward and backward of every micro-batch; gradients are made by the first and added to by the others."""
        for words, labels in zip(self.words, self.labels, strict=True):
            self.loss(self.model(words), labels).backward()

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
