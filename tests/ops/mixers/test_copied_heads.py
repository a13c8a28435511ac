"""What becomes of the joined product of queries, keys and values around a flash kernel."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.op import MemoryBound, Op
from ops.roles import Role
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, PositionKind
from spec.presets.registry import PRESETS
from tests.ops.layouts import job, written

TOKENS, HEADS, DIM = 256, 8, 64
MEGATRON = job(seq_len=TOKENS, preset=PRESETS["megatron"])


def copied(
    asked: JobSpec, kv_heads: int, tp: int = 1, position: PositionKind = PositionKind.ROTARY
) -> list[float]:
    """Channels of a token that are copied forward and backward."""
    kind = AttentionKind.MHA if kv_heads == HEADS else AttentionKind.GQA
    attention = AttentionSpec(kind=kind, num_heads=HEADS, num_kv_heads=kv_heads, qk_dim=DIM, v_dim=DIM)
    block = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=1024, gated=True))
    run = BlockRun(block=block, count=1)
    model = ModelSpec(
        name="m", hidden=512, vocab=1024, blocks=(run,), source="", position=position, max_positions=TOKENS
    )
    piece = written(model, asked, "fsp" if tp > 1 else "mtp", Layout.of(8, tp=tp), "none").blocks[0]

    def channels(ops: tuple[Op, ...], kernel: str) -> float:
        found = [op for op in ops if isinstance(op, MemoryBound) and op.role is Role.COPY]
        assert {op.kernel for op in found} <= {kernel}
        return sum(float(op.rows[0] * op.width[0]) for op in found) / TOKENS

    return [channels(piece.forward, "strided_copy"), channels(piece.backward, "copy")]


@pytest.mark.parametrize(
    ("kv_heads", "tp", "heads"),
    [(8, 1, (8, 24)), (2, 1, (8 + 2, 12)), (1, 1, (1, 10)), (2, 2, (1, 6)), (4, 2, (4 + 2, 8))],
)
def test_megatron_makes_tensors_of_views_and_one_of_their_gradients(
    kv_heads: int, tp: int, heads: tuple[int, int]
) -> None:
    """Queries are copied where a rank has several groups of them, values always, gradients of all three."""
    assert copied(MEGATRON, kv_heads, tp) == [DIM * count for count in heads]


def test_views_stay_views_without_rotation_and_in_other_frameworks() -> None:
    assert copied(MEGATRON, 2, position=PositionKind.LEARNED) == [0, 0]
    assert copied(replace(MEGATRON, preset=PRESETS["fsdp"]), 2) == [0, 0]
