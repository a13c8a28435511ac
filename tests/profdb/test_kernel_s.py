"""Every size and word of an operation reaches the question that is asked for it."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ops.op import Attention, Axis, BatchedGemm, Comm, GroupedGemm, Op, Phase, Update
from ops.roles import Module, Role
from profdb.cost_model import kernel_s
from profdb.queries import Query, TimeEstimate
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.origin import Origin
from tests.ops.operations import memory_bound
from tests.solver.questions import ROOT

NUMBER = {"phase": Phase.INPUT_GRAD, "module": Module.OTHER, "role": Role.PROJECTION}
PRODUCT = {"m": ints([2]), "k": ints([3]), "n": ints([5]), "layout": "TN", "dtype": "fp8"}
CALL = {name: ints([size]) for name, size in zip(("batch", "q_len", "kv_len"), (2, 3, 5), strict=True)}
HEADS = {"heads": ints([8]), "kv_heads": ints([4]), "qk_dim": 192, "v_dim": 128}
WORDS = {"mask": "window", "window": 7, "direction": "backward", "kernel": "torch_sdpa", "dtype": "fp16"}


class Listener:
    """A cost model that keeps the question instead of answering."""

    def __getattr__(self, method: str) -> Any:
        def keep(query: Query) -> tuple[str, Query]:
            return method, query

        return keep


@pytest.mark.parametrize(
    ("op", "method"),
    [
        (BatchedGemm(**NUMBER, **PRODUCT, batch=ints([7]), scale_recipe="block", bias=True), "linear_s"),
        (GroupedGemm(**NUMBER, **PRODUCT, groups=ints([7]), scale_recipe="block"), "grouped_linear_s"),
        (Attention(**NUMBER, **CALL, **HEADS, **WORDS), "attention_s"),
        (Update(**NUMBER, elements=ints([11])), "optimizer_s"),
    ],
)
def test_no_field_is_lost(op: Op, method: str) -> None:
    asked, query = kernel_s(Listener(), op)  # type: ignore[misc, arg-type]
    assert asked == method
    shared = {one.name for one in fields(query)} & {one.name for one in fields(op)}
    assert len(shared) >= (1 if method == "optimizer_s" else 7)
    for name in shared:
        predicted, wanted = getattr(query, name), getattr(op, name)
        same = predicted == wanted if isinstance(wanted, str | bool) else np.array_equal(predicted, ints(wanted))
        assert same, name


@pytest.mark.parametrize(("origin", "said"), [(Origin.MEASURED, Origin.DERIVED), (Origin.MODELLED, Origin.MODELLED)])
def test_a_product_in_tf32_takes_two_of_16_bits(origin: Origin, said: Origin) -> None:
    """Half the rate, twice the bytes."""
    asked = []

    class CostModel:
        def linear_s(self, query: Query) -> TimeEstimate:
            asked.append(query)
            return TimeEstimate(seconds=floats(3e-6), relative_std=floats(0.1), origin=ints(int(origin)))

    op = BatchedGemm(**NUMBER | PRODUCT | {"dtype": "tf32"}, batch=ints([7]))
    found = kernel_s(CostModel(), op)  # type: ignore[arg-type]
    assert found is not None
    assert [query.dtype for query in asked] == ["bf16"]
    assert (found.seconds.tolist(), found.relative_std.tolist()) == ([6e-6], [0.1])
    assert found.origin.tolist() == [int(said)]


@pytest.mark.parametrize("sheet", ["a100-sxm-80g", "h100-sxm", "b200", "gb300-nvl72", "mi300x"])
def test_sheets_have_tf32_at_half_the_rate_of_16_bits(sheet: str) -> None:
    peaks = read_cluster(sheet, root=ROOT).gpu.peak_flops
    assert peaks["tf32"] == pytest.approx(peaks["bf16"] / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("phase", "direction"), [(Phase.FORWARD, "forward"), (Phase.RECOMPUTE, "forward"), (Phase.WEIGHT_GRAD, "backward")]
)
def test_the_phase_of_a_kernel_is_its_direction(phase: Phase, direction: str) -> None:
    op = memory_bound("swiglu", 3, 5, phase=phase, dtype="fp16")
    _, query = kernel_s(Listener(), op)  # type: ignore[misc, arg-type]
    assert (query.kernel, query.direction, query.dtype) == ("swiglu", direction, "fp16")
    assert (query.rows.tolist(), query.width.tolist()) == ([3], [5])


def test_a_collective_is_not_a_rank_s_own() -> None:
    fields_of = {"collective": Collective.ALL_REDUCE, "axis": Axis.TP, "size_bytes": ints([8])}
    assert kernel_s(Listener(), Comm(**NUMBER, **fields_of)) is None  # type: ignore[arg-type]
