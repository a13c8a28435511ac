"""Gradients of an input that several matrices share: what adds them up, and how often they are reduced over tp."""

from typing import Any

import pytest

from ops.layout import Layout
from ops.op import Comm, Lane, MemoryBound, Piece
from ops.roles import Role
from spec.collectives import Collective
from spec.presets.registry import PRESETS
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TOKENS = 1024


def layer(preset: str, tp: int = 1, **changes: Any) -> Piece:
    asked = job(world_size=tp, seq_len=TOKENS, preset=PRESETS[preset].changed(changes))
    return written(small_model(), asked, "fsp" if tp > 1 else "mtp", Layout.of(tp, tp=tp)).blocks[0]


def summed(piece: Piece) -> dict[str, float]:
    """Bytes an element of the layer's input, by the product they belong to."""
    found: dict[str, float] = {}
    for op in piece.backward:
        if isinstance(op, MemoryBound) and op.name.endswith("add_gradients"):
            moved = float(op.bytes_moved[0]) / (TOKENS * small_model().hidden)
            found[op.name] = found.get(op.name, 0.0) + moved
    return found


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # transformers' LlamaAttention and LlamaMLP: q + k, + v, gate + up, each two read and one written in 16 bits
        ("hf-trainer", {"attention.qkv.add_gradients": 2 * 6.0, "mlp.up.add_gradients": 6.0}),
        ("xtuner", {"attention.qkv.add_gradients": 2 * 6.0, "mlp.up.add_gradients": 6.0}),
        # compiled, the next kernel reads each one more
        ("fsdp-compiled", {"attention.qkv.add_gradients": 2 * 2.0, "mlp.up.add_gradients": 2.0}),
        ("torchtitan", {"attention.qkv.add_gradients": 2 * 2.0, "mlp.up.add_gradients": 2.0}),
        ("composer", {}),
        ("megatron", {}),
    ],
)
def test_gradients_of_matrices_that_share_an_input_are_added(preset: str, expected: dict[str, float]) -> None:
    assert summed(layer(preset)) == expected


def reductions(piece: Piece) -> list[str]:
    return [
        op.name
        for op in piece.backward
        if isinstance(op, Comm) and op.collective is Collective.REDUCE_SCATTER and op.role is Role.ENTER
    ]


def test_dtensor_reduces_the_sum_of_gradients_once() -> None:
    once = {"tensor_parallel.reduces_sums": True, "layers.joined_gate": False}
    assert len(reductions(layer("megatron", tp=4, **once))) == 2
    each = {"tensor_parallel.reduces_sums": False, "layers.joined_gate": False}
    assert len(reductions(layer("megatron", tp=4, **each))) == 3
    assert len(reductions(layer("torchtitan", tp=4))) == 2


def test_asynchronous_tensor_parallelism_fuses_no_sum_into_its_reduction() -> None:
    """_find_producer_matmul finds a product, and an addition is none."""
    piece = layer("torchtitan", tp=4, **{"tensor_parallel.overlap": True})
    lanes = {
        (op.role, op.phase.value, op.collective): op.lane
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, Comm) and op.role in (Role.ENTER, Role.LEAVE)
    }
    waited = {key for key, lane in lanes.items() if lane is Lane.MAIN}
    assert [(role, kind) for role, _, kind in waited] == [(Role.ENTER, Collective.REDUCE_SCATTER)]
    assert len(lanes) == 4
