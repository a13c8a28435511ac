"""The fit that leaves a GPU out moves the constants it names, and only while it prices."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from benchmarks.modelled_accuracy import price_collectives, price_gemm, sheet_of
from benchmarks.modelled_held_out import GEMM_CONSTANTS, NCCL_CONSTANTS, Constant, Fitted
from profdb.modelled.cost_model import ModelledCostModel
from spec.collectives import Collective

GPU = "H100-80GB"
KINDS = (Collective.ALL_REDUCE, Collective.ALL_TO_ALL)


def measured_as_told(name: str) -> Fitted:
    """A family whose measurements are what the cost model says with the constants as they stand."""
    if name == "gemm":
        sizes = pd.DataFrame(
            {"gpu": GPU, "batch": 1, "m": [64, 4096, 131072], "k": [65536, 1024, 64], "n": 2048}
        )
        family = Fitted(name=name, table=sizes, price=price_gemm, constants=GEMM_CONSTANTS)
    else:
        rows = [{"collective": kind.value, "size_bytes": 2**power} for kind in KINDS for power in (12, 30)]
        sizes = pd.DataFrame(rows).assign(gpu=GPU, intra=8, inter=1, siblings=1)
        family = Fitted(name=name, table=sizes, price=price_collectives, constants=NCCL_CONSTANTS)
    predicted = family.price(ModelledCostModel(cluster=sheet_of(GPU)), sizes).seconds
    sizes["latency_us"] = predicted * 1e6
    return family


@pytest.mark.parametrize("name", ["gemm", "nccl"])
def test_constants_are_searched_where_the_price_reads_them(name: str) -> None:
    family = measured_as_told(name)
    as_they_stand = np.array([getattr(one.module, one.name) for one in family.constants])
    error = partial(family.error, gpu=GPU, points=0)
    assert error(as_they_stand) == pytest.approx(0.0, abs=1e-12)
    assert error(as_they_stand * 0.5) > 0.1
    assert [getattr(one.module, one.name) for one in family.constants] == list(as_they_stand)


@pytest.mark.parametrize("constant", [*GEMM_CONSTANTS, *NCCL_CONSTANTS], ids=lambda one: one.name)
def test_every_range_holds_the_constant(constant: Constant) -> None:
    assert constant.low <= getattr(constant.module, constant.name) <= constant.high
