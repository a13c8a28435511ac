"""What becomes of the joined product of queries, keys and values around a flash kernel."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Attention, MemoryBound, Op
from ops.roles import Role
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, PositionKind
from tests.ops.layouts import job, written

TOKENS, HEADS, DIM = 256, 8, 64
MEGATRON = job(seq_len=TOKENS, preset=framework_preset("megatron"))


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
    assert copied(replace(MEGATRON, preset=framework_preset("fsdp")), 2) == [0, 0]


def repeated(
    framework: str, kv_heads: int, tp: int = 1, **settings: object
) -> tuple[list[tuple[str, float]], float]:
    """Kernels of the repeated heads with the bytes a token that they move, and bytes a token that the
    attention keeps.
    """
    kind = AttentionKind.MHA if kv_heads == HEADS else AttentionKind.GQA
    attention = AttentionSpec(kind=kind, num_heads=HEADS, num_kv_heads=kv_heads, qk_dim=DIM, v_dim=DIM)
    run = BlockRun(block=BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=1024, gated=True)), count=1)
    model = ModelSpec(name="m", hidden=512, vocab=1024, blocks=(run,), source="", max_positions=TOKENS)
    asked = replace(job(seq_len=TOKENS, preset=framework_preset(framework)), **settings)
    piece = written(model, asked, "fsp" if tp > 1 else "mtp", Layout.of(8, tp=tp), "none").blocks[0]
    kernels = [
        (op.kernel, float((bytes_moved(op) + np.zeros(1))[0]) / TOKENS)
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, MemoryBound) and op.name == "attention.repeated_heads"
    ]
    (core,) = [op for op in piece.forward if isinstance(op, Attention)]
    return kernels, float(core.input_bytes[0]) / TOKENS


@pytest.mark.parametrize(("kv_heads", "tp"), [(2, 1), (1, 1), (4, 2)])
def test_repeated_heads_are_read_once_written_often_and_kept(kv_heads: int, tp: int) -> None:
    """Keys and values: read of n_kv heads, written to n, 2 bytes a channel each; backward the other way round."""
    heads, keys = HEADS // tp, kv_heads // tp
    moved = 2 * (heads + keys) * 2 * DIM
    assert repeated("fsdp-compiled", kv_heads, tp) == (
        [("copy", moved), ("copy", moved)],
        2 * 3 * heads * DIM,
    )


def test_eager_code_repeats_heads_by_the_kernel_for_strides() -> None:
    """Which is bound by what it writes: n heads of keys and of values."""
    preset = replace(
        framework_preset("fsdp"), layers=replace(framework_preset("fsdp").layers, repeats_keys=True)
    )
    kernels, _ = repeated("fsdp", 2, preset=preset)
    assert kernels == [("strided_copy", 2 * 2 * HEADS * 2 * DIM), ("copy", 2 * (HEADS + 2) * 2 * DIM)]


def test_nothing_is_repeated_where_heads_are_as_many_or_the_kernel_takes_groups() -> None:
    assert repeated("fsdp-compiled", HEADS) == ([], 2 * 3 * HEADS * DIM)
    assert repeated("torchtitan", 2) == ([], 2 * (HEADS + 2 * 2) * DIM)
    assert repeated("fsdp-compiled", 2, flash_attention=False)[0] == []


def test_a_rank_of_one_key_and_one_query_head_repeats_none() -> None:
    """8 heads of 4 pairs of keys on 8 ranks: each has one query head and a copy of its keys."""
    kernels, kept = repeated("fsdp-compiled", 4, tp=8)
    assert sum(moved for _, moved in kernels) == 0.0
    assert kept == 2 * 3 * DIM
