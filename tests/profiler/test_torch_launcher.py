"""What torch is really asked to run is what the case says: shapes, layouts, formats, operations."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from inspect import getclosurevars
from typing import Any

import pytest
import torch

from ops.memory_bound import KERNELS, bytes_moved_per_element
from profdb.cases import FAMILY_OF, AttentionCase, GemmCase, GroupedGemmCase, HostCase, MemoryBoundCase, OptimizerCase
from profiler.benchmarks import memory_bound
from profiler.benchmarks.launched import Launched, UnsupportedCaseError
from profiler.benchmarks.memory_bound import launch_memory_bound
from profiler.cases.sweep_plan import SweepPlan, plan_cases
from profiler.device import Device
from profiler.torch_launcher import COMPILED, IN_GROUPS, ON_DEVICE, TorchLauncher
from tests.profiler.fakes import Recorder, single_world


@contextmanager
def recording(case: Any) -> Iterator[Recorder]:
    """Launch a case, then record one call of it (not the building of its operands)."""
    launched: Launched = TorchLauncher(world=single_world()).launch(case)
    assert launched.case == case
    recorder = Recorder()
    with recorder:
        launched.calls[-1]()
    yield recorder


def test_each_kind_of_case_has_one_benchmark() -> None:
    kinds = [*ON_DEVICE, *COMPILED, *IN_GROUPS]
    assert sorted(map(str, kinds)) == sorted(map(str, FAMILY_OF))


def stored_rows(matrix: torch.Tensor) -> tuple[int, ...]:
    """The shape in memory: a transposed view is stored the other way round."""
    return tuple(matrix.shape) if matrix.stride(-1) == 1 else tuple(matrix.mT.shape)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("layout", "stored_left", "stored_right"),
    [("NT", (24, 16), (40, 16)), ("NN", (24, 16), (16, 40)), ("TN", (16, 24), (16, 40))],
)
def test_gemm_multiplies_m_k_n_in_its_layout(
    layout: str, stored_left: tuple[int, int], stored_right: tuple[int, int], dtype: str
) -> None:
    case = GemmCase(m=24, k=16, n=40, layout=layout, dtype_in=dtype, dtype_out=dtype)
    with recording(case) as recorder:
        ((left, right, *_),) = recorder.of("mm")
        assert (tuple(left.shape), tuple(right.shape)) == ((24, 16), (16, 40))
        assert (stored_rows(left), stored_rows(right)) == (stored_left, stored_right)
        assert left.dtype is (torch.bfloat16 if dtype == "bf16" else torch.float32)


def test_gemm_with_bias_adds_it_in_the_same_launch() -> None:
    with recording(GemmCase(m=24, k=16, n=40, bias=True)) as recorder:
        ((bias, left, right, *_),) = recorder.of("addmm")
        assert (tuple(bias.shape), tuple(left.shape), tuple(right.shape)) == ((40,), (24, 16), (16, 40))


def test_batched_gemm_is_one_launch_of_all_products() -> None:
    with recording(GemmCase(batch=3, m=24, k=16, n=40, layout="TN")) as recorder:
        ((left, right, *_),) = recorder.of("bmm")
        assert (tuple(left.shape), tuple(right.shape)) == ((3, 24, 16), (3, 16, 40))
        assert (stored_rows(left), stored_rows(right)) == ((3, 16, 24), (3, 16, 40))


@pytest.mark.parametrize("layout", ["NT", "NN", "TN"])
def test_grouped_gemm_multiplies_every_groups_rows_once(layout: str) -> None:
    case = GroupedGemmCase(groups=4, m=64, k=16, n=40, layout=layout)
    with recording(case) as recorder:
        products = recorder.of("mm")
        flops = sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b, *_ in products)
        assert len(products) == 4
        assert flops == 2 * 64 * 16 * 40
        shapes = {(tuple(left.shape), tuple(right.shape)) for left, right, *_ in products}
        expected = ((16, 16), (16, 40))  # 16 rows a group; k = 16
        assert shapes == {expected}
        right = products[0][1]
        assert stored_rows(right) == ((40, 16) if layout == "NT" else (16, 40))


def attention_case(**words: Any) -> AttentionCase:
    given = {"batch": 2, "q_len": 32, "kv_len": 32, "heads": 4, "kv_heads": 2, "qk_dim": 16, "v_dim": 16}
    return AttentionCase(**{**given, **words})


FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


def test_attention_forward_runs_the_fused_kernel_on_the_cases_shapes() -> None:
    with recording(attention_case()) as recorder:
        ((query, key, value),) = recorder.of(FORWARD)
        assert tuple(query.shape) == (2, 4, 32, 16)
        # CPU kernels take kv heads repeated; torch repeats them on the way
        assert key.shape[-2:] == value.shape[-2:] == (32, 16)
        assert not recorder.of(BACKWARD)


def test_attention_backward_is_timed_without_its_forward() -> None:
    with recording(attention_case(direction="backward", kv_heads=4)) as recorder:
        ((gradient, query, key, value, *_),) = recorder.of(BACKWARD)
        assert {tuple(tensor.shape) for tensor in (gradient, query, key, value)} == {(2, 4, 32, 16)}
        assert not recorder.of(FORWARD)


@pytest.mark.parametrize(("direction", "products"), [("forward", 2), ("backward", 4)])
def test_unfused_attention_is_its_matrix_products(direction: str, products: int) -> None:
    case = attention_case(kernel="core", direction=direction)
    with recording(case) as recorder:
        flops = [2 * a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2] for a, b, *_ in recorder.of("bmm")]
        # PaLM's count (arXiv 2204.02311 app. B): 2 s s d a product and head
        assert flops == [2 * 2 * 4 * 32 * 32 * 16] * products


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_the_mask_reaches_the_kernel(mask: str) -> None:
    case = attention_case(mask=mask, kv_heads=4, dtype="fp32")
    held = getclosurevars(TorchLauncher(world=single_world()).launch(case).calls[0]).nonlocals
    with torch.no_grad():
        first = held["forward"](*held["tensors"])
        held["tensors"][2][:, :, -1] += 100.0
        second = held["forward"](*held["tensors"])
    # the last value reaches the first query only without a causal mask
    assert torch.equal(first[:, :, 0], second[:, :, 0]) == (mask == "causal")


# Kernels: operations of the forward | of the backward.
OPERATIONS = """
rmsnorm rmsnorm_torch: _fused_rms_norm pow | _fused_rms_norm_backward mul
layernorm layernorm_torch: native_layer_norm | native_layer_norm_backward
rotary: cat | mul
swiglu causal_conv1d: silu | silu_backward
gelu: gelu | gelu_backward
add: add | add
bias_dropout_add dropout: native_dropout bernoulli_ | native_dropout_backward mul
bias: add | sum
masked_softmax masked_softmax_unfused: _softmax | _softmax_backward_data
cross_entropy: exp div_ | mul_
cross_entropy_16bit cross_entropy_fused cross_entropy_unfused: _log_softmax | _log_softmax_backward_data
embedding: embedding | embedding_dense_backward
cast: _to_copy | _to_copy
copy strided_copy: copy_ | copy_
spread_unfused: copy_ linalg_vector_norm | none
norm_reduce: linalg_vector_norm | none
fill: zero_ | none
accumulate accumulate_wide: none | add_
accumulate_16bit: none | linalg_vector_norm
accumulate_fp32: none | copy_
rmsnorm_unfused: rsqrt mul | mul
rotary_unfused: mul add | mul
swiglu_unfused swiglu_halves_unfused: silu mul | silu_backward
clamp_glu_unfused: clamp clamp_max cat | where
expert_bias_unfused expert_bias_fp32_unfused: cat | sum
quantize quantize_transpose: clamp | none
permute: index_select | index_select
"""
KERNEL_OPERATIONS = {
    kernel: dict(zip(("forward", "backward"), operations.split(" | "), strict=True))
    for kernels, operations in (line.split(": ") for line in OPERATIONS.strip().splitlines())
    for kernel in kernels.split()
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_runs_its_operation_on_rows_x_width(
    kernel: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bytes_moved_per_element(kernel, backward=direction == "backward", dtype="bf16") == 0.0:
        pytest.skip(f"{kernel} moves nothing in the {direction}")
    case = MemoryBoundCase(kernel=kernel, direction=direction, rows=12, width=256)
    monkeypatch.setattr(memory_bound, "compiled_kernels", frozenset)  # what a compiler would fuse
    with recording(case) as recorder:
        runs = recorder.of(*KERNEL_OPERATIONS[kernel][direction].split())
        assert runs
        sizes = {tensor.numel() for tensors in runs for tensor in tensors}
        halves = 12 * 256 // 2  # rotary works on halves of its channels
        assert sizes & {12 * 256, halves} or kernel == "embedding"
    if kernel == "embedding":
        shapes = {tuple(tensor.shape) for tensors in runs for tensor in tensors}
        assert (12,) in shapes
        assert any(shape[-1] == 256 for shape in shapes)


@cache
def swept_kernels(excluded: frozenset[str]) -> set[str]:
    plan = SweepPlan(device_kind="cuda", excluded_kernels=excluded)
    return {case.kernel for case in plan_cases(plan) if isinstance(case, MemoryBoundCase)}


@pytest.mark.parametrize("kernel", ["swiglu", "rotary", "masked_softmax", "bias_dropout_add", "cross_entropy_fused"])
def test_a_kernel_that_torch_runs_as_several_is_no_sample_of_the_fused_one(kernel: str) -> None:
    case = MemoryBoundCase(kernel=kernel, direction="forward", rows=12, width=256)
    with pytest.raises(UnsupportedCaseError, match="a compiler fuses them"):
        launch_memory_bound(case, Device(kind="cpu"))
    assert memory_bound.compiled_kernels() >= {kernel}
    assert kernel not in swept_kernels(memory_bound.compiled_kernels())
    assert kernel in swept_kernels(frozenset())


def test_the_optimizer_steps_all_elements_in_its_pieces() -> None:
    with recording(OptimizerCase(elements=120, tensors=3)) as recorder:
        (tensors,) = recorder.of("_fused_adamw_")
        # three pieces each of parameter, gradient, two moments, and the step counters
        assert sorted(tensor.numel() for tensor in tensors) == [1] * 3 + [40] * 12


@pytest.mark.parametrize("kind", ["launch", "call", "layer", "micro_batch"])
def test_host_costs_are_timed_on_the_host(kind: str) -> None:
    launched = TorchLauncher(world=single_world()).launch(HostCase(kind=kind))
    assert launched.on_host
    launched.calls[0]()


def test_one_launch_is_one_operation() -> None:
    with recording(HostCase(kind="launch")) as recorder:
        assert [name for name, _ in recorder.seen] == ["add_"]


@pytest.mark.parametrize(
    "case",
    [
        GemmCase(m=16, k=16, n=16, dtype_in="fp8", scale_recipe="tensor"),  # no fp8 on a CPU
        GemmCase(m=16, k=16, n=16, dtype_out="fp32"),
        GemmCase(m=16, k=16, n=16, dtype_in="fp4", dtype_out="fp4"),
        GemmCase(batch=2, m=16, k=16, n=16, bias=True),
        GroupedGemmCase(groups=3, m=16, k=16, n=16),
        GroupedGemmCase(groups=2, m=16, k=16, n=16, scale_recipe="tensor"),
        attention_case(kernel="cudnn"),
        attention_case(kernel="other"),
        attention_case(mask="varlen"),
        attention_case(mask="window", window=8),
        attention_case(mask="spiral"),
        attention_case(q_len=16),
        attention_case(v_dim=8),
        MemoryBoundCase(kernel="norm_reduce", direction="backward", rows=8, width=8),
        MemoryBoundCase(kernel="unknown", direction="forward", rows=1, width=1),
        MemoryBoundCase(kernel="copy", direction="sideways", rows=1, width=1),
        OptimizerCase(elements=10, tensors=3),
        OptimizerCase(elements=10, kernel="sgd"),
        OptimizerCase(elements=10, gradient_dtype="bf16"),
        HostCase(kind="coffee"),
    ],
)
def test_what_cannot_be_launched_as_said_is_refused(case: Any) -> None:
    assert Device(kind="cpu").capability == (0, 0)
    with pytest.raises(UnsupportedCaseError):
        TorchLauncher(world=single_world()).launch(case)
