"""Products of rows at odd addresses run at the rate of the kernels that are left for them; measured ones are
left alone.
"""

from pathlib import Path

import pytest

from ops.op import BatchedGemm, Phase
from ops.roles import Module, Role
from profdb.cases import GemmCase
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.unaligned_products import (
    NOTHING_MEASURED,
    MeasuredExtents,
    measured_extents,
    unaligned_s,
)
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from spec.origin import Origin

TOKENS, HIDDEN = 16384, 2048
ROOT = Path(__file__).resolve().parents[3]
GPU = read_cluster("h100-sxm", root=ROOT).gpu
ALIGNED_S = 1e-6
ALIGNED = TimeEstimate(
    seconds=floats(ALIGNED_S), relative_std=floats(0.05), origin=ints(int(Origin.MEASURED))
)


def product(
    m: int, k: int, n: int, layout: str = "NT", *, role: Role = Role.LOGITS, dtype: str = "bf16"
) -> BatchedGemm:
    return BatchedGemm(
        module=Module.HEAD,
        role=role,
        phase=Phase.FORWARD,
        batch=ints(1),
        m=ints(m),
        k=ints(k),
        n=ints(n),
        layout=layout,
        dtype=dtype,
        saved_bytes=floats(0.0),
        parameters=ints(0),
    )


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
    samples = [
        Sample(case=GemmCase(m=m, k=k, n=n, layout=layout), trials_s=(5e-3,)) for m, k, n, layout in sizes
    ]
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
