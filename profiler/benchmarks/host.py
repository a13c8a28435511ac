"""Benchmarks of the host: copies between its memory and the device, and its time to issue work.

Issuing work is measured with operands too small to matter.

``launch``: one kernel launch. ``call``: the forward of one linear module, recorded for its backward.
``layer``: forward and backward of one decoder layer run operation by operation. ``micro_batch``: embedding,
head, loss and their backward, without any layers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from profdb.cases import HostCase, HostCopyCase
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.device import Device
from profiler.distributed.world import World

TINY_HIDDEN = 64
TINY_TOKENS = 8
TINY_VOCAB = 128


def launch_host(case: HostCase, device: Device) -> Launched:
    """Returns the call whose wall time is the host's cost of one launch, call, layer or micro-batch."""
    where = device.torch_device
    # Each builder makes its operands once and returns the call that is timed.
    builders: dict[str, Callable[[torch.device], Callable[[], object]]] = {
        "launch": one_launch,
        "call": one_call,
        "layer": one_layer,
        "micro_batch": one_micro_batch,
    }
    if case.kind not in builders:
        raise UnsupportedCaseError(f"host cost {case.kind!r} is none of {', '.join(builders)}")
    call = builders[case.kind](where)
    return Launched(case=case, calls=(call,), implementation="torch eager", on_host=True)


def one_launch(where: torch.device) -> Callable[[], object]:
    """Returns one in-place addition to eight numbers."""
    small = torch.zeros(8, device=where)
    return lambda: small.add_(1.0)


def one_call(where: torch.device) -> Callable[[], object]:
    """Returns the forward of a linear module of 64 channels over eight tokens."""
    linear = torch.nn.Linear(TINY_HIDDEN, TINY_HIDDEN, bias=False).to(device=where, dtype=torch.bfloat16)
    tokens = torch.randn(TINY_TOKENS, TINY_HIDDEN, device=where, dtype=torch.bfloat16)
    return lambda: linear(tokens)


class TinyLayer(torch.nn.Module):
    """A pre-norm decoder layer with rotary attention and a gated feed-forward."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm_attention = torch.nn.RMSNorm(hidden)
        self.norm_mlp = torch.nn.RMSNorm(hidden)
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = torch.nn.Linear(hidden, hidden, bias=False)
        self.gate_up = torch.nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = torch.nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the layer's output, (1, tokens, hidden) like its input."""
        batch, length, hidden = tokens.shape
        # Two heads of hidden / 2 channels; dimension 2 separates queries, keys and values.
        heads = self.qkv(self.norm_attention(tokens)).view(batch, length, 3, 2, hidden // 2)
        query, key, value = (part.transpose(1, 2) for part in heads.unbind(2))
        # As many launches as rotary embeddings take; the numbers do not matter.
        query, key = query * 0.5 + query.roll(1, -1), key * 0.5 + key.roll(1, -1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up(self.norm_mlp(tokens)).chunk(2, dim=-1)
        return tokens + self.down(functional.silu(gate) * up)


def one_layer(where: torch.device) -> Callable[[], object]:
    """Returns forward and backward of a tiny layer in bf16."""
    layer = TinyLayer(TINY_HIDDEN).to(device=where, dtype=torch.bfloat16)
    tokens = torch.randn(1, TINY_TOKENS, TINY_HIDDEN, device=where, dtype=torch.bfloat16)
    tokens.requires_grad_(True)
    gradient = torch.randn_like(tokens)

    def run() -> None:
        layer(tokens).backward(gradient)

    return run


def one_micro_batch(where: torch.device) -> Callable[[], object]:
    """Returns embedding, norm, head and loss of a tiny vocabulary in bf16, forward and backward."""
    table = torch.nn.Embedding(TINY_VOCAB, TINY_HIDDEN).to(device=where, dtype=torch.bfloat16)
    norm = torch.nn.RMSNorm(TINY_HIDDEN).to(device=where, dtype=torch.bfloat16)
    head = torch.nn.Linear(TINY_HIDDEN, TINY_VOCAB, bias=False).to(device=where, dtype=torch.bfloat16)
    labels = torch.randint(TINY_VOCAB, (TINY_TOKENS + 1,))

    def run() -> None:
        # Copying a batch's tokens to the device is part of a micro-batch's host time.
        placed = labels.to(where, non_blocking=True)
        logits = head(norm(table(placed[:-1])))
        functional.cross_entropy(logits.float(), placed[1:]).backward()

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStopwatch:
    """Host seconds of issuing a burst of calls to an idle device, without the device's work. A processor does the
    work itself, within the CPU seconds of this thread."""

    device: Device

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Returns the host seconds of one call (profiler.timing.Stopwatch). A burst is shorter than the launch queue,
        so that issuing never waits for the device."""
        now = time.thread_time if self.device.kind == "cpu" else time.perf_counter
        self.device.synchronize()
        start = now()
        for index in range(count):
            calls[index % len(calls)]()
        issued_s = now() - start
        self.device.synchronize()
        return issued_s / count


# Copies between page-locked memory of the host and the device, on all devices of a node at once.


def launch_host_copy(case: HostCopyCase, world: World) -> Launched:
    """Returns the copy from one to the other of two buffers of the case's bytes.

    Raises UnsupportedCaseError for an unknown direction, without a device apart from the host, and where another
    number of devices of a node copies.
    """
    if case.direction not in ("to_device", "to_host"):
        raise UnsupportedCaseError(f"direction {case.direction!r} is neither to_device nor to_host")
    if world.device.kind != "cuda":
        raise UnsupportedCaseError("a processor is its own host: there is nothing to copy between")
    if world.layout.local_size != case.devices:
        raise UnsupportedCaseError(f"{world.layout.local_size} devices of a node copy here, not {case.devices}")
    # Random numbers are made on the device: a processor takes seconds for a GiB.
    on_device = torch.randint(0, 255, (case.size_bytes,), dtype=torch.uint8, device=world.device.torch_device)
    on_host = torch.empty((case.size_bytes,), dtype=torch.uint8, pin_memory=True)
    on_host.copy_(on_device)
    source, target = (on_host, on_device) if case.direction == "to_device" else (on_device, on_host)
    return Launched(
        case=case,
        calls=(lambda: target.copy_(source, non_blocking=True),),
        implementation="torch copy_, page-locked",
        collective=world.size > 1,
    )
