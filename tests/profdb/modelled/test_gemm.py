"""Modelled matrix products: closed forms of the roofline, and what must hold for all shapes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.modelled import gemm
from profdb.modelled.gemm import gemm_seconds, operand_elements
from spec.arrays import ints
from spec.cluster.cluster import GpuSpec, OperandReads
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from tests.solver.questions import ROOT

H100 = read_cluster("h100-sxm", root=ROOT).gpu
A100 = read_cluster("a100-sxm-80g", root=ROOT).gpu
V100 = read_cluster("dgx1-v100", root=ROOT).gpu


def seconds(gpu: GpuSpec, m: int, k: int, n: int, *, batch: int = 1, dtype: str = "bf16") -> float:
    return float(gemm_seconds(gpu, ints(batch), ints(m), ints(k), ints(n), dtype)[0])


@pytest.mark.parametrize("gpu", [A100, H100])
def test_a_large_square_runs_at_the_sustained_rate(gpu: GpuSpec) -> None:
    """The sheet's sustained FLOP/s, less at most 15 % for the memory traffic that is not hidden."""
    rate = 2.0 * 16384**3 / seconds(gpu, 16384, 16384, 16384)
    assert 0.85 * gpu.sustained_flops["bf16"] < rate <= gpu.sustained_flops["bf16"]


@pytest.mark.parametrize(
    ("sheet", "side", "rate"),
    [
        ("h100-pcie", 4096, 495.93e12),
        ("h100-pcie", 8192, 492.84e12),
        ("h100-pcie", 10240, 471.79e12),
        ("a100-pcie-40g", 4096, 234.14e12),
        ("a100-pcie-40g", 8192, 215.26e12),
        ("l40s", 4096, 269.15e12),
    ],
)
def test_pcie_cards_run_at_the_clock_that_their_power_sustains(sheet: str, side: int, rate: float) -> None:
    """FLOP/s of torch.mm (zzc0721/torch-performance-test-data issues 95, 108 and 43, of L40S the fastest of
    five sizes).
    """
    told = 2.0 * side**3 / seconds(read_cluster(sheet, root=ROOT).gpu, side, side, side)
    assert told == pytest.approx(rate, rel=0.065)


@pytest.mark.parametrize(("splits", "batch"), [(1, 1), (2, 1), (1, 20), (1, 39), (1, 40), (1, 132)])
def test_a_product_of_few_tiles_by_hand(splits: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile a product, 2,048 long: 1.3 us and 2,000 cycles to start and end, 1.8 us for the sums of a
    split (two fp32 numbers written and read), and bytes at 84 % of the HBM rate, all of it only where 30 % of
    the 132 multiprocessors load."""
    monkeypatch.setattr(gemm, "TILES", ((128, 256),))
    monkeypatch.setattr(gemm, "K_SPLITS", (splits,))
    gpu = replace(H100, architecture=replace(H100.architecture, wide_tiles=()))
    gpu = replace(gpu, peak_flops={"bf16": 1e20}, sustained_flops={"bf16": 1e20}, memory_bandwidth=1e12)
    clock = gpu.boost_clock_hz
    shared_s = operand_elements(gpu.architecture.operand_reads, 128, 256) * 2 / (128 * clock)
    compute = 2048 / splits * shared_s + 2200 / clock
    partial = 8 * 128 * 256 * splits if splits > 1 else 0
    moved = batch * (2 * 2048 * (128 + 256) + 2 * 128 * 256 + partial)
    memory = moved / (1e12 * 0.84 * min(batch * splits / (0.3 * 132), 1.0))
    start = 1.3e-6 + 2000 / clock + 1.8e-6 * (splits > 1)
    expected = start + max(compute, memory) + 0.12 * min(compute, memory)
    assert seconds(gpu, 128, 2048, 256, batch=batch) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("peak", [0.5e15, 1e15])
def test_tensor_cores_set_the_pace_where_operands_come_fast_enough(
    peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of 128 x 256 is 65,536 FLOP for each of 65,536 elements of k, on one of 132 multiprocessors at
    90 % of its share of the peak, and 2,200 cycles to fill and drain it; bytes cost nothing."""
    monkeypatch.setattr(gemm, "TILES", ((128, 256),))
    monkeypatch.setattr(gemm, "K_SPLITS", (1,))
    gpu = replace(H100, architecture=replace(H100.architecture, wide_tiles=()), memory_bandwidth=1e30)
    gpu = replace(gpu, peak_flops={"bf16": peak}, sustained_flops={"bf16": peak})
    expected = 1.3e-6 + 4200 / gpu.boost_clock_hz + 65536 * 65536 / (0.9 * peak / 132)
    assert seconds(gpu, 128, 65536, 256) == pytest.approx(expected, rel=1e-9)


def test_one_tile_more_than_a_wave_takes_a_second_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tile size, no split: 132 SMs hold 132 tiles in one wave; the 133rd costs as much again."""
    monkeypatch.setattr(gemm, "TILES", ((128, 256),))
    monkeypatch.setattr(gemm, "K_SPLITS", (1,))
    gpu = replace(H100, sustained_flops={"bf16": 1e18}, memory_bandwidth=1e15)
    part, full, over, two = (seconds(gpu, 128 * tiles, 65536, 256) for tiles in (70, 132, 133, 264))
    assert full == pytest.approx(part, rel=0.02)
    assert over == pytest.approx(2.0 * full, rel=0.02)
    assert two == pytest.approx(over, rel=0.02)


def test_fp8_is_faster_than_bf16_by_at_most_the_ratio_of_peaks() -> None:
    ratio = seconds(H100, 8192, 8192, 8192) / seconds(H100, 8192, 8192, 8192, dtype="fp8")
    assert 1.4 < ratio < 2.0


def test_operands_pass_shared_memory_as_often_as_the_tensor_cores_read_them() -> None:
    # 128 x 128 on A100: 256 in, and 4 warps of 64 x 64 read 128 each; Blackwell reads from it directly
    assert operand_elements(OperandReads.WARP, 128, 128) == 256 + 4 * 128
    # A warp takes at least 16 rows: two beside each other have the 16 x 64 tile.
    assert operand_elements(OperandReads.WARP, 16, 64) == 80 + 2 * (16 + 32)
    assert operand_elements(OperandReads.WARP_GROUP, 128, 256) == 384 + 2 * (64 + 256)
    assert operand_elements(OperandReads.ONCE, 256, 256) == 512


def test_a_format_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="bf16"):
        seconds(V100, 128, 128, 128)
    assert seconds(V100, 128, 128, 128, dtype="fp16") > 0.0


def test_nothing_to_compute_takes_no_time() -> None:
    assert gemm_seconds(H100, ints([1, 0]), ints([0, 8]), ints([8, 8]), ints([8, 8]), "bf16").tolist() == [0, 0]


SIZES = st.integers(min_value=1, max_value=1 << 17)


@given(m=SIZES, k=SIZES, n=SIZES, gpu=st.sampled_from([A100, H100]))
def test_more_work_never_takes_less_time(m: int, k: int, n: int, gpu: GpuSpec) -> None:
    """Twice the depth: never faster. Twice the rows or columns: at most 10 %, where twice the tiles let
    twice the SMs load."""
    base = seconds(gpu, m, k, n)
    assert np.isfinite(base)
    assert base > 0.0
    assert seconds(gpu, m, 2 * k, n) >= base
    assert min(seconds(gpu, 2 * m, k, n), seconds(gpu, m, k, 2 * n)) >= 0.9 * base


@given(m=SIZES, k=SIZES, n=SIZES)
def test_no_product_beats_the_roofline(m: int, k: int, n: int) -> None:
    fastest = max(2.0 * m * k * n / H100.peak_flops["bf16"], 2.0 * (m * k + k * n + m * n) / H100.memory_bandwidth)
    assert seconds(H100, m, k, n) >= fastest


def test_a_row_alone_equals_the_row_in_the_table() -> None:
    m, k, n = ints([1, 512, 4096, 77]), ints([64, 4096, 1000, 8192]), ints([64, 11008, 50257, 128])
    table = gemm_seconds(A100, ints([1, 1, 1, 3]), m, k, n, "bf16")
    alone = [seconds(A100, *map(int, row[1:]), batch=int(row[0])) for row in zip([1, 1, 1, 3], m, k, n, strict=True)]
    assert table.tolist() == alone
