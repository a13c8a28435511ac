"""Benchmark: fused attention, forward and backward separately.

Kernels by name: ``flash`` is the best of the GPU's generation, ``flash2`` FlashAttention-2
(profiler.benchmarks.flash_kernels); ``cudnn`` cuDNN's fused attention through torch; ``te`` Transformer Engine's choice; ``core`` the matrix products
alone: scores and context in the forward, the four products of the gradients in the backward. Mask and softmax between
them are a memory-bound kernel of their own (ops.memory_bound, masked_softmax).
``varlen`` packs ``batch`` sequences of ``q_len`` tokens into one row without padding.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from profdb.cases import AttentionCase
from profiler.benchmarks import transformer_engine
from profiler.benchmarks.flash_kernels import (
    CUDNN,
    EFFICIENT,
    FLASH2,
    PACKED_MASKS,
    TE,
    FlashKernel,
    candidates,
    use_kernel,
)
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError, call_or_refuse
from profiler.benchmarks.torch_dtypes import operand_copies, random_operand
from profiler.device import Device
from spec.dtypes import dtype_bytes

SDPA_BACKENDS = {
    FLASH2: SDPBackend.FLASH_ATTENTION,
    CUDNN: SDPBackend.CUDNN_ATTENTION,
    EFFICIENT: SDPBackend.EFFICIENT_ATTENTION,
}

KERNELS = ("flash", FLASH2, CUDNN, TE, "core")

EVERYWHERE = (-1, -1)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Order(Enum):
    """Layout of operands: (batch, heads, tokens, dim) as views of tokens first, (batch, tokens, heads, dim), or
    sequences end to end, (batch * tokens, heads, dim)."""

    HEADS = "heads"
    TOKENS = "tokens"
    PACKED = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFunction:
    """A kernel as a function of queries, keys and values in an ``order``, and its name for the sample."""

    forward: Forward
    name: str
    order: Order


def launch_attention(case: AttentionCase, device: Device) -> Launched:
    """Returns the call on queries, keys and values; for the backward also with a graph and a gradient.

    The kernel is the first of those behind its name that accepts the case. Raises UnsupportedCaseError with the last
    one's reason where none does.
    """
    check_attention(case, device)
    if case.kernel == "core":
        call = core_call(case, device.torch_device)
        return Launched(case=case, calls=(call,), implementation="torch.bmm")
    copies = operand_copies(attention_bytes(case), device.cache_bytes, most=4)
    refused = UnsupportedCaseError(f"no kernel runs {case.kernel} with the mask {case.mask}")
    for runs in candidates(case.kernel, case.mask, device):
        # torch's flash kernel is a global setting: each candidate sets its own before its first call.
        use_kernel(runs)
        try:
            function = attention_function(case, runs, device.torch_device)
            first = attention_call(case, function, device.torch_device)
        except UnsupportedCaseError as refusal:
            refused = refusal
            continue
        # Further copies of the operands, so that together they exceed the cache.
        more = (attention_call(case, function, device.torch_device) for _ in range(copies - 1))
        return Launched(case=case, calls=(first, *more), implementation=function.name)
    raise refused


def attention_function(case: AttentionCase, runs: FlashKernel, where: torch.device) -> AttentionFunction:
    """Returns the function that calls a kernel for the case's mask; raises UnsupportedCaseError where this torch has
    no such function."""
    if runs.package is not None:
        # flash-attn's functions take tokens before heads; the packed one has no batch dimension.
        order = Order.PACKED if case.mask == "varlen" else Order.TOKENS
        if runs.backend == TE:
            offsets = (packed_offsets(case, case.q_len, where), packed_offsets(case, case.kv_len, where))
            forward = transformer_engine.attention_forward(case, runs.package, offsets)
        else:
            forward = flash_attn_forward(case, runs.package, where)
        return AttentionFunction(forward=forward, name=runs.name, order=order)
    if case.mask in PACKED_MASKS:
        name = f"torch.nn.attention.varlen {runs.generation}".strip()
        return AttentionFunction(forward=torch_varlen_forward(case, where), name=name, order=Order.PACKED)
    return AttentionFunction(forward=sdpa_forward(case, runs.backend), name=runs.name, order=Order.HEADS)


def check_attention(case: AttentionCase, device: Device) -> None:
    """Raises UnsupportedCaseError for a case that no installed kernel runs as it is."""
    if case.kernel not in KERNELS:
        raise UnsupportedCaseError(f"attention kernel {case.kernel!r} is none of {', '.join(KERNELS)}")
    if case.kernel == "cudnn" and device.kind != "cuda":
        raise UnsupportedCaseError("cuDNN attention needs a GPU")
    if case.mask not in ("causal", "full", "window", "varlen"):
        raise UnsupportedCaseError(f"attention mask {case.mask!r}")
    # scaled_dot_product_attention has neither offsets of sequences nor windows.
    if case.mask in PACKED_MASKS and (device.kind != "cuda" or case.kernel not in ("flash", FLASH2, TE)):
        raise UnsupportedCaseError("packed sequences and sliding windows need a flash kernel on a GPU")
    if case.mask == "causal" and case.q_len != case.kv_len:
        raise UnsupportedCaseError("causal attention with as many queries as keys only")


def attention_bytes(case: AttentionCase) -> float:
    """Returns the bytes of queries, keys, values and output, once."""
    queries = case.q_len * case.heads * (case.qk_dim + case.v_dim)
    keys = case.kv_len * case.kv_heads * (case.qk_dim + case.v_dim)
    return case.batch * (queries + keys) * dtype_bytes(case.dtype)


def attention_call(case: AttentionCase, function: AttentionFunction, where: torch.device) -> Call:
    """Returns one attention call on its own operands, forward or backward alone. Each runs once here, as in a
    training step: some kernels accept a shape only where its gradient is not needed. On a GPU the timed forward is
    that of training as well: without a gradient to follow, cuDNN's and the memory-efficient kernel leave out the sums
    of the softmax that it needs (PyTorch, aten/src/ATen/native/transformers/attention.cpp, should_compute_logsumexp)."""
    forward, tensors = function.forward, attention_operands(case, function.order, where)
    for tensor in tensors:
        tensor.requires_grad_(True)
    output = call_or_refuse(lambda: forward(*tensors))
    if case.direction == "forward":
        # The graph would keep its tensors while the forward is timed.
        del output
        on_gpu = where.type == "cuda"

        def run_forward() -> None:
            with torch.set_grad_enabled(on_gpu):
                forward(*tensors)

        return run_forward
    gradient = torch.randn_like(output)

    restore = transformer_engine.restores_saved(output)

    def run_backward() -> tuple[torch.Tensor, ...]:
        restore()
        return torch.autograd.grad(output, tensors, gradient, retain_graph=True)

    # Transformer Engine's may run only once, unless what it saved is restored.
    for _ in range(2 if case.kernel == TE else 1):
        call_or_refuse(run_backward)
    return run_backward


def attention_operands(case: AttentionCase, order: Order, where: torch.device) -> Tensors:
    """Returns queries, keys, values."""

    def one(tokens: int, heads: int, dim: int) -> torch.Tensor:
        if order is Order.PACKED:
            return random_operand((case.batch * tokens, heads, dim), case.dtype, where)
        stored = random_operand((case.batch, tokens, heads, dim), case.dtype, where)
        return stored if order is Order.TOKENS else stored.transpose(1, 2)

    return (
        one(case.q_len, case.heads, case.qk_dim),
        one(case.kv_len, case.kv_heads, case.qk_dim),
        one(case.kv_len, case.kv_heads, case.v_dim),
    )


def sdpa_forward(case: AttentionCase, runs: str) -> Forward:
    """Returns torch's scaled_dot_product_attention restricted to one backend, so that it never selects another."""
    backend = SDPA_BACKENDS[runs]
    # Older torch lacks the argument; with equal numbers of heads it is not needed.
    grouped = {"enable_gqa": True} if case.heads != case.kv_heads else {}

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=case.mask == "causal", **grouped)

    return forward


def packed_offsets(case: AttentionCase, tokens: int, where: torch.device) -> torch.Tensor:
    """Returns the offsets of the packed sequences: the start of each, and the end."""
    return torch.arange(0, case.batch * tokens + 1, tokens, dtype=torch.int32, device=where)


def attention_output(result: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the output of a kernel; some releases return statistics with it."""
    return result if isinstance(result, torch.Tensor) else result[0]


def flash_attn_forward(case: AttentionCase, package: ModuleType, where: torch.device) -> Forward:
    """Returns a flash-attn package's kernel for the case's mask."""
    if case.mask == "varlen":
        starts_q = packed_offsets(case, case.q_len, where)
        starts_k = packed_offsets(case, case.kv_len, where)
        return lambda query, key, value: attention_output(
            package.flash_attn_varlen_func(
                query,
                key,
                value,
                cu_seqlens_q=starts_q,
                cu_seqlens_k=starts_k,
                max_seqlen_q=case.q_len,
                max_seqlen_k=case.kv_len,
                causal=True,
            )
        )
    window = attention_window(case) if case.mask == "window" else EVERYWHERE
    # A window's upper end is the token itself: causal as well.
    causal = case.mask in ("causal", "window")
    return lambda query, key, value: attention_output(
        package.flash_attn_func(query, key, value, causal=causal, window_size=window)
    )


def attention_window(case: AttentionCase) -> tuple[int, int]:
    """Returns the number of keys (before, after) a token that it sees besides itself: all before it, or w - 1 of a
    window of w keys."""
    return (case.window - 1, 0) if case.mask == "window" else (-1, 0)


def torch_varlen_forward(case: AttentionCase, where: torch.device) -> Forward:
    """Returns torch's packed attention (torch.nn.attention.varlen); sequences have one length where the mask is a
    window."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as absent:
        raise UnsupportedCaseError(f"torch {torch.__version__} has no packed attention") from absent
    starts_q = packed_offsets(case, case.q_len, where)
    starts_k = packed_offsets(case, case.kv_len, where)
    parameters = inspect.signature(varlen_attn).parameters
    if "window_size" not in parameters:
        raise UnsupportedCaseError(f"packed attention of torch {torch.__version__} has no window_size")
    options: dict[str, object] = {"window_size": attention_window(case)}
    # torch 2.11 and 2.12 pass fewer key heads to the kernel without this option.
    if case.heads != case.kv_heads and "enable_gqa" in parameters:
        options["enable_gqa"] = True

    run: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]] = varlen_attn

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        packed = run(query, key, value, starts_q, starts_k, case.q_len, case.kv_len, **options)
        return attention_output(packed)

    return forward


def core_call(case: AttentionCase, where: torch.device) -> Call:
    """Returns the products of all heads, with keys and values repeated for the heads that share them."""
    products = case.batch * case.heads
    query = random_operand((products, case.q_len, case.qk_dim), case.dtype, where)
    key = random_operand((products, case.kv_len, case.qk_dim), case.dtype, where)
    value = random_operand((products, case.kv_len, case.v_dim), case.dtype, where)
    weights = random_operand((products, case.q_len, case.kv_len), case.dtype, where)
    gradient = random_operand((products, case.q_len, case.v_dim), case.dtype, where)
    # The score matrix is reused: at long sequences it is by far the largest array.
    scores = torch.empty_like(weights)

    def forward() -> None:
        torch.bmm(query, key.transpose(1, 2), out=scores)
        torch.bmm(weights, value)

    def backward() -> None:
        # dV = P^T dO; dP = dO V^T; dQ = dS K; dK = dS^T Q, with the weights in place of dS.
        torch.bmm(weights.transpose(1, 2), gradient)
        torch.bmm(gradient, value.transpose(1, 2), out=scores)
        torch.bmm(weights, key)
        torch.bmm(weights.transpose(1, 2), query)

    return forward if case.direction == "forward" else backward


Attend = Forward
"""Causal attention of (batch, tokens, heads, head_dim) queries to keys and values with fewer heads."""


def best_attention(device: Device) -> tuple[Attend, str]:
    """Returns the best causal kernel of this GPU, with torch's flash kernel replaced where necessary, and its name."""
    runs = candidates("flash", "causal", device)[0]
    use_kernel(runs)
    if runs.package is not None:
        package = runs.package

        def by_package(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return attention_output(package.flash_attn_func(query, key, value, causal=True))

        return by_package, runs.name
    backend = SDPA_BACKENDS[runs.backend]

    def by_torch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # torch wants (batch, heads, tokens, dim).
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
        with sdpa_kernel(backend):
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, **grouped)
        return mixed.transpose(1, 2)

    return by_torch, runs.name
