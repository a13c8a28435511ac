"""The memory-bound kernels of ops.memory_bound as torch functions: operands, forward, backward."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from profdb.cases import MemoryBoundCase
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import random_operand
from profiler.cases.model_widths import TINY_MODEL
from spec.dtypes import dtype_bytes

Operands = tuple[torch.Tensor, ...]

EMBEDDING_TABLE_ROWS = 32000
"""Rows of the embedding table: the vocabulary of Llama 2 (arXiv 2307.09288 sec. 2.1)."""
DROPOUT = 0.1
ROTATED_HEAD = 128
"""Channels of one rotated head (Llama 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFunction:
    """One kernel.

    ``operands`` builds tensors from (case, device); ``forward`` runs on them. ``backward`` is a function of
    (operands, gradient) where autograd would run something else than the kernel; None lets autograd differentiate
    ``forward``. ``one_kernel``: torch runs it as a single kernel already. ``stand_in`` names the operation that is
    timed instead, where the kernel never runs by itself; it moves the same bytes.
    """

    operands: Callable[[MemoryBoundCase, torch.device], Operands]
    forward: Callable[..., torch.Tensor]
    backward: Callable[..., object] | None = None
    one_kernel: bool = False
    stand_in: str = ""


def activation(case: MemoryBoundCase, where: torch.device) -> torch.Tensor:
    """Returns rows x width in the case's dtype."""
    return random_operand((case.rows, case.width), case.dtype, where)


def one_activation(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns the activation alone."""
    return (activation(case, where),)


def two_activations(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns two activations of the same shape."""
    return activation(case, where), activation(case, where)


def two_halves(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns two activations of the same shape, side by side in one array as a fused product writes them."""
    both = random_operand((case.rows, 2 * case.width), case.dtype, where)
    return both[:, : case.width], both[:, case.width :]


def channels(case: MemoryBoundCase, where: torch.device) -> torch.Tensor:
    """Returns one number per channel."""
    return random_operand((case.width,), case.dtype, where)


def with_channel_weight(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns an activation and one number per channel."""
    return activation(case, where), channels(case, where)


def with_weight_and_bias(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns an activation and two numbers per channel."""
    return activation(case, where), channels(case, where), channels(case, where)


def with_angles(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns heads to rotate, and the cosine and sine of every position."""
    # Widths that are no multiple of a head's have smaller heads.
    head = math.gcd(case.width, ROTATED_HEAD)
    heads = random_operand((case.rows, case.width // head, head), case.dtype, where)
    angles = torch.randn((case.rows, 1, head // 2), device=where)
    return heads, angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Returns heads with rotary position embedding on halves (RoFormer, arXiv 2104.09864 eq. 34)."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns RMSNorm (arXiv 1910.07467 eq. 4), one elementwise operation after another, in fp32 inside."""
    x_fp32 = x.float()
    scaled = x_fp32 * torch.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * scaled.to(x.dtype)


def plain_rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Returns ``rotate`` as x cos + rotate_half(x) sin with slices, as in Hugging Face models; angles are constants."""
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    whole = [torch.cat((angle, angle), dim=-1).detach() for angle in (cosine, sine)]
    return heads * whole[0] + turned * whole[1]


def plain_softmax(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Returns scale, mask, and a softmax in fp32."""
    # 0.125: 1 / sqrt(64), the scale of a head of 64.
    return torch.softmax((scores * 0.125).masked_fill(hidden, -1e4).float(), dim=-1).to(scores.dtype)


def split_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Returns the softmax by the passes of Megatron-LM's cross-entropy over its part of the vocabulary
    (mpu/cross_entropy.py)."""
    logits_fp32 = logits.float()
    logits_fp32.sub_(logits_fp32.max(dim=-1, keepdim=True)[0])
    torch.exp(logits_fp32, out=logits_fp32)
    return logits_fp32.div_(logits_fp32.sum(dim=-1, keepdim=True))


def with_softmax(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns logits and their softmax in fp32."""
    return activation(case, where), torch.rand((case.rows, case.width), device=where)


def with_residual(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns an activation, a bias and the residual."""
    return activation(case, where), channels(case, where), activation(case, where)


def with_mask(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns scores and a mask of the hidden keys."""
    # The last eighth of the keys is hidden: a mask of both values.
    hidden = torch.arange(case.width, device=where) >= max(case.width - case.width // 8, 1)
    return activation(case, where), hidden


def with_targets(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns logits and the target token of every row."""
    return activation(case, where), torch.randint(case.width, (case.rows,), device=where)


def with_table(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns a table, whose size its gradient has, and the token of every row; on a processor the tiny model's
    table."""
    rows = TINY_MODEL.vocab if where.type == "cpu" else EMBEDDING_TABLE_ROWS
    words = torch.randint(rows, (case.rows,), device=where)
    return random_operand((rows, case.width), case.dtype, where), words


def with_fp32_sum(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns an fp32 sum and a 16-bit array of its shape: 4 bytes read, 2 written."""
    if dtype_bytes(case.dtype) != 2.0:
        raise UnsupportedCaseError(f"sums in fp32 of {case.dtype} gradients; 16-bit ones are measured")
    return random_operand((case.rows, case.width), "fp32", where), activation(case, where)


def with_probabilities(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns rows of experts, a bias, and the router's probability of every row."""
    chance = random_operand((case.rows, 1), case.dtype, where)
    return *with_channel_weight(case, where), chance


def clamp_glu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Returns the gate limited from above and up limited on both sides (gpt-oss: 7), in one array."""
    return torch.cat((gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)), dim=-1)


def add_expert_bias(x: torch.Tensor, bias: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Returns a bias times each row's probability added to two experts' rows, one expert after another."""
    parts = zip(x.chunk(2), chance.chunk(2), strict=True)
    return torch.cat([rows + bias * share for rows, share in parts]).to(x.dtype)


def with_order(case: MemoryBoundCase, where: torch.device) -> Operands:
    """Returns rows and their order by expert."""
    return activation(case, where), torch.randperm(case.rows, device=where)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns torch's RMSNorm of each row."""
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Returns torch's LayerNorm of each row."""
    return functional.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


KERNEL_FUNCTIONS: dict[str, KernelFunction] = {
    # A framework's fused norm and the compiler's read a row once; torch's own does not reach the rate of memory.
    "rmsnorm": KernelFunction(operands=with_channel_weight, forward=rms_norm),
    "layernorm": KernelFunction(operands=with_weight_and_bias, forward=layer_norm),
    "rmsnorm_torch": KernelFunction(
        operands=with_channel_weight,
        forward=rms_norm,
        # Older torch composes RMSNorm of several kernels.
        one_kernel=hasattr(torch.ops.aten, "_fused_rms_norm"),
    ),
    "layernorm_torch": KernelFunction(operands=with_weight_and_bias, forward=layer_norm, one_kernel=True),
    "rotary": KernelFunction(operands=with_angles, forward=rotate),
    **{
        name: KernelFunction(operands=two_activations, forward=lambda gate, up: functional.silu(gate) * up)
        for name in ("swiglu", "swiglu_unfused")
    },
    "causal_conv1d": KernelFunction(
        operands=one_activation,
        forward=functional.silu,
        one_kernel=True,
        stand_in="torch SiLU: the bytes of a convolution over a few tokens that ends in it",
    ),
    "gelu": KernelFunction(
        operands=one_activation, forward=lambda x: functional.gelu(x, approximate="tanh"), one_kernel=True
    ),
    "add": KernelFunction(
        operands=two_activations,
        forward=torch.add,
        backward=lambda operands, gradient: torch.add(operands[0], gradient),
        one_kernel=True,
    ),
    "bias_dropout_add": KernelFunction(
        operands=with_residual, forward=lambda x, bias, residual: functional.dropout(x + bias, DROPOUT, True) + residual
    ),
    # The gradient of a bias is a sum over rows.
    "bias": KernelFunction(
        operands=with_channel_weight,
        forward=torch.add,
        backward=lambda operands, gradient: gradient.sum(0),
        one_kernel=True,
    ),
    "masked_softmax": KernelFunction(
        operands=with_mask, forward=lambda x, hidden: torch.softmax(x.masked_fill(hidden, -torch.inf), dim=-1)
    ),
    "dropout": KernelFunction(
        operands=one_activation, forward=lambda x: functional.dropout(x, DROPOUT, True), one_kernel=True
    ),
    "cross_entropy": KernelFunction(
        operands=with_softmax,
        forward=lambda logits, softmax: split_softmax(logits),
        backward=lambda operands, gradient: operands[1].mul_(gradient[:, :1]).to(operands[0].dtype),
        one_kernel=True,
    ),
    "cross_entropy_unfused": KernelFunction(
        operands=with_targets, forward=lambda logits, targets: functional.cross_entropy(logits.float(), targets)
    ),
    **{
        loss: KernelFunction(operands=with_targets, forward=functional.cross_entropy)
        for loss in ("cross_entropy_16bit", "cross_entropy_fused")
    },
    "embedding": KernelFunction(
        operands=with_table, forward=lambda table, tokens: functional.embedding(tokens, table), one_kernel=True
    ),
    # 16 bits to fp32 forward, back to 16 bits backward.
    "cast": KernelFunction(
        operands=one_activation,
        forward=lambda x: x.float(),
        backward=lambda operands, gradient: gradient.to(operands[0].dtype),
        one_kernel=True,
    ),
    "copy": KernelFunction(
        operands=two_activations,
        forward=lambda x, into: into.copy_(x),
        backward=lambda operands, gradient: operands[1].copy_(operands[0]),
        one_kernel=True,
    ),
    "rmsnorm_unfused": KernelFunction(operands=with_channel_weight, forward=plain_rms_norm),
    "rotary_unfused": KernelFunction(operands=with_angles, forward=plain_rotate),
    "masked_softmax_unfused": KernelFunction(operands=with_mask, forward=plain_softmax),
    # Accumulation of gradients: the forward only makes a gradient of the right shape, the backward is timed.
    "accumulate": KernelFunction(
        operands=two_activations,
        forward=torch.add,
        backward=lambda operands, gradient: operands[0].add_(operands[1]),
        one_kernel=True,
    ),
    # The GEMM itself adds to the gradient: only its additional traffic is timed, by a stand-in.
    "accumulate_16bit": KernelFunction(
        operands=two_activations,
        forward=lambda total, part: part,
        backward=lambda operands, gradient: torch.linalg.vector_norm(operands[0]),
        one_kernel=True,
        stand_in="torch norm: a read of the sum that a GEMM adds to",
    ),
    "accumulate_wide": KernelFunction(
        operands=with_fp32_sum,
        forward=lambda total, part: part,
        backward=lambda operands, gradient: operands[0].add_(operands[1]),
        one_kernel=True,
    ),
    "accumulate_fp32": KernelFunction(
        operands=with_fp32_sum,
        forward=lambda total, part: part,
        backward=lambda operands, gradient: operands[1].copy_(operands[0]),
        one_kernel=True,
        stand_in="torch fp32 to 16-bit copy: the bytes that a GEMM moves more when it adds to an fp32 sum",
    ),
    "norm_reduce": KernelFunction(operands=one_activation, forward=torch.linalg.vector_norm, one_kernel=True),
    "fill": KernelFunction(operands=one_activation, forward=lambda buffer: buffer.zero_(), one_kernel=True),
    "clamp_glu_unfused": KernelFunction(operands=two_halves, forward=clamp_glu),
    "expert_bias_unfused": KernelFunction(operands=with_probabilities, forward=add_expert_bias),
    "expert_bias_fp32_unfused": KernelFunction(
        operands=with_probabilities, forward=lambda x, bias, chance: add_expert_bias(x, bias, chance.float())
    ),
    # Rows into the order of their experts; the backward gathers by the same order, whose cost is equal.
    "permute": KernelFunction(
        operands=with_order,
        forward=lambda x, order: x.index_select(0, order),
        backward=lambda operands, gradient: gradient.index_select(0, operands[1]),
        one_kernel=True,
    ),
}
