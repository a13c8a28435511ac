"""Gradients of an input that several matrices share: what adds them up, and how often they are reduced over tp."""

from dataclasses import replace
from typing import Any

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Comm, Lane, MemoryBound, Pass
from ops.roles import Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TOKENS = 1024


def layer(preset: str, tp: int = 1, **changes: Any) -> Pass:
    asked = job(world_size=tp, seq_len=TOKENS, preset=framework_preset(preset).changed(changes))
    return written(small_model(), asked, "fsp" if tp > 1 else "mtp", Layout.of(tp, tp=tp)).blocks[0]


def summed(piece: Pass) -> dict[str, float]:
    """Bytes an element of the layer's input, by the product they belong to."""
    found: dict[str, float] = {}
    for op in piece.backward:
        if isinstance(op, MemoryBound) and op.name.endswith("add_gradients"):
            moved = float(bytes_moved(op)[0]) / (TOKENS * small_model().hidden)
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


def reductions(piece: Pass) -> list[str]:
    return [
        op.name
        for op in piece.backward
        if isinstance(op, Comm) and op.collective is Collective.REDUCE_SCATTER and op.role is Role.ENTER
    ]


def test_dtensor_reduces_the_sum_of_gradients_once() -> None:
    once = {"tensor_parallel.dtensor": True, "layers.joined_gate": False}
    assert len(reductions(layer("megatron", tp=4, **once))) == 2
    each = {"tensor_parallel.dtensor": False, "layers.joined_gate": False}
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


@pytest.mark.parametrize(("preset", "reduced"), [("deepspeed", 1), ("deepspeed-bf16", 1), ("megatron", 2)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_neox_reduces_halves_side_by_side_once(preset: str, reduced: int, recompute: str) -> None:
    """GPT-NeoX megatron/model/transformer.py, gpt_j_residual: residual + reduce(attention + mlp), an all-reduce of the
    hidden states forward and one of each half's input gradient backward."""
    model, asked = small_model(), job(seq_len=TOKENS, world_size=4, preset=framework_preset(preset))
    run = model.blocks[0]
    for parallel, forward in ((False, 2), (True, reduced)):
        block = replace(run.block, parallel_residual=parallel)
        told = replace(model, blocks=(replace(run, block=block),))
        piece = written(told, asked, "mtp", Layout.of(4, tp=4), recompute).blocks[0]
        sums = [op for op in (*piece.forward, *piece.backward) if isinstance(op, Comm)]
        assert [op.size_bytes[0] for op in sums] == [2 * TOKENS * model.hidden] * len(sums)
        assert len([op for op in piece.forward if isinstance(op, Comm)]) == forward
        assert len(sums) == forward * (1 + (recompute == "full")) + 2
        cut = written(told, asked, "fsp", Layout.of(4, tp=4)).blocks[0]
        assert len([op for op in cut.forward if isinstance(op, Comm)]) == 2 + forward
