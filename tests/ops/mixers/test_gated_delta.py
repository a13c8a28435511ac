"""Gated DeltaNet's operations by hand: T tokens, n heads of K = 96 by V = 128, chunks of C = 64."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Op, Pass, Phase
from ops.roles import Role
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.model import ModelSpec
from spec.parameters import block_parameters
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, HEADS, K, V, C = 2048, 32, 96, 128, 64
SEQ, BATCH = 2048, 3
TOKENS = SEQ * BATCH


def model(key_heads: int = 16) -> ModelSpec:
    mixer = GatedDeltaSpec(num_key_heads=key_heads, num_value_heads=HEADS, key_dim=K, value_dim=V)
    return with_block(small_model(hidden=HIDDEN), mixer=mixer, mlp=None)


def layer(strategy: str = "mtp", key_heads: int = 16, seq_len: int = SEQ, **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    asked = job(seq_len=seq_len, world_size=ranks, context_parallel="all_to_all")
    return written(model(key_heads), asked, strategy, Layout.of(ranks, micro_batch=BATCH, **degrees)).blocks[0]


def flops(ops: tuple[Op, ...], phase: Phase) -> float:
    """Of the rule's products."""
    return float(
        sum(op.flops[0] for op in ops if isinstance(op, BatchedGemm) and op.role is Role.CORE and op.phase is phase)
    )


def test_forward_products_are_those_of_the_kernels() -> None:
    """flash-linear-attention, a token and head: k k^T (C K) and its triangle (16 C); w and u (C K + C V); w h and k^T v
    (2 K V); q k^T (C K), q h (K V) and the scores times values (C V). Two FLOPs each."""
    a_token = (C * K + 16 * C) + (C * K + C * V) + 2 * K * V + C * K + K * V + C * V
    assert flops(layer().forward, Phase.FORWARD) == 2 * TOKENS * HEADS * a_token


def test_backward_products_are_those_of_the_kernels() -> None:
    """wy_fast.py, chunk_delta_h.py and chunk_o.py, ``tl.dot`` by ``tl.dot``; w, u and the states are made again."""
    dv_local = C * K + C * V
    dhu = 3 * K * V
    dqkwg = C * V + 3 * V * K + 2 * C * K
    wy = (C * K + C * K) + (C * V + C * V) + 2 * C * C + C * K + 2 * C * K
    whole = layer()
    assert flops(whole.backward, Phase.INPUT_GRAD) == 2 * TOKENS * HEADS * (dv_local + dhu + dqkwg + wy)
    assert flops(whole.backward, Phase.RECOMPUTE) == 2 * TOKENS * HEADS * (C * K + C * V + 2 * K * V)


def test_the_recurrence_has_a_block_a_head_and_the_sequence_inside() -> None:
    """chunk_delta_h.py: a grid of heads and blocks of V, a loop over chunks."""
    recurrence = next(op for op in layer().forward if op.name == "gated_delta.recurrence")
    assert isinstance(recurrence, BatchedGemm)
    shape = (recurrence.batch, recurrence.m, recurrence.k, recurrence.n)
    assert [int(size[0]) for size in shape] == [BATCH * HEADS, K, 2 * SEQ, V]


def test_a_short_sequence_is_padded_to_a_chunk() -> None:
    assert flops(layer(seq_len=16).forward, Phase.FORWARD) == flops(layer(seq_len=64).forward, Phase.FORWARD)


@pytest.mark.parametrize(("key_heads", "repeated"), [(32, 1), (16, 2)])
def test_what_is_kept(key_heads: int, repeated: int) -> None:
    """Layer's and projection's input, the projection's output whole, normed queries and keys and, where heads share
    them, their repeats; values and gates in one piece; sums of decays in fp32, strengths, the solved triangle; the
    rule's output, that of its norm, the output product's input."""
    keys, values = key_heads * K, HEADS * V
    kept = saved_bytes(layer(key_heads=key_heads))
    projection = 2 * keys + 2 * values + 2 * HEADS
    rule = 2 * keys * (repeated > 1) + 2 * keys * repeated + 2 * values + HEADS + HEADS * C
    assert kept == TOKENS * (2 * (2 * HIDDEN + projection + rule + 3 * values) + 4 * HEADS)


def test_what_is_held_for_a_moment() -> None:
    """The convolution's queries, keys and values; w, u and the corrected values of each token, and a state of
    each chunk, until the output is made of them (chunk.py, chunk_gated_delta_rule_fwd: w, u, h and v_new)."""
    held = {op.name: float(op.transient_bytes[0]) for op in layer().forward}
    a_token = K + V + V
    assert held["gated_delta.recurrence"] == 2 * TOKENS * HEADS * (a_token + K * V / C)
    assert held["gated_delta.convolution"] == 2 * TOKENS * (2 * 16 * K + HEADS * V)


def test_bytes_of_the_kernels() -> None:
    """One read and one write of the convolution and of a copy: queries and keys, values, gates, and repeats read once
    and written twice."""
    keys, values = 16 * K, HEADS * V
    moved = {op.name: float(bytes_moved(op)[0]) for op in layer().forward if isinstance(op, MemoryBound)}
    assert moved["gated_delta.convolution"] == 2 * 2 * TOKENS * (2 * keys + values)
    assert moved["gated_delta.copy"] == 2 * TOKENS * (2 * (2 * keys + 2 * values) + 2 * keys * (1 + 2))
    assert moved["gated_delta.output_gate"] == 2 * 3 * TOKENS * values


@pytest.mark.parametrize("strategy", ["mtp", "fsp", "isp"])
@pytest.mark.parametrize("tp", [1, 4])
def test_a_rank_has_its_share_of_work_and_weights(strategy: str, tp: int) -> None:
    """Whole on every rank under tensor parallelism: the norm before the layer and that of the heads."""
    one, part = layer(), layer(strategy, tp=tp)
    assert tp * flops(part.forward, Phase.FORWARD) == flops(one.forward, Phase.FORWARD)
    assert tp * flops(part.backward, Phase.INPUT_GRAD) == flops(one.backward, Phase.INPUT_GRAD)
    owned = sum(int(op.parameters[0]) for op in part.forward)
    count, whole = block_parameters(model().blocks[0].block, HIDDEN), HIDDEN + V
    assert owned == (count if strategy == "isp" else (count - whole) // tp + whole)


def test_context_parallelism_exchanges_what_the_projection_gives() -> None:
    """gdn.py: a2a of q, k, v, z, beta and alpha, and of the normed output back."""
    part = layer("fsp", cp=4)
    moved = {op.name: int(op.size_bytes[0]) for op in part.forward if isinstance(op, Comm) and op.axis is Axis.CP}
    a_channel = 2 * TOKENS // 4
    assert moved == {
        "gated_delta.q_context": a_channel * 16 * K,
        "gated_delta.k_context": a_channel * 16 * K,
        "gated_delta.v_context": a_channel * HEADS * V,
        "gated_delta.z_context": a_channel * HEADS * V,
        "gated_delta.beta_context": a_channel * HEADS,
        "gated_delta.alpha_context": a_channel * HEADS,
        "gated_delta.out_context": a_channel * HEADS * V,
    }
    assert 4 * flops(part.forward, Phase.FORWARD) == flops(layer().forward, Phase.FORWARD)


def test_each_head_s_output_is_normed() -> None:
    """Read and written in 2 bytes; n V channels a token are kept."""
    (normed,) = [op for op in layer().forward if op.name == "gated_delta.inner_norm"]
    assert isinstance(normed, MemoryBound)
    assert (int(normed.rows[0]), int(normed.width[0])) == (TOKENS * HEADS, V)
    assert normed.saved_bytes[0] == 2 * TOKENS * HEADS * V


# Kimi Delta Attention: heads of K = V = 128 channels, each of a key's with a decay of its own.

KIMI = GatedDeltaSpec(num_key_heads=8, num_value_heads=8, key_dim=V, value_dim=V, channel_decay=True)


def kimi(rank: int, **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1)
    mixer = with_block(small_model(hidden=HIDDEN), mixer=replace(KIMI, gate_rank=rank), mlp=None)
    return written(
        mixer, job(seq_len=SEQ, world_size=ranks), "mtp", Layout.of(ranks, micro_batch=BATCH, **degrees)
    ).blocks[0]


@pytest.mark.parametrize("rank", [0, 128])
def test_decays_of_channels_have_weights_of_their_own(rank: int) -> None:
    """transformers modeling_kimi_linear.py and modeling_bailing_hybrid.py: q, k, v, a strength a head, decays and gates as wide as
    a key and a value, through ``rank`` channels or at once; taps, a bias a channel, a rate a head, the norm, the output."""
    wide = 8 * V
    gates = 2 * (HIDDEN * rank + rank * wide) if rank else 2 * HIDDEN * wide
    weights = 3 * HIDDEN * wide + 8 * HIDDEN + gates + 3 * 4 * wide + wide + 8 + V + wide * HIDDEN
    assert sum(module.elements for module in replace(KIMI, gate_rank=rank).modules(HIDDEN, "")) == weights
    for tp in (1, 4):
        owned = sum(int(op.parameters[0]) for op in kimi(rank, tp=tp).forward)
        whole = HIDDEN + V + 2 * HIDDEN * rank
        assert owned == (weights + HIDDEN - whole) // tp + whole


def test_decays_of_channels_keep_both_scores() -> None:
    """fla/ops/kda: forward as with a decay a head; chunk_bwd.py and chunk_intra.py, ``tl.dot`` by ``tl.dot``: dA and dv, the
    recurrence, dq dk dw through the states, the WY part with its triangle, and four products of scores' gradients."""
    piece, a_head = kimi(128), TOKENS * 8
    forward = (C * V + 16 * C) + 2 * C * V + 2 * V * V + C * V + V * V + C * V
    assert flops(piece.forward, Phase.FORWARD) == 2 * a_head * forward
    backward = 2 * C * V + 3 * V * V + 3 * V * V + (2 * C * V + 2 * C * V + 2 * C * C) + 4 * C * V
    assert flops(piece.backward, Phase.INPUT_GRAD) == 2 * a_head * backward
    saved = {op.name: float(op.saved_bytes[0]) for op in piece.forward}
    assert saved["gated_delta.scores"] == saved["gated_delta.solve"] == 2 * a_head * C
    assert saved["gated_delta.decays"] == 2 * a_head * (V + 1)


def test_decays_of_channels_are_made_again() -> None:
    """fla/ops/kda/gate.py: 2 bytes of every channel and strength read, 4 written; twice, and once back."""
    moved = [
        (op.phase, float(bytes_moved(op)[0]))
        for op in (*kimi(0).forward, *kimi(0).backward)
        if isinstance(op, MemoryBound) and op.name == "gated_delta.decays"
    ]
    once = 6 * TOKENS * 8 * (V + 1)
    assert moved == [(Phase.FORWARD, once), (Phase.RECOMPUTE, once), (Phase.INPUT_GRAD, once)]
