"""Copies around collectives over the sequence where a micro-batch has several."""

from typing import Any

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import MemoryBound
from ops.roles import Role
from spec.presets.registry import PRESETS
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TP, TOKENS = 4, 1024


def copied(micro_batch: int, strategy: str = "fsp", preset: str = "fsdp", **changes: Any) -> float:
    """Bytes that copies of a layer move, in whole hidden states of the micro-batch."""
    asked = job(world_size=TP, seq_len=TOKENS, preset=PRESETS[preset].changed(changes))
    (block,) = written(small_model(), asked, strategy, Layout.of(TP, tp=TP, micro_batch=micro_batch)).blocks
    whole = 2.0 * micro_batch * TOKENS * small_model().hidden
    ops = [op for op in (*block.forward, *block.backward) if isinstance(op, MemoryBound)]
    return sum(float(op.bytes_moved[0]) for op in ops if op.name.endswith("_in_order")) / whole


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
    asked = job(world_size=TP, seq_len=TOKENS, preset=PRESETS["fsdp"])
    layout = Layout.of(TP, tp=np.array([TP, TP, 1]), micro_batch=np.array([1, 2, 2]))
    (block,) = written(small_model(), asked, "fsp", layout).blocks
    (behind,) = [op for op in block.forward if op.name == "mlp.up.enter_in_order"]
    assert isinstance(behind, MemoryBound)
    assert behind.rows.tolist() == [0, 2 * TOKENS, 0]


def test_a_copy_stands_behind_a_gather_and_before_a_reduction() -> None:
    asked = job(world_size=TP, seq_len=TOKENS, preset=PRESETS["fsdp"])
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
