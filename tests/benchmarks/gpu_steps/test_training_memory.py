"""What a step holds at its peak is what is predicted of it.

The step runs operation by operation as on a GPU; RMSNorm and attention, which a processor takes apart, stand
as what their kernels on a GPU keep: inputs, a sum a row or the output and a sum a head.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import gpu_step
from benchmarks.gpu_steps import training
from benchmarks.gpu_steps.case import DecoderShape, StepCase
from benchmarks.gpu_steps.rows import price_case
from benchmarks.gpu_steps.training import PlainTrainer
from profiler.device import Device
from solver.problem.request import Request

BLOCK = 512
"""Bytes that every tensor of CUDA is rounded up to (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


class Held(TorchDispatchMode):
    """Bytes of all storages that live, and the most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor.untyped_storage())
        return result

    def hold(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, -(-storage.nbytes() // BLOCK) * BLOCK
        if key not in self.known:
            self.known.add(key)
            weakref.finalize(storage, self.release, key, size)
            self.now += size
            self.most = max(self.most, self.now)

    def release(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens, weight, torch.empty(tokens.shape[:-1], dtype=torch.float32))
        return torch.empty_like(tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:2])


class FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *operands: torch.Tensor) -> torch.Tensor:
        mixed, sums = (torch.empty_like(operands[0]), torch.empty(operands[0].shape[:-1], dtype=torch.float32))
        ctx.save_for_backward(*operands, mixed, sums)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.nn.RMSNorm, "forward", lambda norm, tokens: FusedNorm.apply(tokens, norm.weight))
    monkeypatch.setattr(training, "best_attention", lambda device: (FusedAttention.apply, "traced"))
    # a module of such tensors is made in its format, and cannot be turned into another
    monkeypatch.setattr(torch.nn.Module, "bfloat16", lambda module: module)
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def most_held(case: StepCase) -> int:
    """Bytes at the peak of the second step, when the optimizer has its moments."""
    with Held() as held:
        step = PlainTrainer(case, Device(kind="cpu"))
        for _ in range(2):
            held.most = 0
            step.passes()
            step.update()
    return held.most


def predicted_bytes(case: StepCase) -> float:
    request = Request(root=gpu_step.ROOT, cluster="h200", missing="modelled")
    return price_case(case, 1, request).allocated_bytes


def test_the_peak_is_the_one_predicted() -> None:
    """Of so few tokens the update is the peak: weights, their gradients, and four copies in fp32."""
    shape = DecoderShape(hidden=256, layers=1, heads=4, kv_heads=2, ffn=512, vocab=1024, seq_len=64)
    case = StepCase(shape=shape, micro_batch=1)
    # words and angles of positions are not counted
    assert predicted_bytes(case) == pytest.approx(most_held(case), rel=0.01)


# The loss of four sequences is the peak of its step; of one, whose layers run again, the update is.
@pytest.mark.nightly
@pytest.mark.parametrize(("micro_batch", "recompute"), [(4, False), (2, True), (1, True)])
def test_the_peak_at_the_widths_of_llama_3_8b_is_the_one_predicted(micro_batch: int, recompute: bool) -> None:
    case = StepCase(shape=DecoderShape(), micro_batch=micro_batch, recompute=recompute)
    with FakeTensorMode(allow_non_fake_inputs=True):
        held = most_held(case)
    assert predicted_bytes(case) == pytest.approx(held, rel=1e-3)
