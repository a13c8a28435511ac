"""Mamba-2's operations by hand: T tokens, d = heads x 64 channels, states of N = 128, chunks of Q = 256 tokens."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Op, Pass, Phase
from ops.roles import Role
from spec.mixers.mamba2 import Mamba2Spec
from spec.model import ModelSpec
from spec.parameters import block_parameters
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, HEADS, HEAD, STATE, CHUNK = 2048, 64, 64, 128, 256
INNER = HEADS * HEAD
SEQ, BATCH = 2048, 3
TOKENS = SEQ * BATCH


def model(groups: int = 8) -> ModelSpec:
    mixer = Mamba2Spec(num_heads=HEADS, head_dim=HEAD, state_size=STATE, num_groups=groups)
    return with_block(small_model(hidden=HIDDEN), mixer=mixer, mlp=None)


def layer(strategy: str = "mtp", groups: int = 8, context: str = "ring", **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    asked = job(seq_len=SEQ, world_size=ranks, context_parallel=context)
    return written(model(groups), asked, strategy, Layout.of(ranks, micro_batch=BATCH, **degrees)).blocks[0]


def products(ops: tuple[Op, ...], phase: Phase) -> dict[str, float]:
    """FLOPs of the recurrence's products by name."""
    return {
        op.name.removeprefix("mamba2."): float(op.flops[0])
        for op in ops
        if isinstance(op, BatchedGemm) and op.role is Role.CORE and op.phase is phase
    }


@pytest.mark.parametrize("groups", [1, 8])
def test_products_of_the_recurrence(groups: int) -> None:
    """arXiv 2405.21060 sec. 6: C B^T per group, and per head three products of T x Q x P or T x N x P."""
    found = products(layer(groups=groups).forward, Phase.FORWARD)
    assert found == {
        "scores": 2 * TOKENS * CHUNK * STATE * groups,
        "within_chunk": 2 * TOKENS * CHUNK * INNER,
        "states": 2 * TOKENS * STATE * INNER,
        "across_chunks": 2 * TOKENS * STATE * INNER,
    }


def test_the_backward_has_two_products_for_each_and_makes_some_again() -> None:
    """The gradient of the decays takes the product of x and the output's gradient once more."""
    whole = layer()
    forward = products(whole.forward, Phase.FORWARD)
    backward = products(whole.backward, Phase.INPUT_GRAD)
    assert sum(backward.values()) == 2 * sum(forward.values()) + forward["within_chunk"]
    again = products(whole.backward, Phase.RECOMPUTE)
    assert again == {name: forward[name] for name in ("scores", "states")}
    kernels = [op.name for op in whole.backward if isinstance(op, MemoryBound) and op.phase is Phase.RECOMPUTE]
    assert kernels == ["mamba2.convolution", "mamba2.decays", "mamba2.pass_states"]


def test_states_pass_in_fp32_and_come_out_in_16_bits() -> None:
    """ssd_state_passing.py: one state of 128 x 64 a head and chunk; backward two read and two written."""
    whole = layer()
    states = TOKENS / CHUNK * HEADS * STATE * HEAD
    moved = {
        op.name: float(bytes_moved(op)[0]) for op in (*whole.forward, *whole.backward) if isinstance(op, MemoryBound)
    }
    assert moved["mamba2.pass_states"] == states * (4 + 2)
    assert moved["mamba2.d_pass_states"] == states * 2 * (4 + 2)
    assert moved["mamba2.convolution"] == TOKENS * (INNER + 2 * 8 * STATE) * 2 * 3


def test_a_short_sequence_is_one_chunk() -> None:
    asked = job(seq_len=64, world_size=1)
    short = written(model(), asked, "mtp", Layout.of(1)).blocks[0]
    assert products(short.forward, Phase.FORWARD)["within_chunk"] == 2 * 64 * 64 * INNER


@pytest.mark.parametrize("strategy", ["mtp", "fsp", "isp"])
@pytest.mark.parametrize("tp", [1, 4])
def test_a_rank_has_its_share_of_work_and_weights(strategy: str, tp: int) -> None:
    one, part = layer(), layer(strategy, tp=tp)
    for phase, ops in ((Phase.FORWARD, lambda piece: piece.forward), (Phase.INPUT_GRAD, lambda piece: piece.backward)):
        whole = products(ops(one), phase)
        assert {name: tp * flops for name, flops in products(ops(part), phase).items()} == whole
    owned = sum(int(op.parameters[0]) for op in part.forward)
    count = block_parameters(model().blocks[0].block, HIDDEN)
    assert owned == (count if strategy == "isp" else (count - HIDDEN) // tp + HIDDEN)


def test_what_is_kept() -> None:
    """The layer's and the projection's input, z, x, B, C and dt, the recurrence's output, that of the gate, and of the
    norm (ssd_combined.py, save_for_backward; Megatron-LM norms after it)."""
    kept = saved_bytes(layer())
    assert kept == 2 * TOKENS * (2 * HIDDEN + (2 * INNER + 2 * 8 * STATE + HEADS) + 3 * INNER)


def test_what_is_held_for_a_moment() -> None:
    """The convolution's x, B and C; each chunk's states in fp32 and, passed on, in 16 bits; C B^T of every
    group and chunk in fp32 (ssd_combined.py, _mamba_chunk_scan_combined_fwd: states, out_states and CB)."""
    held = {op.name: float(op.transient_bytes[0]) for op in layer().forward if op.role is Role.CORE}
    chunks = TOKENS // CHUNK
    assert held["mamba2.states"] == 4 * chunks * STATE * INNER
    assert held["mamba2.pass_states"] == 2 * chunks * STATE * INNER
    assert held["mamba2.scores"] == 4 * chunks * 8 * CHUNK * CHUNK
    (convolution,) = [op for op in layer().forward if op.role is Role.CONVOLUTION]
    assert float(convolution.transient_bytes[0]) == 2 * TOKENS * (INNER + 2 * 8 * STATE)


def test_context_parallelism_exchanges_all_that_the_convolution_and_the_states_need() -> None:
    """mamba_context_parallel.py: z, x, B, C, dt there and y back; two groups over four ranks are repeated."""
    part = layer("fsp", groups=2, context="all_to_all", cp=4)
    moved = {op.name: int(op.size_bytes[0]) for op in part.forward if isinstance(op, Comm) and op.axis is Axis.CP}
    a_channel = 2 * TOKENS // 4
    assert moved == {
        "mamba2.z_context": a_channel * INNER,
        "mamba2.x_context": a_channel * INNER,
        "mamba2.b_context": a_channel * 4 * STATE,
        "mamba2.c_context": a_channel * 4 * STATE,
        "mamba2.dt_context": a_channel * HEADS,
        "mamba2.y_context": a_channel * INNER,
    }
    assert products(part.forward, Phase.FORWARD)["states"] == 2 * TOKENS * STATE * INNER / 4


def test_attention_cores_alone_are_recomputed_selectively() -> None:
    asked = job(seq_len=SEQ, world_size=1)
    plain, selective = (written(model(), asked, "mtp", Layout.of(1), kind).blocks[0] for kind in ("none", "selective"))
    assert [op.name for op in plain.backward] == [op.name for op in selective.backward]


def test_every_second_product_counts_the_linears_alone() -> None:
    """torchtitan lists aten.mm; Triton's kernels run again, and only the second linear's output is not kept."""
    preset = replace(job().preset, recomputation=replace(job().preset.recomputation, selective="every_second_product"))
    asked = job(seq_len=SEQ, world_size=1, preset=preset)
    piece = written(model(), asked, "mtp", Layout.of(1), "selective").blocks[0]
    again = [op.name for op in piece.backward if op.phase is Phase.RECOMPUTE]
    assert {"mamba2.states", "mamba2.within_chunk", "mamba2.out"} <= set(again)
    assert "mamba2.project" not in again
    kept = saved_bytes(piece)
    assert kept == 2 * SEQ * (HIDDEN + 2 * INNER + 2 * 8 * STATE + HEADS)
