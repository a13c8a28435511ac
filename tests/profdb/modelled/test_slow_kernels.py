"""Kernels that miss the fast path: passes over strided operands, products whose rows begin at odd addresses."""

from dataclasses import replace
from typing import Any

import pytest

from ops.memory_bound import bytes_moved_per_element
from ops.op import BatchedGemm
from ops.roles import Module, Role
from profdb.cases import GemmCase
from profdb.modelled.memory_bound import memory_bound_seconds, streaming_seconds
from profdb.modelled.slow_kernels import (
    NOTHING_MEASURED,
    STRIDED,
    MeasuredExtents,
    excess_s,
    longer_under_load_s,
    measured_extents,
    unaligned_s,
)
from profdb.queries import TimeEstimate
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from spec.origin import Origin
from tests.ops import operations
from tests.solver.questions import ROOT

H200 = read_cluster("h200", root=ROOT).gpu


def test_a_broadcast_pass_takes_what_was_measured() -> None:
    """PyTorch's prelu, 1024 x 10240 in fp16, 1.18 TB/s on an H200 (TileOPs pull request 500): one pass that
    reads and writes two bytes, as each pass of the limits does."""
    elements = floats([1024 * 10240])
    passes = STRIDED["clamp_glu_unfused", "forward"][0].passes
    excess = elements * excess_s(H200, "clamp_glu_unfused", "forward", "fp16")
    streamed = streaming_seconds(H200, elements * 4.0)
    assert (streamed + excess / passes)[0] == pytest.approx(4.0 * 1024 * 10240 / 1.18e12, rel=0.01)


def test_widening_logits_takes_what_was_measured() -> None:
    """67,108,864 elements of bf16 copied to fp32 on an A100 of 40 GB: 362 us (pytorch pull request 195542)."""
    gpu = read_cluster("a100-sxm-40g", root=ROOT).gpu
    elements = floats([67_108_864])
    excess = elements * excess_s(gpu, "cross_entropy_unfused", "forward", "bf16")
    assert (streaming_seconds(gpu, elements * 6.0) + excess)[0] == pytest.approx(362.46e-6, rel=0.06)


def test_each_pass_of_a_kernel_waits_for_the_longer_of_instructions_and_bytes() -> None:
    """A norm forward on an A100: 16 bits times a row (4 bytes), fp32 times a column (8), 16 bits to fp32 (6),
    each 1 / (1.17 x 108 x 1.41 GHz).
    """
    gpu = read_cluster("a100-sxm-80g", root=ROOT).gpu
    one_s, byte_s = 1.0 / (1.17 * 108 * 1.41e9), 1.0 / (2.039e12 * 0.84)
    excess = excess_s(gpu, "rmsnorm_unfused", "forward", "bf16")
    assert excess == pytest.approx(3.0 * one_s - 18.0 * byte_s, rel=1e-3)


def test_passes_bound_by_instructions_run_at_the_clock_of_a_training_step() -> None:
    """A bias on H100: one pass of 4 bytes, 1 / (1.17 x 132 x 1.98 GHz) an element, at 0.91 of the clock 1 /
    0.91 of that; where memory is the slower at either clock, and on a GPU that keeps its clock, nothing."""
    h100 = read_cluster("h100-sxm", root=ROOT).gpu
    one_s = 1.0 / (1.17 * 132 * 1.98e9)
    longer_s = longer_under_load_s(h100, "bias", "forward", "bf16")
    assert longer_s == pytest.approx(one_s * (1.0 / 0.91 - 1.0))
    slow = replace(h100, memory_bandwidth=h100.memory_bandwidth / 4.0)
    assert longer_under_load_s(slow, "bias", "forward", "bf16") == 0.0
    a100 = read_cluster("a100-sxm-80g", root=ROOT).gpu
    assert longer_under_load_s(a100, "bias", "forward", "bf16") == 0.0
    assert longer_under_load_s(h100, "residual", "forward", "bf16") == 0.0


# Tensors that each strided pass reads and writes, by hand, 16-bit ones and fp32 ones; a mask is half a tensor
# of 16 bits, and to fp32 half a tensor of 4 bytes is read.
COMPARED, CHOSEN, READ_AND_WRITTEN, OF_TWO, WRITTEN, WIDENED = 1.5, 2.5, 2.0, 3.0, 1.0, 1.5
MOVED: dict[tuple[str, str], tuple[list[float], list[float]]] = {
    ("clamp_glu_unfused", "forward"): ([READ_AND_WRITTEN] * 2, []),
    ("clamp_glu_unfused", "backward"): ([COMPARED] * 3 + [CHOSEN] * 2, []),
    ("expert_bias_unfused", "forward"): ([WRITTEN], []),
    ("expert_bias_unfused", "backward"): ([READ_AND_WRITTEN] * 2, []),
    ("expert_bias_fp32_unfused", "forward"): ([], [WRITTEN]),
    ("expert_bias_fp32_unfused", "backward"): ([], [READ_AND_WRITTEN] * 2 + [WIDENED]),
    ("rmsnorm_unfused", "forward"): ([READ_AND_WRITTEN], [READ_AND_WRITTEN, WIDENED]),
    ("rmsnorm_unfused", "backward"): ([READ_AND_WRITTEN], [READ_AND_WRITTEN, WRITTEN, WIDENED]),
    ("rotary_unfused", "forward"): ([READ_AND_WRITTEN] * 2 + [READ_AND_WRITTEN / 2], []),
    ("rotary_unfused", "backward"): ([READ_AND_WRITTEN] * 3 + [READ_AND_WRITTEN / 2], []),
    ("swiglu_halves_unfused", "forward"): ([READ_AND_WRITTEN, OF_TWO], []),
    ("swiglu_halves_unfused", "backward"): ([OF_TWO, OF_TWO], []),
    ("masked_softmax_unfused", "forward"): ([READ_AND_WRITTEN], [WIDENED]),
    ("masked_softmax_unfused", "backward"): ([READ_AND_WRITTEN], [WIDENED]),
    ("cross_entropy_unfused", "forward"): ([], [WIDENED]),
    ("cross_entropy", "forward"): ([], [READ_AND_WRITTEN] * 2 + [WIDENED]),
    ("cross_entropy", "backward"): ([], [READ_AND_WRITTEN]),
    ("cast", "forward"): ([], [WIDENED]),
    ("bias", "forward"): ([READ_AND_WRITTEN], []),
    ("spread_unfused", "forward"): ([WRITTEN], []),
    ("strided_copy", "forward"): ([READ_AND_WRITTEN], []),
    ("strided_copy", "backward"): ([READ_AND_WRITTEN], []),
}


@pytest.mark.parametrize(
    ("cluster", "kernel", "direction", "dtype", "shape", "measured_us"),
    [
        # prof_data/h100-sxm.pt
        ("h100-sxm", "layernorm_torch", "forward", "bf16", (16384, 8192), 301.9),
        ("h100-sxm", "layernorm_torch", "backward", "bf16", (16384, 8192), 674.9),
        ("h100-sxm", "rmsnorm_torch", "forward", "bf16", (16384, 8192), 274.3),
        ("h100-sxm", "rmsnorm_torch", "backward", "bf16", (16384, 8192), 674.2),
        ("h100-sxm", "cast", "forward", "bf16", (1923125248, 1), 5838.7),
        # linkedin/Liger-Kernel, benchmark/data/all_benchmark_data.csv, layer_norm of torch
        ("a100-sxm-80g", "layernorm_torch", "forward", "fp32", (4096, 16384), 506.7),
        ("h100-sxm", "layernorm_torch", "forward", "fp32", (4096, 16384), 306.8),
        ("h100-sxm", "layernorm_torch", "backward", "fp32", (4096, 16384), 642.4),
        ("b200", "layernorm_torch", "forward", "bf16", (8192, 4096), 63.4),
        ("b200", "layernorm_torch", "backward", "bf16", (8192, 4096), 142.3),
    ],
)
def test_torchs_norms_and_casts_take_what_was_measured(
    cluster: str, kernel: str, direction: str, dtype: str, shape: tuple[int, int], measured_us: float
) -> None:
    gpu = read_cluster(cluster, root=ROOT).gpu
    (predicted_s,) = memory_bound_seconds(gpu, kernel, direction, floats([shape[0] * shape[1]]), dtype)
    assert predicted_s == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_every_kernel_with_strided_passes_is_counted() -> None:
    assert set(MOVED) == set(STRIDED)


@pytest.mark.parametrize(("kernel", "direction"), MOVED)
def test_each_strided_pass_moves_what_it_reads_and_writes(kernel: str, direction: str) -> None:
    """A half of a head, as rotary embeddings negate it, is half a pass."""
    for dtype, moved in zip(("", "fp32"), MOVED[kernel, direction], strict=True):
        found = [one for one in STRIDED[kernel, direction] if one.dtype == dtype]
        halves = 0.5 * (kernel == "rotary_unfused")
        assert sum(one.passes for one in found) == len(moved) - halves * bool(moved)
        assert sum(one.tensors for one in found) == sum(moved)


def test_only_kernels_written_for_cuda_compute_offsets() -> None:
    for name, dearer in (("h200", True), ("mi300x", True), ("ascend-910b", False)):
        gpu = read_cluster(name, root=ROOT).gpu
        assert bool(excess_s(gpu, "bias", "forward", "bf16")) is dearer, name


def test_passes_that_stream_longer_than_they_compute_take_no_longer() -> None:
    """On a memory slow enough the arithmetic hides; a kernel of contiguous operands has none to hide."""
    elements = floats([2**28])
    slow = replace(H200, memory_bandwidth=H200.memory_bandwidth / 10.0)
    for gpu, kernel in ((H200, "swiglu_unfused"), (slow, "clamp_glu_unfused")):
        for direction in ("forward", "backward"):
            per_element = bytes_moved_per_element(kernel, backward=direction == "backward", dtype="bf16")
            streamed = streaming_seconds(gpu, elements * per_element)
            assert memory_bound_seconds(gpu, kernel, direction, elements, "bf16")[0] == streamed[0]
    slower = memory_bound_seconds(H200, "clamp_glu_unfused", "backward", elements, "bf16")[0]
    assert slower > 1.5 * streaming_seconds(H200, elements * 30.0)[0]


TOKENS, HIDDEN = 16384, 2048
GPU = read_cluster("h100-sxm", root=ROOT).gpu
ALIGNED_S = 1e-6
ALIGNED = TimeEstimate(seconds=floats(ALIGNED_S), relative_std=floats(0.05), origin=ints(int(Origin.MEASURED)))


def product(m: int, k: int, n: int, layout: str = "NT", **more: Any) -> BatchedGemm:
    """A product of the head."""
    return operations.product(m, k, n, layout=layout, **{"module": Module.HEAD, "role": Role.LOGITS} | more)


def told_s(op: BatchedGemm, measured: MeasuredExtents = NOTHING_MEASURED) -> float:
    return float(unaligned_s(GPU, op, ALIGNED, measured).seconds[0])


def rate(op: BatchedGemm) -> float:
    """FLOPs a clock and multiprocessor."""
    return float(op.flops[0]) / told_s(op) / (GPU.num_sms * GPU.boost_clock_hz)


@pytest.mark.parametrize(
    ("m", "k", "n", "layout"),
    [
        (TOKENS, HIDDEN, 50257, "NT"),  # the result's rows
        (TOKENS, 50257, HIDDEN, "NN"),  # the gradient's rows
        (50257, TOKENS, HIDDEN, "TN"),  # the same, turned
    ],
)
def test_an_odd_vocabulary_costs_all_three_products_of_the_head(m: int, k: int, n: int, layout: str) -> None:
    # PyTorch issue 181718: 115.6 TFLOP/s of 128 multiprocessors at 2.52 GHz with rows of 2,055 elements
    assert rate(product(m, k, n, layout)) == pytest.approx(115.6e12 / (128 * 2.52e9), rel=2e-3)


@pytest.mark.parametrize("k", [588, 590])
def test_rows_at_multiples_of_four_and_eight_bytes_load_two_elements_at_once(k: int) -> None:
    # kestrel pull request 143: 9477 x 588 x 1152 in 130.56 us on 132 multiprocessors at 1.2 GHz
    measured = 2 * 9477 * 588 * 1152 / 130.56e-6 / (132 * 1.2e9)
    assert rate(product(9477, k, 1152)) == pytest.approx(measured, rel=2e-3)


@pytest.mark.parametrize(
    "op",
    [
        product(TOKENS, HIDDEN, 50304),
        product(TOKENS + 1, HIDDEN, 50304),  # tokens are no contiguous extent of a forward
        product(HIDDEN, 50257, 4096, "TN"),  # nor is what a weight's gradient is summed over
        product(TOKENS, HIDDEN, 50257, role=Role.CORE),
        product(TOKENS, HIDDEN, 50257, dtype="fp8"),
        product(1, 8, 9),  # less than the cost model tells anyway
    ],
    ids=["padded", "odd tokens", "odd sum", "core", "fp8", "tiny"],
)
def test_other_products_take_what_the_book_tells(op: BatchedGemm) -> None:
    assert told_s(op) == ALIGNED_S


def test_a_measured_product_holds_what_its_rows_cost() -> None:
    sizes = [(TOKENS, HIDDEN, 50257, "NT"), (TOKENS, HIDDEN, 50304, "NT"), (50255, TOKENS, HIDDEN, "TN")]
    samples = [Sample(case=GemmCase(m=m, k=k, n=n, layout=layout), trials_s=(5e-3,)) for m, k, n, layout in sizes]
    known = measured_extents(ProfileDatabase(machine=MachineFacts(gpu="any"), samples=samples))
    assert {layout: pairs.tolist() for layout, pairs in known.pairs.items()} == {
        "NT": [[HIDDEN, 50257]],
        "TN": [[50255, HIDDEN]],
    }
    assert told_s(product(4096, HIDDEN, 50257), known) == ALIGNED_S
    assert told_s(product(50255, 4096, HIDDEN, "TN"), known) == ALIGNED_S
    # a neighbour is not known by them
    assert told_s(product(4096, HIDDEN, 50255), known) > ALIGNED_S
    priced = unaligned_s(GPU, product(4096, HIDDEN, 50255), ALIGNED, known)
    assert priced.origin[0] == int(Origin.MODELLED)
    assert (priced.relative_std[0], priced.carried_std[0]) == (0.0, 0.25)


def test_processors_read_rows_at_any_address() -> None:
    processor = read_cluster("cpu", root=ROOT).gpu
    assert unaligned_s(processor, product(TOKENS, HIDDEN, 50257), ALIGNED, NOTHING_MEASURED) is ALIGNED
