"""Modelled attention and memory-bound kernels: pairs counted by brute force, published rates, bounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.modelled.attention import AttentionShapes, core_seconds, flash_seconds, is_aligned
from profdb.modelled.gemm import DRAM_EFFICIENCY, FILL_CYCLES, LAUNCH_S, gemm_seconds
from profdb.modelled.memory_bound import adamw_seconds, memory_bound_seconds, streaming_seconds
from profdb.modelled.rates import flops_rates
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from tests.solver.questions import ROOT

H100 = read_cluster("h100-sxm", root=ROOT).gpu
A100 = read_cluster("a100-sxm-80g", root=ROOT).gpu


def heads(q_len: Any, kv_len: Any, *, width: Any = 128, **changes: Any) -> AttentionShapes:
    """A causal call of one sequence and 16 heads, but for what is changed."""
    sizes = {"batch": 1, "q_len": q_len, "kv_len": kv_len, "heads": 16, "kv_heads": 16, "window": 0}
    words = sizes | {"qk_dim": width, "v_dim": width} | changes
    return AttentionShapes(**{name: one if isinstance(one, str) else ints(one) for name, one in words.items()})


def counted(q_len: int, kv_len: int, mask: str, window: int) -> int:
    """Pairs one by one: query i is key kv_len - q_len + i and sees itself and the keys before."""
    if mask == "full":
        return q_len * kv_len
    seen = [kv_len - q_len + i + 1 for i in range(q_len)]
    return sum(min(count, window) if mask == "window" else count for count in seen)


@pytest.mark.parametrize("batch", [33, 66])
def test_the_softmax_sets_the_pace_where_products_cost_nothing(batch: int) -> None:
    """16 exponentials, and six more operations of 128, a clock and multiprocessor for each pair; 8,000 cycles
    a block of 128 queries. 16 heads of 33 or 66 sequences are 4 or 8 a multiprocessor of H100's 132, each of
    1,280 x 1,280 pairs."""
    fast = {"bf16": 1e30}
    gpu = replace(H100, peak_flops=fast, sustained_flops=fast, memory_bandwidth=1e30)
    called = heads(1280, 1280, mask="full", batch=batch)
    each = batch * 16 / 132
    cycles = each * (1280 * 1280 * (1 / 16 + 6 / 128) + 10 * 8000) + FILL_CYCLES
    assert flash_seconds(gpu, called)[0] == pytest.approx(LAUNCH_S + cycles / gpu.boost_clock_hz)


def test_cores_of_their_own_hide_the_faster_of_products_and_softmax() -> None:
    """cann/pto-isa, demos/torch_jit/flash_atten/README.md, Ascend 910B2: 128 queries of 128 channels take 68.778 us for 8,192 keys
    and 38.317 us for 4,096 on one core."""
    gpu = read_cluster("ascend-910b", root=ROOT).gpu
    # one head a core
    four, eight = (flash_seconds(gpu, heads(128, keys, mask="full", heads=20, kv_heads=20))[0] for keys in (4096, 8192))
    assert eight - four == pytest.approx(68.778e-6 - 38.317e-6, rel=0.05)
    # the vector cores' exponential and six more operations a pair, 128 x 4,096 of them
    assert eight - four == pytest.approx(128 * 4096 * (1 / 16 + 6 / 128) / gpu.boost_clock_hz)


@given(
    kv_len=st.integers(1, 200),
    part=st.floats(0.01, 1.0),
    mask=st.sampled_from(["causal", "full", "window", "varlen"]),
    window=st.integers(1, 250),
)
def test_pairs_are_those_counted_one_by_one(kv_len: int, part: float, mask: str, window: int) -> None:
    q_len = max(int(kv_len * part), 1)
    predicted = heads(q_len, kv_len, mask=mask, window=window).pairs()
    assert predicted[0] == pytest.approx(counted(q_len, kv_len, mask, window))


@given(blocks=st.integers(1, 12), mask=st.sampled_from(["causal", "window"]), window=st.integers(1, 250))
def test_blocks_are_walked_from_the_one_a_window_begins_in(blocks: int, mask: str, window: int) -> None:
    """A window as long as a block of queries reaches into the block of keys before: two for each, not one."""
    block, length = 16, 16 * blocks
    first = [query - (window if mask == "window" else length) + 1 for query in range(0, length, block)]
    walked = sum(number - max(key, 0) // block + 1 for number, key in enumerate(first))
    told = heads(length, length, mask=mask, window=window).pairs(block)
    assert told[0] == pytest.approx(walked * block**2)


@pytest.mark.parametrize(
    ("gpu", "published"),
    [
        (A100, 189e12),  # FlashAttention-2 (2307.08691), figure 5: causal, head 128, 16k tokens
        (H100, 640e12),  # FlashAttention-3 (2407.08608), figure 5: causal, head 128, 16k tokens
    ],
)
def test_long_causal_attention_runs_at_the_published_rate(gpu: object, published: float) -> None:
    flops = 2.0 * 16384**2 * 16 * 128
    rate = flops / float(flash_seconds(gpu, heads(16384, 16384))[0])  # type: ignore[arg-type]
    assert rate == pytest.approx(published, rel=0.12)


@pytest.mark.parametrize(
    ("length", "forward_ms", "backward_ms"),
    [(4096, 0.482, 1.650), (8192, 1.589, 5.526), (16384, 5.962, 19.094), (32768, 23.228, 74.527)],
)
def test_attention_on_b200_takes_what_cudnn_was_measured_to_take(
    length: int, forward_ms: float, backward_ms: float
) -> None:
    """cudnn-frontend be6c079, sdpa_fp8_benchmark_results_NVIDIA_B200.csv, cuDNN 9.13.1, bf16, 128 heads over
    8, causal.
    """
    call = replace(heads(length, length, batch=8, kv_heads=1), heads=ints(16))
    b200 = read_cluster("b200", root=ROOT).gpu
    assert float(flash_seconds(b200, call)[0]) * 1e3 == pytest.approx(forward_ms, rel=0.2)
    back = replace(call, direction="backward")
    assert float(flash_seconds(b200, back)[0]) * 1e3 == pytest.approx(backward_ms, rel=0.1)


def test_causal_is_half_of_full_and_a_window_is_less() -> None:
    full, causal, window = (
        float(flash_seconds(H100, heads(32768, 32768, mask=m, window=w))[0])
        for m, w in (("full", 0), ("causal", 0), ("window", 4096))
    )
    assert causal == pytest.approx(full / 2.0, rel=0.05)
    assert window < 0.4 * causal


def test_fewer_kv_heads_are_never_slower() -> None:
    one, many = (float(flash_seconds(H100, heads(128, 131072, kv_heads=n))[0]) for n in (1, 16))
    assert one <= many


def test_unfused_attention_is_its_products() -> None:
    batch, s, d = ints(16), ints(2048), ints(128)
    expected = gemm_seconds(H100, batch, s, d, s, "bf16") + gemm_seconds(H100, batch, s, s, d, "bf16")
    predicted = core_seconds(H100, heads(2048, 2048))
    assert predicted.tolist() == expected.tolist()
    assert core_seconds(H100, replace(heads(2048, 2048), direction="backward"))[0] > 1.8 * predicted[0]


def test_heads_off_16_bytes_multiply_at_the_fp32_rate() -> None:
    """Four products of the backward, 2 s^2 d each; A100's fp32 units do 19.5 TFLOP/s (its data sheet)."""
    floor = 4 * 2.0 * 16 * 2048**2 * 108 / 19.5e12
    slow = float(core_seconds(A100, replace(heads(2048, 2048, width=108), direction="backward", dtype="fp16"))[0])
    assert floor < slow < 1.6 * floor
    wider = float(core_seconds(A100, replace(heads(2048, 2048, width=112), direction="backward", dtype="fp16"))[0])
    assert wider < 0.25 * slow


def test_alignment_is_asked_row_by_row() -> None:
    two = {name: [size] * 2 for name, size in (("batch", 1), ("heads", 4), ("kv_heads", 4), ("window", 0))}
    mixed = heads([512, 512], [512, 512], width=[150, 144], **two)
    assert is_aligned(mixed).tolist() == [False, True]
    assert is_aligned(replace(mixed, dtype="fp32")).tolist() == [False, True]
    alone = gemm_seconds(A100, ints(4), ints(512), ints(144), ints(512), "bf16")
    alone = alone + gemm_seconds(A100, ints(4), ints(512), ints(512), ints(144), "bf16")
    assert core_seconds(A100, mixed)[1] == alone[0]


@given(length=st.integers(1, 1 << 16), batch=st.integers(1, 64), mask=st.sampled_from(["causal", "full"]))
def test_longer_attention_never_takes_less(length: int, batch: int, mask: str) -> None:
    for direction in ("forward", "backward"):
        short, long, more = (
            float(flash_seconds(A100, replace(heads(n, n, mask=mask, batch=b), direction=direction))[0])
            for n, b in ((length, batch), (2 * length, batch), (length, 2 * batch))
        )
        assert np.isfinite(long)
        assert 0.0 < short <= min(long, more)


def test_a_large_kernel_streams_and_a_small_one_launches() -> None:
    elements = floats(2**30)
    # rmsnorm forward: one read and one write of 2 bytes
    expected = 4.0 * 2**30 / (H100.memory_bandwidth * DRAM_EFFICIENCY)
    assert memory_bound_seconds(H100, "rmsnorm", "forward", elements, "bf16")[0] == pytest.approx(expected, rel=0.01)
    assert streaming_seconds(H100, floats([0.0, 1.0])).tolist() == [0.0, pytest.approx(LAUNCH_S)]


def test_adamw_moves_28_bytes_of_fp32_and_pays_for_many_tensors() -> None:
    """fp32 parameter, gradient and two moments: 4 reads and 3 writes of 4 bytes."""
    one = adamw_seconds(A100, ints(10**9), ints(1), "fp32", "fp32")[0]
    assert one == pytest.approx(28e9 / (A100.memory_bandwidth * DRAM_EFFICIENCY), rel=0.01)
    many = adamw_seconds(A100, ints(10**6), ints(3600), "fp32", "fp32")[0]
    assert many > 99 * LAUNCH_S
    assert adamw_seconds(A100, ints(0), ints(1), "fp32", "fp32")[0] == 0.0


def test_queries_and_keys_come_in_blocks_of_128() -> None:
    """FlashAttention-2, section 3.3: a part of a block takes what a whole one does, one row more another block."""

    def seconds(q_len: int, kv_len: int) -> float:
        return float(flash_seconds(A100, heads(q_len, kv_len, mask="full", batch=4096))[0])

    whole = seconds(128, 128)
    assert seconds(100, 128) == pytest.approx(whole, rel=1e-12)
    assert seconds(128, 100) == pytest.approx(whole, rel=1e-12)
    fixed = LAUNCH_S + FILL_CYCLES / A100.boost_clock_hz
    assert seconds(256, 128) - fixed == pytest.approx(2.0 * (whole - fixed))
    assert seconds(129, 128) == pytest.approx(seconds(256, 128), rel=1e-12)
    longer = seconds(128, 129)
    assert longer == pytest.approx(seconds(128, 256), rel=1e-12)
    assert longer > whole


def test_a_fused_update_is_cut_into_launches_of_20_971_520_elements() -> None:
    """PyTorch MultiTensorApply.cuh: 320 blocks of chunks of 65,536."""
    most = 320 * 65_536
    full, over = (
        float(adamw_seconds(H100, ints(elements), ints(1), "fp32", "fp32")[0]) for elements in (most, most + 1)
    )
    assert over - full == pytest.approx(LAUNCH_S, rel=1e-3)


def test_a_lone_causal_head_takes_as_long_as_its_last_block_of_queries() -> None:
    """No block is shared: the last one walks all keys, as the only one of a full call of 128 queries does.
    The same head once for every multiprocessor takes no longer."""

    def seconds(q_len: int, mask: str, count: int = 1, keys: int = 8192) -> float:
        call = replace(heads(q_len, keys, mask=mask, kv_heads=1), heads=ints(count))
        return float(flash_seconds(A100, call)[0])

    alone = seconds(128, "full")
    assert seconds(8192, "causal") == pytest.approx(alone, rel=1e-12)
    assert seconds(128, "full", count=A100.num_sms) == pytest.approx(alone, rel=1e-9)
    assert seconds(128, "full", count=2 * A100.num_sms) > 1.8 * alone
    # A window of 1024: no block walks more than twice what one does on average.
    windowed = replace(heads(8192, 8192, mask="window", window=1024, kv_heads=1), heads=ints(1))
    assert flash_seconds(A100, windowed)[0] <= seconds(128, "full", keys=2 * (1024 + 128))


def test_heads_are_computed_in_steps_of_32_channels() -> None:
    """Long calls, where arithmetic decides: 80 channels as 96, and less than 128."""

    def seconds(width: int) -> float:
        return float(flash_seconds(A100, heads(16384, 16384, batch=4, width=width))[0])

    assert seconds(80) == pytest.approx(seconds(96), rel=1e-3)
    assert seconds(96) < 0.9 * seconds(128)


def test_no_long_call_beats_the_gpus_sustained_rate() -> None:
    """4 FLOPs a pair and channel on the GPU's own rate under load."""
    for name in ("a100-sxm-80g", "h100-sxm", "h20", "l40s", "mi300x"):
        gpu = read_cluster(name, root=ROOT).gpu
        call = heads(32768, 32768, mask="full", batch=4, width=128)
        flops = 4.0 * 32768**2 * 128 * 16 * 4
        assert flash_seconds(gpu, call)[0] >= flops / flops_rates(gpu, "bf16").sustained, name


def test_heads_are_aligned_where_queries_keys_and_values_are() -> None:
    for widths, aligned in (((144, 144), True), ((150, 144), False), ((144, 150), False)):
        call = replace(heads(512, 512), qk_dim=ints(widths[0]), v_dim=ints(widths[1]))
        assert is_aligned(call).tolist() == [aligned]


def test_a_call_reads_queries_keys_and_values_and_writes_the_output_once() -> None:
    """2 bytes: 16 heads of queries and output, 4 of keys and values."""
    call = heads(256, 512, batch=2, kv_heads=4, width=64)
    assert call.moved_bytes.tolist() == [2 * 2 * 2 * 64 * (256 * 16 + 512 * 4)]


@pytest.mark.parametrize(
    ("gpu", "direction", "measured_us"),
    [
        ("a100-sxm-80g", "forward", 4105.5),
        ("a100-sxm-80g", "backward", 13734.2),
        ("b200", "forward", 735.3),
        ("b200", "backward", 2374.1),
    ],
)
def test_heads_whose_queries_are_wider_than_their_values_take_what_was_measured(
    gpu: str, direction: str, measured_us: float
) -> None:
    """128 causal heads of 192 and 128 channels, 4,096 tokens: MooreThreads/SimuMax 4dcaae51 (Apache-2.0), a100_pcie.json
    and b200_bf16_ceperm.json. By FLOPs alone they would take 0.69 to 0.86 of it."""
    spec = read_cluster(gpu, root=ROOT).gpu
    latent = heads(4096, 4096, heads=128, kv_heads=128, qk_dim=192, v_dim=128, direction=direction)
    assert flash_seconds(spec, latent)[0] == pytest.approx(measured_us * 1e-6, rel=0.1)


@pytest.mark.parametrize(("qk_dim", "v_dim"), [(128, 128), (192, 192), (128, 192), (576, 512)])
def test_only_heads_with_wider_queries_of_a_flash_kernel_are_slower(qk_dim: int, v_dim: int) -> None:
    spec = read_cluster("h100-sxm", root=ROOT).gpu
    plain = replace(spec, architecture=replace(spec.architecture, wide_queries=None))
    call = heads(4096, 4096, heads=64, kv_heads=64, qk_dim=qk_dim, v_dim=v_dim)
    assert flash_seconds(spec, call)[0] == flash_seconds(plain, call)[0]
