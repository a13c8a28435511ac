"""Copies around collectives over the sequence: where a micro-batch has several, and where tokens are
exchanged for heads.
"""

from typing import Any

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import MemoryBound, Op
from ops.roles import Role
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TP, TOKENS = 4, 1024


def copied(micro_batch: int, strategy: str = "fsp", preset: str = "fsdp", **changes: Any) -> float:
    """Bytes that copies of a layer move, in whole hidden states of the micro-batch."""
    asked = job(world_size=TP, seq_len=TOKENS, preset=framework_preset(preset).changed(changes))
    (block,) = written(small_model(), asked, strategy, Layout.of(TP, tp=TP, micro_batch=micro_batch)).blocks
    whole = 2.0 * micro_batch * TOKENS * small_model().hidden
    ops = [op for op in (*block.forward, *block.backward) if isinstance(op, MemoryBound)]
    return sum(float(bytes_moved(op)[0]) for op in ops if op.name.endswith("_in_order")) / whole


@pytest.mark.parametrize(
    ("strategy", "preset", "changes", "collectives"),
    [
        # a layer gathers twice and reduces twice, forward and backward, and gathers both inputs again
        ("fsp", "fsdp", {}, 4 + 4 + 2),
        # what products send themselves lies in order; whole are inputs gathered again and sums of input gradients
        ("fsp", "fsdp", {"tensor_parallel.overlap": True}, 2 + 2),
        ("mtp", "fsdp", {}, 0),
        ("fsp", "megatron", {}, 0),
    ],
)
def test_each_collective_reads_and_writes_its_array_once_more(
    strategy: str, preset: str, changes: dict[str, object], collectives: int
) -> None:
    assert copied(2, strategy, preset, **changes) == pytest.approx(2 * collectives)
    assert copied(1, strategy, preset, **changes) == 0.0


def test_in_a_table_each_row_copies_by_its_own_sequences() -> None:
    asked = job(world_size=TP, seq_len=TOKENS, preset=framework_preset("fsdp"))
    layout = Layout.of(TP, tp=np.array([TP, TP, 1]), micro_batch=np.array([1, 2, 2]))
    (block,) = written(small_model(), asked, "fsp", layout).blocks
    (behind,) = [op for op in block.forward if op.name == "mlp.up.enter_in_order"]
    assert isinstance(behind, MemoryBound)
    assert behind.rows.tolist() == [0, 2 * TOKENS, 0]


def test_a_copy_stands_behind_a_gather_and_before_a_reduction() -> None:
    asked = job(world_size=TP, seq_len=TOKENS, preset=framework_preset("fsdp"))
    (block,) = written(small_model(), asked, "fsp", Layout.of(TP, tp=TP, micro_batch=2)).blocks
    names = [op.name for op in block.forward if op.role in (Role.ENTER, Role.LEAVE, Role.COPY)]
    assert names == [
        "attention.qkv.enter",
        "attention.qkv.enter_in_order",
        "attention.out.leave_in_order",
        "attention.out.leave",
        "mlp.up.enter",
        "mlp.up.enter_in_order",
        "mlp.down.leave_in_order",
        "mlp.down.leave",
    ]


CP = 4


def exchanged(copies: str) -> tuple[list[MemoryBound], list[MemoryBound]]:
    """Copies around attention, forward and backward: of a row with whole sequences, and of one with a rank's TOKENS."""
    preset = framework_preset("megatron").changed({"tensor_parallel.exchange_copies": copies})
    asked = job(world_size=CP, seq_len=TOKENS * CP, preset=preset, context_parallel="all_to_all")
    layout = Layout.of(CP, cp=np.array([1, CP]))
    (block,) = written(small_model(), asked, "mtp", layout).blocks

    def found(ops: tuple[Op, ...]) -> list[MemoryBound]:
        return [op for op in ops if isinstance(op, MemoryBound) and op.name.endswith("_context_in_order")]

    return found(block.forward), found(block.backward)


@pytest.mark.parametrize(
    ("copies", "into", "out"), [("reordered", 2, 2), ("lists", 2, 1), ("permuted", 1, 1)]
)
def test_each_copy_of_an_exchange_reads_and_writes_its_whole_array(copies: str, into: int, out: int) -> None:
    """q, k and v go in and the output comes out; gradients go the other way round, and copy so."""
    forward, backward = exchanged(copies)
    assert [op.repeat for op in forward] == [into, into, into, out]
    assert [op.repeat for op in backward] == [into, out, out, out]
    for op in (forward[0], forward[-1], backward[0], backward[-1]):
        assert isinstance(op.repeat, int)
        assert bytes_moved(op).tolist() == [0.0, 2.0 * op.repeat * 2 * TOKENS * small_model().hidden]
