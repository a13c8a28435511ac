"""Benchmark: fused attention, forward and backward apart.

Kernels by name: ``flash`` is the best of the GPU's generation, ``flash2`` FlashAttention-2
(profiler.benchmarks.flash_kernels); ``cudnn`` cuDNN's fused attention through torch; ``core`` the matrix products
alone (profiler.benchmarks.attention_core).
``varlen`` packs ``batch`` sequences of ``q_len`` tokens into one row without padding.
"""

import inspect
import warnings
from collections.abc import Callable
from types import ModuleType

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from profdb.cases import AttentionCase
from profiler.benchmarks.attention_core import core_call
from profiler.benchmarks.flash_kernels import CUDNN, FLASH2, chosen, restored
from profiler.benchmarks.launched import OUT_OF_MEMORY, Call, Launched, UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import operand_copies, random_operand
from profiler.device import Device
from spec.dtypes import dtype_bytes

SDPA_BACKENDS = {FLASH2: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}

KERNELS = ("flash", FLASH2, CUDNN, "core")

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def launch_attention(case: AttentionCase, device: Device) -> Launched:
    """Queries, keys, values and the call on them; for the backward also a graph and a gradient."""
    check_attention(case, device)
    if case.kernel == "core":
        call = core_call(case, device.torch_device)
        return Launched(case=case, calls=(call,), implementation="torch.bmm")
    restored()
    runs = chosen(case.kernel, device)
    name = runs.name
    if runs.package is not None:
        forward = flash_attn_forward(case, runs.package, device.torch_device)
    elif case.mask == "window":
        raise UnsupportedCaseError("a sliding window needs the flash-attn package")
    elif case.mask == "varlen":
        forward, name = torch_varlen_forward(case, device.torch_device)
    else:
        forward = sdpa_forward(case, runs.backend)
    token_first = runs.package is not None or case.mask == "varlen"
    copies = operand_copies(attention_bytes(case), device.cache_bytes, most=4)
    calls = tuple(attention_call(case, forward, token_first, device.torch_device) for _ in range(copies))
    return Launched(case=case, calls=calls, implementation=name)


def check_attention(case: AttentionCase, device: Device) -> None:
    """UnsupportedCaseError for what no installed kernel runs as said."""
    if case.kernel not in KERNELS:
        raise UnsupportedCaseError(f"attention kernel {case.kernel!r} is none of {', '.join(KERNELS)}")
    if case.kernel == "cudnn" and device.kind != "cuda":
        raise UnsupportedCaseError("cuDNN attention needs a GPU")
    if case.mask not in ("causal", "full", "window", "varlen"):
        raise UnsupportedCaseError(f"attention mask {case.mask!r}")
    if case.mask == "window" and case.kernel not in ("flash", FLASH2):
        raise UnsupportedCaseError("a sliding window needs the flash-attn package")
    if case.mask == "varlen" and (device.kind != "cuda" or case.kernel not in ("flash", FLASH2)):
        raise UnsupportedCaseError("packed sequences need a flash kernel on a GPU")
    if case.mask == "causal" and case.q_len != case.kv_len:
        raise UnsupportedCaseError("causal attention with as many queries as keys only")


def attention_bytes(case: AttentionCase) -> float:
    """Queries, keys, values and output, once."""
    queries = case.q_len * case.heads * (case.qk_dim + case.v_dim)
    keys = case.kv_len * case.kv_heads * (case.qk_dim + case.v_dim)
    return case.batch * (queries + keys) * dtype_bytes(case.dtype)


def attention_call(case: AttentionCase, forward: Forward, token_first: bool, where: torch.device) -> Call:
    """One attention on its own operands, forward or backward alone."""
    tensors = attention_operands(case, token_first, where)
    if case.direction == "forward":

        def run_forward() -> None:
            with torch.no_grad():
                forward(*tensors)

        run_forward_once_checked(forward, tensors)
        return run_forward
    for tensor in tensors:
        tensor.requires_grad_(True)
    output = run_forward_once_checked(forward, tensors, keep_graph=True)
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, tensors, gradient, retain_graph=True)


def run_forward_once_checked(forward: Forward, tensors: Tensors, *, keep_graph: bool = False) -> torch.Tensor:
    """The first forward; torch says by a RuntimeError (and warnings that repeat it) that a kernel does
    not take these shapes, and releases before 2.5 by a TypeError that they know no grouped heads."""
    try:
        with torch.set_grad_enabled(keep_graph), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return forward(*tensors)
    except OUT_OF_MEMORY:
        raise
    except (RuntimeError, TypeError) as refused:
        raise UnsupportedCaseError(str(refused).splitlines()[0]) from refused


def attention_operands(case: AttentionCase, token_first: bool, where: torch.device) -> Tensors:
    """Queries, keys, values: (batch, heads, tokens, dim) for SDPA, (batch, tokens, heads, dim) or
    (batch * tokens, heads, dim) for packed kernels."""

    def one(tokens: int, heads: int, dim: int) -> torch.Tensor:
        if case.mask == "varlen":
            return random_operand((case.batch * tokens, heads, dim), case.dtype, where)
        stored = random_operand((case.batch, tokens, heads, dim), case.dtype, where)
        return stored if token_first else stored.transpose(1, 2)

    return (
        one(case.q_len, case.heads, case.qk_dim),
        one(case.kv_len, case.kv_heads, case.qk_dim),
        one(case.kv_len, case.kv_heads, case.v_dim),
    )


def sdpa_forward(case: AttentionCase, runs: str) -> Forward:
    """torch's scaled_dot_product_attention held to one backend: it never picks another."""
    backend = SDPA_BACKENDS[runs]
    grouped = {"enable_gqa": True} if case.heads != case.kv_heads else {}

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=case.mask == "causal", **grouped)

    return forward


def packed_offsets(case: AttentionCase, tokens: int, where: torch.device) -> torch.Tensor:
    """Where each packed sequence starts, and the end."""
    return torch.arange(0, case.batch * tokens + 1, tokens, dtype=torch.int32, device=where)


def flash_attn_forward(case: AttentionCase, package: ModuleType, where: torch.device) -> Forward:
    """A flash-attn package's kernel for the case's mask; some releases return statistics beside the result."""

    def result(found: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
        return found if isinstance(found, torch.Tensor) else found[0]

    if case.mask == "varlen":
        starts_q = packed_offsets(case, case.q_len, where)
        starts_k = packed_offsets(case, case.kv_len, where)
        return lambda query, key, value: result(
            package.flash_attn_varlen_func(
                query, key, value, starts_q, starts_k, case.q_len, case.kv_len, causal=True
            )
        )
    # a window of w keys: the token itself and w - 1 before it
    window = (case.window - 1, 0) if case.mask == "window" else (-1, -1)
    causal = case.mask in ("causal", "window")
    return lambda query, key, value: result(
        package.flash_attn_func(query, key, value, causal=causal, window_size=window)
    )


def torch_varlen_forward(case: AttentionCase, where: torch.device) -> tuple[Forward, str]:
    """torch's packed attention (torch.nn.attention.varlen, since 2.10)."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as absent:
        raise UnsupportedCaseError(f"torch {torch.__version__} has no packed attention") from absent
    starts_q = packed_offsets(case, case.q_len, where)
    starts_k = packed_offsets(case, case.kv_len, where)
    known = inspect.signature(varlen_attn).parameters
    # causal was a flag in 2.10 and is a window that looks back without end since
    labels: dict[str, object] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if case.heads != case.kv_heads:
        if "enable_gqa" not in known:
            raise UnsupportedCaseError(f"torch {torch.__version__} packs equal heads only")
        labels["enable_gqa"] = True

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        packed = varlen_attn(query, key, value, starts_q, starts_k, case.q_len, case.kv_len, **labels)
        return packed if isinstance(packed, torch.Tensor) else packed[0]

    return forward, "torch.nn.attention.varlen"
