"""Causal attention inside a layer by the kernel that a profile of the device holds as ``flash``."""

from collections.abc import Callable

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from profiler.benchmarks.attention import SDPA_BACKENDS
from profiler.benchmarks.flash_kernels import candidates, made_current
from profiler.device import Device

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Causal attention of (batch, tokens, heads, head_dim) queries to keys and values with fewer heads."""


def best_attention(device: Device) -> tuple[Attend, str]:
    """The kernel, torch's flash kernel being replaced where that is meant, and its name."""
    runs = candidates("flash", "causal", device)[0]
    made_current(runs)
    if runs.package is not None:
        package = runs.package

        def by_package(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            found = package.flash_attn_func(query, key, value, causal=True)
            return found if isinstance(found, torch.Tensor) else found[0]

        return by_package, runs.name
    backend = SDPA_BACKENDS[runs.backend]

    def by_torch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
        with sdpa_kernel(backend):
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, **grouped)
        return mixed.transpose(1, 2)

    return by_torch, runs.name
