"""What products hold of their benchmark rate: read from the profile where it was measured on the GPU itself."""

from dataclasses import replace

import pytest

from profdb.cases import Case, GemmCase, SustainedCase
from profdb.cost_model import ProfileCostModel
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.sustained import NOTHING_SUSTAINED, SustainedRates, settled_s, sustained_rates
from spec.origin import Origin

SIDE = 8192
PRODUCT_S = 1.4e-3
"""8192^3 in bf16 at 785 TFLOP/s."""


def sample(case: Case, *trials_s: float, origin: Origin = Origin.MEASURED) -> Sample:
    return Sample(case=case, trials_s=trials_s, origin=origin)


def product(dtype: str, recipe: str = "") -> GemmCase:
    return GemmCase(m=SIDE, k=SIDE, n=SIDE, dtype_in=dtype, scale_recipe=recipe)


def sustained(dtype: str, recipe: str = "") -> SustainedCase:
    return SustainedCase(seconds=30, m=SIDE, k=SIDE, n=SIDE, dtype_in=dtype, scale_recipe=recipe)


def book_of(*samples: Sample, gpu: str = "x") -> ProfileCostModel:
    return ProfileCostModel(ProfileDatabase(machine=MachineFacts(gpu=gpu), samples=samples))


SETTLING = (*[1.42e-3] * 10, *[1.5e-3] * 5, *[1.6e-3] * 15)
"""One reading a second: the clocks fall for a while."""


def test_the_ratio_is_the_benchmarks_time_over_that_of_settled_clocks() -> None:
    held = sample(sustained("bf16"), *SETTLING)
    assert settled_s(held) == 1.6e-3
    cost_model = book_of(held, sample(product("bf16"), PRODUCT_S))
    assert sustained_rates(cost_model, "x").ratios == pytest.approx({"bf16": PRODUCT_S / 1.6e-3})


def test_each_format_has_its_own_and_16_bits_share_one() -> None:
    cost_model = book_of(
        sample(sustained("bf16"), *SETTLING),
        sample(product("bf16"), PRODUCT_S),
        sample(sustained("fp8", "tensor"), 0.9e-3),
        sample(product("fp8", "tensor"), 0.72e-3),
    )
    rates = sustained_rates(cost_model, "x")
    assert rates.of("bf16", 0.5) == rates.of("fp16", 0.5) == pytest.approx(0.875)
    assert rates.of("fp8", 0.5) == pytest.approx(0.8)
    assert rates.of("fp32", 0.5) == 0.5


def test_clocks_that_hold_are_no_gain() -> None:
    assert sustained_rates(book_of(sample(sustained("bf16"), 1e-3), sample(product("bf16"), 2e-3)), "x").ratios == {
        "bf16": 1.0
    }


@pytest.mark.parametrize(
    "samples",
    [
        [sample(product("bf16"), PRODUCT_S)],
        [sample(sustained("bf16"), *SETTLING)],  # no benchmark to compare with
        [sample(sustained("bf16"), *SETTLING, origin=Origin.TRANSFERRED), sample(product("bf16"), PRODUCT_S)],
        [sample(sustained("bf16"), *SETTLING), sample(product("bf16"), PRODUCT_S, origin=Origin.MODELLED)],
        [replace(sample(sustained("bf16"), 1.0), trials_s=(), status="oom"), sample(product("bf16"), PRODUCT_S)],
    ],
)
def test_what_was_not_measured_says_nothing(samples: list[Sample]) -> None:
    assert sustained_rates(book_of(*samples), "x").ratios == {}


def test_another_gpus_rates_say_nothing() -> None:
    cost_model = book_of(sample(sustained("bf16"), *SETTLING), sample(product("bf16"), PRODUCT_S), gpu="y")
    assert sustained_rates(cost_model, "x") is NOTHING_SUSTAINED
    assert SustainedRates().of("bf16", 0.91) == 0.91
