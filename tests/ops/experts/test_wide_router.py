"""A router whose scores are fp32: what its backward copies and in which format it multiplies."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import BatchedGemm, MemoryBound, Pass, Phase
from ops.roles import Role
from tests.ops.experts.test_moe_block import EP, EXPERTS, HIDDEN, SEQ, model
from tests.ops.layouts import job, written


def layer(router: str, strategy: str = "mtp", **degrees: int) -> Pass:
    asked = job(seq_len=SEQ)
    asked = replace(asked, precision=replace(asked.precision, router=router))
    return written(model(), asked, strategy, Layout.of(8, ep=EP, **degrees)).blocks[0]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_wide_router_copies_weight_and_input_and_both_gradients(tp: int) -> None:
    """6 bytes an element each: weight and input from 16 bits to fp32, their gradients back."""
    piece = layer("fp32", "fsp" if tp > 1 else "mtp", tp=tp)
    copies = [op for op in piece.backward if isinstance(op, MemoryBound) and op.serves is Role.ROUTER]
    copies = [op for op in copies if op.role is Role.CAST]
    weight, tokens = 6 * EXPERTS * HIDDEN, 6 * SEQ // tp * HIDDEN
    assert {op.name: float(bytes_moved(op)[0]) for op in copies if op.phase is Phase.INPUT_GRAD} == {
        "moe.router.widen": weight,
        "moe.router.narrow": tokens,
    }
    assert {op.name: float(bytes_moved(op)[0]) for op in copies if op.phase is Phase.WEIGHT_GRAD} == {
        "moe.router.widen": tokens,
        "moe.router.narrow": weight,
    }


def test_its_gradients_are_multiplied_in_tf32_and_all_else_is_as_before() -> None:
    wide, plain = layer("fp32"), layer("")
    formats = [
        {
            op.phase: op.dtype
            for op in (*piece.forward, *piece.backward)
            if isinstance(op, BatchedGemm) and op.role is Role.ROUTER
        }
        for piece in (wide, plain)
    ]
    assert formats[0] == {Phase.FORWARD: "bf16", Phase.INPUT_GRAD: "tf32", Phase.WEIGHT_GRAD: "tf32"}
    assert set(formats[1].values()) == {"bf16"}
    assert [op.name for op in wide.forward] == [op.name for op in plain.forward]
    assert len(wide.backward) == len(plain.backward) + 4
    assert [sum(float(op.saved_bytes[0]) for op in piece.forward) for piece in (wide, plain)] == [
        pytest.approx(sum(float(op.saved_bytes[0]) for op in plain.forward))
    ] * 2
