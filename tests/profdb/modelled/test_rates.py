"""Rates of a number format where a sheet states no sustained one."""

from dataclasses import replace
from math import log
from statistics import median

import numpy as np
import pytest

from profdb.modelled.gemm import gemm_seconds
from profdb.modelled.rates import flops_rates
from spec.cluster.reader import read_cluster
from tests.solver.questions import ROOT

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


@pytest.mark.parametrize(("dtype", "measured_ms"), [("bf16", 12.93), ("fp8", 6.812), ("fp4", 3.764)])
def test_a_layers_products_on_b300_take_what_was_published(dtype: str, measured_ms: float) -> None:
    """Forward, input and weight gradients of four linears on 15,872 tokens (Transformer Engine, gemm_profiling.rst)."""
    gpu = read_cluster("b300", root=ROOT).gpu
    t, h = 15872, 4096
    pairs = [(h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)]
    shapes = [shape for i, o in pairs for shape in ((t, i, o), (t, o, i), (o, t, i))]
    m, k, n = (np.array(sizes) for sizes in zip(*shapes, strict=True))
    told = gemm_seconds(gpu, np.ones_like(m), m, k, n, dtype).sum() / gpu.training_rate_ratio
    assert told * 1e3 == pytest.approx(measured_ms, rel=0.08)
