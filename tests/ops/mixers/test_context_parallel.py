"""Sequences cut over ranks: what travels, what is computed, and the bytes around it, as each framework's code
counts.
"""

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Attention, Comm, Lane, MemoryBound, Op, Pass, Phase
from spec.collectives import Collective
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ, CP = 4096, 4
HEADS, KV_HEADS, WIDTH = 8, 4, 64
TOKENS = SEQ // CP
OUTPUT, KEYS, ALL_HEADS_KEYS = (TOKENS * HEADS * WIDTH, 2 * TOKENS * KV_HEADS * WIDTH, 2 * TOKENS * HEADS * WIDTH)
KINDS = [("megatron", "ring"), ("megatron", "all_gather"), ("fsdp", "ring"), ("fsdp", "all_gather")]


def _layer(framework: str, way: str, cp: int = CP) -> Pass:
    asked = job(seq_len=SEQ, world_size=CP, preset=framework_preset(framework), context_parallel=way)
    return written(small_model(), asked, "mtp", Layout.of(CP, cp=cp)).blocks[0]


def _around(ops: tuple[Op, ...]) -> dict[str, float]:
    """Bytes of each kernel that serves the core."""
    return {
        op.name.removeprefix("attention."): float((bytes_moved(op) + np.zeros(1))[0])
        for op in ops
        if isinstance(op, MemoryBound) and op.name.startswith("attention.") and op.serves == "core"
    }


def _over_cp(ops: tuple[Op, ...]) -> list[tuple[Collective, Lane, float]]:
    return [
        (op.collective, op.lane, float((op.size_bytes * op.repeat + np.zeros(1))[0]))
        for op in ops
        if isinstance(op, Comm) and op.axis == "cp"
    ]


@pytest.mark.parametrize(("framework", "way"), KINDS)
def test_every_pair_of_a_causal_sequence_is_attended_to_once(framework: str, way: str) -> None:
    """s^2 / (2 cp) of a rank, in two calls where both blocks see all keys at once."""
    layer = _layer(framework, way)
    calls = [op for op in layer.forward if isinstance(op, Attention)]
    own, later = calls
    assert own.q_len[0] * own.kv_len[0] / 2 + (later.repeat * later.q_len * later.kv_len)[0] == SEQ**2 / (2 * CP)
    assert later.repeat[0] == (1 if (framework, way) == ("megatron", "all_gather") else CP - 1)


def test_what_travels() -> None:
    p2p, gather, scatter = Collective.P2P, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    messages = CP - 1
    ring, gathered = _layer("megatron", "ring"), _layer("megatron", "all_gather")
    assert _over_cp(ring.forward) == [(p2p, Lane.OVERLAP, messages * 2 * KEYS)]
    assert _over_cp(ring.backward) == [(p2p, Lane.OVERLAP, messages * 2 * 2 * KEYS)]
    assert _over_cp(gathered.forward) == [(gather, Lane.MAIN, CP * 2 * KEYS)]
    assert sorted(_over_cp(gathered.backward)) == [
        (gather, Lane.MAIN, CP * 2 * KEYS),
        (scatter, Lane.MAIN, CP * 2 * KEYS),
    ]


@pytest.mark.parametrize(("framework", "own"), [("fsdp", KEYS), ("fsdp-compiled", ALL_HEADS_KEYS)])
def test_what_travels_around_pytorchs_kernel(framework: str, own: int) -> None:
    """As many heads as the kernel is handed: repeated ones too (torchtitan up to v0.2.1)."""
    p2p, gather, messages = Collective.P2P, Collective.ALL_GATHER, CP - 1
    plain, at_once = _layer(framework, "ring"), _layer(framework, "all_gather")
    keys = 2 * own
    assert _over_cp(plain.forward) == [(p2p, Lane.OVERLAP, messages * keys)]
    assert _over_cp(plain.backward) == [(p2p, Lane.OVERLAP, messages * 3 * keys)]
    assert _over_cp(at_once.forward) == [(gather, Lane.OVERLAP, CP * keys)]
    assert sorted(_over_cp(at_once.backward)) == [
        (gather, Lane.OVERLAP, CP * keys),
        (p2p, Lane.MAIN, 2 * keys),
        (p2p, Lane.OVERLAP, messages * 2 * keys),
    ]


def test_fused_kernels_of_a_ring() -> None:
    """AttnFuncWithCPAndKVP2P on the last rank, in bytes of 16-bit elements."""
    layer, later = _layer("megatron", "ring"), CP - 1
    assert _around(layer.forward) == {
        "join_keys": 4 * KEYS,
        "half_keys": later * 2 * KEYS,
        "first_output": 4 * OUTPUT,
        "merge_outputs": later * 6 * OUTPUT,
    }
    assert _around(layer.backward) == {
        "join_keys": 4 * KEYS,
        "half_keys": later * 2 * KEYS,
        "first_gradient": 4 * (OUTPUT + KEYS),
        "add_query_gradients": later * 6 * OUTPUT,
        "add_key_gradients": later * 3 * KEYS,
    }


def test_fused_kernels_of_a_gather_merge_nothing() -> None:
    layer = _layer("megatron", "all_gather")
    assert _around(layer.forward) == {"order_keys": CP * 4 * KEYS, "both_outputs": 4 * OUTPUT}
    assert _around(layer.backward) == {
        "order_keys": CP * 4 * KEYS,
        "both_gradients": 4 * OUTPUT,
        "add_key_gradients": 2 * CP * 6 * KEYS,
        "order_key_gradients": CP * 4 * KEYS,
    }


@pytest.mark.parametrize("way", ["ring", "all_gather"])
@pytest.mark.parametrize(("framework", "keys"), [("fsdp", KEYS), ("fsdp-compiled", ALL_HEADS_KEYS)])
def test_pytorch_merges_in_fp32_one_kernel_after_another(framework: str, keys: int, way: str) -> None:
    """_SDPAMerger: cast 6; out - block 12, times 8, out - 12 bytes an element; its backward adds 2 bytes onto 4."""
    layer, later = _layer(framework, way), CP - 1
    assert _around(layer.forward) == {
        "join_keys": later * 4 * keys,
        "widen_outputs": CP * 6 * OUTPUT,
        "subtract_outputs": 2 * later * 12 * OUTPUT,
        "scale_outputs": later * 8 * OUTPUT,
        "narrow_output": 6 * OUTPUT,
    }
    assert _around(layer.backward) == {
        "join_keys": later * 4 * keys,
        "add_query_gradients": CP * 10 * OUTPUT,
        "add_first_key_gradients": 10 * keys,
        "add_key_gradients": later * 5 * keys,
        "update_key_gradients": later * 8 * keys,
        "join_key_gradients": CP * 8 * keys,
        "narrow_gradients": 6 * (OUTPUT + keys),
    }


@pytest.mark.parametrize(
    ("framework", "way", "held"),
    [
        ("megatron", "ring", CP * 2 * OUTPUT),  # out_per_step: every part's output until they are merged
        ("megatron", "all_gather", 2 * OUTPUT + CP * 2 * KEYS),  # both calls' rows, and all keys and values
        ("fsdp", "ring", 3 * 4 * OUTPUT),  # the sum, the new part and the step between them in fp32
        ("fsdp", "all_gather", 3 * 4 * OUTPUT),
    ],
)
def test_what_is_held_while_parts_are_merged(framework: str, way: str, held: int) -> None:
    layer = _layer(framework, way)
    around = [op for op in (*layer.forward, *layer.backward) if isinstance(op, MemoryBound) and op.serves == "core"]
    assert [float(op.transient_bytes[0]) for op in around] == [held] + [0.0] * (len(around) - 1)


@pytest.mark.parametrize(("framework", "way"), KINDS)
def test_whole_sequences_pay_for_none_of_it(framework: str, way: str) -> None:
    asked = job(seq_len=SEQ, world_size=CP, preset=framework_preset(framework), context_parallel=way)
    mixed = Layout.of(CP, cp=np.array([1, CP]), dp=np.array([CP, 1]))
    layer = written(small_model(), asked, "mtp", mixed).blocks[0]
    for op in (*layer.forward, *layer.backward):
        if isinstance(op, MemoryBound) and op.serves == "core":
            assert bytes_moved(op)[0] == 0.0 < bytes_moved(op)[1]
            assert op.transient_bytes[0] == 0.0
        if isinstance(op, Comm) and op.axis == "cp":
            assert op.size_bytes[0] == 0 < op.size_bytes[1]
        if op.role == "ring" and op.phase is Phase.FORWARD:
            assert op.flops[0] == 0.0 < op.flops[1]
