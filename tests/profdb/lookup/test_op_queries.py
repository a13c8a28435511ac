"""Every size and word of an operation reaches the question that is asked for it."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ops.op import Attention, Axis, BatchedGemm, Comm, GroupedGemm, MemoryBound, Op, Phase, Update
from ops.roles import Module, Role
from profdb.lookup.op_queries import own_s
from profdb.lookup.queries import Query
from spec.arrays import ints
from spec.collectives import Collective

NUMBER = {"phase": Phase.INPUT_GRAD, "module": Module.OTHER, "role": Role.PROJECTION}
PRODUCT = {"m": ints([2]), "k": ints([3]), "n": ints([5]), "layout": "TN", "dtype": "fp8"}
CALL = {name: ints([size]) for name, size in zip(("batch", "q_len", "kv_len"), (2, 3, 5), strict=True)}
HEADS = {"heads": ints([8]), "kv_heads": ints([4]), "qk_dim": 192, "v_dim": 128}
WORDS = {"mask": "window", "window": 7, "direction": "backward", "kernel": "torch_sdpa", "dtype": "fp16"}


class Listener:
    """A book that keeps the question instead of answering."""

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
    asked, query = own_s(Listener(), op)  # type: ignore[misc, arg-type]
    assert asked == method
    shared = {one.name for one in fields(query)} & {one.name for one in fields(op)}
    assert len(shared) >= (1 if method == "optimizer_s" else 7)
    for name in shared:
        predicted, wanted = getattr(query, name), getattr(op, name)
        same = (
            predicted == wanted if isinstance(wanted, str | bool) else np.array_equal(predicted, ints(wanted))
        )
        assert same, name


@pytest.mark.parametrize(
    ("phase", "direction"),
    [(Phase.FORWARD, "forward"), (Phase.RECOMPUTE, "forward"), (Phase.WEIGHT_GRAD, "backward")],
)
def test_the_phase_of_a_kernel_is_its_direction(phase: Phase, direction: str) -> None:
    op = MemoryBound(
        module=Module.MLP,
        role=Role.ACTIVATION,
        phase=phase,
        kernel="swiglu",
        rows=ints([3]),
        width=ints([5]),
        dtype="fp16",
    )
    _, query = own_s(Listener(), op)  # type: ignore[misc, arg-type]
    assert (query.kernel, query.direction, query.dtype) == ("swiglu", direction, "fp16")
    assert (query.rows.tolist(), query.width.tolist()) == ([3], [5])


def test_a_collective_is_not_a_rank_s_own() -> None:
    fields_of = {"collective": Collective.ALL_REDUCE, "axis": Axis.TP, "size_bytes": ints([8])}
    assert own_s(Listener(), Comm(**NUMBER, **fields_of)) is None  # type: ignore[arg-type]
