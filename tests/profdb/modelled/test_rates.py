"""Rates of a number format where a sheet states no sustained one."""

from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median

import pytest

from profdb.modelled.rates import flops_rates
from spec.cluster.reader import read_cluster

ROOT = Path(__file__).resolve().parents[3]
H100 = read_cluster("h100-sxm", root=ROOT).gpu


def test_without_a_sustained_rate_the_median_of_published_gpus_counts() -> None:
    """stas00/ml-engineering, bf16: A100 SXM and PCIe, H100, B200, B300, GB200."""
    published = median([0.869, 0.811, 0.803, 0.776, 0.786, 0.729])
    rates = flops_rates(replace(H100, sustained_flops={}), "bf16")
    assert rates.sustained / rates.peak == pytest.approx(published, abs=1e-3)


def test_another_formats_share_counts_before_that() -> None:
    shares = {"bf16": 0.5 * H100.peak_flops["bf16"]}
    rates = flops_rates(replace(H100, sustained_flops=shares), "fp8")
    assert rates.sustained == pytest.approx(0.5 * rates.peak)


def under_load(sheet: str, dtype: str = "bf16") -> float:
    """FLOP/s that long products keep in a step."""
    gpu = read_cluster(sheet, root=ROOT).gpu
    return flops_rates(gpu, dtype).sustained * gpu.training_rate_ratio


@pytest.mark.parametrize(("sheet", "watts"), [("gb200-nvl72", 1200.0), ("gb300-nvl72", 1400.0)])
def test_blackwells_rate_under_load_grows_with_a_power_of_its_watts(sheet: str, watts: float) -> None:
    """fp8 products (pytorch/FBGEMM pull request 4172): 2.8 times an H100 at 1200 W, 2 times at 750 W."""
    assert read_cluster(sheet, root=ROOT).gpu.power_w == watts
    grown = (watts / 1000.0) ** (log(2.8 / 2.0) / log(1200.0 / 750.0))
    assert under_load(sheet) / under_load("b200") == pytest.approx(grown, rel=0.005)


def test_b300_keeps_the_rate_of_its_published_products() -> None:
    """2 x 3 x 15872 x 4096 x (3 + 1 + 4 + 4) x 4096 FLOPs in 12.758 to 13.102 ms (Transformer Engine, gemm_profiling.rst)."""
    work = 6.0 * 15872 * 12 * 4096**2
    assert work / 13.102e-3 < under_load("b300") < work / 12.758e-3
