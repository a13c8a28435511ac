"""Rates of a number format where a sheet states no sustained one."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from profdb.modelled.rates import flops_rates
from spec.cluster.reader import read_cluster

H100 = read_cluster("h100-sxm", root=Path(__file__).resolve().parents[3]).gpu


def test_without_a_sustained_rate_the_median_of_published_gpus_counts() -> None:
    """stas00/ml-engineering, bf16: A100 SXM and PCIe, H100, B200, B300, GB200."""
    published = median([0.869, 0.811, 0.803, 0.776, 0.786, 0.729])
    rates = flops_rates(replace(H100, sustained_flops={}), "bf16")
    assert rates.sustained / rates.peak == pytest.approx(published, abs=1e-3)


def test_another_formats_share_counts_before_that() -> None:
    shares = {"bf16": 0.5 * H100.peak_flops["bf16"]}
    rates = flops_rates(replace(H100, sustained_flops=shares), "fp8")
    assert rates.sustained == pytest.approx(0.5 * rates.peak)
