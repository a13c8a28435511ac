"""Modelled and restated times against published measurements, where their folder is at hand.

Limits are the accuracy the models claim (docs/clusters.md), not what a fit of today happens to give.
"""

import os
from pathlib import Path

import pytest

from benchmarks.measured_times import read_folder, tables_by_gpu
from benchmarks.modelled_accuracy import SpecScore, all_scores

ROOT = Path(__file__).resolve().parents[3]
CURVES = Path(os.environ.get("PLAN_SHARED_DATA", ROOT.parent / "shared")) / "curves"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.shared_data,
    pytest.mark.skipif(
        not (CURVES / "gemm.csv").is_file(), reason=f"no measured curves at {CURVES} (PLAN_SHARED_DATA)"
    ),
]

LIMITS = {"modelled gemm": 0.12, "modelled nccl": 0.20, "modelled attention forward": 0.25}
TRANSFERS = ("A100 -> H100", "H100 -> H200", "H100 -> B200")
TRANSFER_LIMITS = {"transferred gemm": 0.10, "transferred attention": 0.15}


@pytest.fixture(scope="module")
def scores() -> list[SpecScore]:
    return all_scores(tables_by_gpu(read_folder(CURVES)[0]))


@pytest.mark.parametrize("what", LIMITS)
def test_modelled_times_are_as_good_as_they_claim(scores: list[SpecScore], what: str) -> None:
    found = [score for score in scores if score.what == what]
    assert len(found) == 4
    for score in found:
        assert score.median <= LIMITS[what], score


@pytest.mark.parametrize("what", TRANSFER_LIMITS)
def test_restated_times_are_as_good_as_they_claim(scores: list[SpecScore], what: str) -> None:
    found = [score for score in scores if score.what == what and score.gpu in TRANSFERS]
    assert len(found) == 3
    for score in found:
        assert score.median <= TRANSFER_LIMITS[what], score
