"""Which product takes turns with its tensor-parallel collective, and how, as Transformer Engine's defaults say."""

from typing import Any

import numpy as np
import pytest

from ops.cpu_overhead import cpu_overhead
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Comm, Lane, MemoryBound, Op, Pass, Phase
from ops.roles import Role
from solver.plans.plan_table import Plan
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.flat_cost_model import FLOPS, INTRA_BANDWIDTH
from tests.solver.questions import small_model
from tests.solver.test_price import answer

TP = 4


def _layer(choices: dict[str, object], strategy: str = "fsp") -> Pass:
    preset = framework_preset("megatron").changed(choices)
    return written(small_model(), job(world_size=TP, preset=preset), strategy, Layout.of(TP, tp=TP)).blocks[0]


def _lanes(piece: Pass) -> dict[tuple[str, Phase], Lane]:
    return {(op.name, op.phase): op.lane for op in (*piece.forward, *piece.backward) if isinstance(op, Comm)}


def test_methods_by_default_are_those_of_initialize_ub() -> None:
    """qkv, fc1 fprop and proj, fc2 dgrad gather in a ring; proj, fc2 fprop reduce in a pipeline; the rest in bulk."""
    layer = _layer({"tensor_parallel.overlap": True})
    assert _lanes(layer) == {
        ("attention.qkv.enter", Phase.FORWARD): Lane.PIECES,
        ("attention.out.leave", Phase.FORWARD): Lane.PIECES,
        ("mlp.up.enter", Phase.FORWARD): Lane.PIECES,
        ("mlp.down.leave", Phase.FORWARD): Lane.PIECES,
        ("mlp.down.leave", Phase.INPUT_GRAD): Lane.PIECES,
        ("mlp.up.regather", Phase.WEIGHT_GRAD): Lane.OVERLAP,
        ("mlp.up.enter", Phase.INPUT_GRAD): Lane.OVERLAP,
        ("attention.out.leave", Phase.INPUT_GRAD): Lane.PIECES,
        ("attention.qkv.regather", Phase.WEIGHT_GRAD): Lane.OVERLAP,
        ("attention.qkv.enter", Phase.INPUT_GRAD): Lane.OVERLAP,
    }
    cuts = {
        op.role: (int(op.pieces.count[0]), op.pieces.last_waits, op.pieces.thread_blocks)
        for op in layer.forward
        if op.pieces
    }
    assert cuts == {Role.ENTER: (TP, False, 0), Role.LEAVE: (4, True, 16)}
    bulk = [op.pieces for op in layer.backward if op.lane is Lane.OVERLAP]
    assert [(int(one.count[0]), one.thread_blocks) for one in bulk if one] == [(1, 16)] * 4
    plain = _layer({"tensor_parallel.overlap": False})
    assert not any(op.pieces for op in (*plain.forward, *plain.backward))


@pytest.mark.parametrize(
    ("choice", "key", "lane"),
    [
        ("overlap_ag", ("mlp.up.enter", Phase.FORWARD), Lane.MAIN),
        ("overlap_ag", ("mlp.down.leave", Phase.INPUT_GRAD), Lane.MAIN),
        ("overlap_rs", ("mlp.down.leave", Phase.FORWARD), Lane.MAIN),
        ("bulk_dgrad", ("mlp.up.regather", Phase.WEIGHT_GRAD), Lane.MAIN),
        ("bulk_wgrad", ("mlp.up.enter", Phase.INPUT_GRAD), Lane.MAIN),
    ],
)
def test_each_switch_takes_its_own_overlap_away(choice: str, key: tuple[str, Phase], lane: Lane) -> None:
    on = {"tensor_parallel.overlap": True, "tensor_parallel.overlap_backward": False}
    with_it, without = (_lanes(_layer(on | {f"tensor_parallel.{choice}": said})) for said in (True, False))
    changed = {name for name in with_it if with_it[name] is not without[name]}
    assert key in changed
    assert without[key] is lane
    assert all(choice != "overlap_rs" or name[1] is Phase.FORWARD for name in changed)


@pytest.mark.parametrize(
    ("choice", "whole"), [("bulk_dgrad", Role.REGATHER), ("bulk_wgrad", Role.ENTER), ("overlap_ag", None)]
)
def test_each_bulk_overlap_has_its_own_switch(choice: str, whole: Role | None) -> None:
    """Beside the input gradient (bulk_dgrad) runs the input gathered again, beside the weight gradient
    (bulk_wgrad) the input gradient's reduction; without the switch it runs there as any collective does,
    through NCCL."""
    layer = _layer({"tensor_parallel.overlap": True, f"tensor_parallel.{choice}": False})
    through_buffers = {op.role: op.pieces is not None for op in layer.backward if op.lane is Lane.OVERLAP}
    assert through_buffers == {role: role is not whole for role in (Role.REGATHER, Role.ENTER)}


def test_each_further_piece_is_issued() -> None:
    """Product, copy, signal and wait, half a launch each."""
    asked = job(world_size=TP)
    apart, cut = (_layer({"tensor_parallel.overlap": on}).forward for on in (False, True))
    launches = [sum(cpu_overhead(op, asked).launches[0] for op in ops if isinstance(op, Comm)) for ops in (apart, cut)]
    assert launches[1] - launches[0] == 4 * 2.0 * (TP - 1)


def test_a_ring_exchange_adds_up_what_came() -> None:
    """tp pieces are read and one is written (reduce_bf16); for input gradients too where their reductions are fused."""
    fused = {"tensor_parallel.overlap": True, "tensor_parallel.overlap_rs_dgrad": True}
    asked = framework_preset("fsdp").changed(fused)
    layer = written(small_model(), job(world_size=TP, preset=asked), "fsp", Layout.of(TP, tp=TP)).blocks[0]
    sums = [op for op in (*layer.forward, *layer.backward) if op.role is Role.REDUCE]
    assert [op.phase for op in sums] == [Phase.FORWARD] * 2 + [Phase.INPUT_GRAD] * 2
    scatter = next(op for op in layer.forward if isinstance(op, Comm) and op.role is Role.LEAVE)
    assert isinstance(sums[0], MemoryBound)
    assert bytes_moved(sums[0])[0] == scatter.size_bytes[0] * (1 + 1 / TP)
    assert not any(op.lane is Lane.OVERLAP for op in layer.backward)


def test_one_rank_has_no_pieces_to_add_up() -> None:
    """Beside a plan that has some: the rows of a table."""
    fused = framework_preset("fsdp").changed({"tensor_parallel.overlap": True})
    layout = Layout.of(np.array([8, 8]), tp=np.array([1, TP]))
    layer = written(small_model(), job(preset=fused), "fsp", layout).blocks[0]
    sums = [op for op in layer.forward if isinstance(op, MemoryBound) and op.role is Role.REDUCE]
    assert sums
    assert all((op.rows > 0).tolist() == [False, True] for op in sums)


def test_pieces_are_waited_for_by_hand() -> None:
    """What a layer no longer waits for: of each gather and of three quarters of each reduce-scatter as much as three
    quarters of its product last."""
    bare = {"tensor_parallel.overlap_backward": True, "loss.fused": True}
    plan = Plan(strategy="fsp", preset="megatron", tp=TP, num_micro=1)

    def tp_comm_s(layers: int, choices: dict[str, object]) -> float:
        preset = framework_preset("megatron").changed(bare | choices)
        return answer(plan, model=small_model(layers=layers), preset=preset).parts_s["tp_comm"]

    def of_a_layer(choices: dict[str, object]) -> float:
        return tp_comm_s(3, choices) - tp_comm_s(2, choices)

    size_s = 2 * 1024 * 512 * (TP - 1) / TP / INTRA_BANDWIDTH
    products_s = 2 * 1024 * 512 * np.array([1024, 512, 4096, 2048]) / TP / FLOPS
    apart, together = (of_a_layer({"tensor_parallel.overlap": on}) for on in (False, True))
    hidden = np.minimum(size_s * np.array([1, 0.75, 1, 0.75]), products_s * 0.75)
    backward = np.minimum(size_s, products_s[[1, 3]] * 0.75)
    assert apart - together == pytest.approx(hidden.sum() + backward.sum(), rel=1e-9)


def test_nothing_is_pipelined_beyond_a_domain_or_without_sequence_parallelism() -> None:
    on = framework_preset("megatron").changed({"tensor_parallel.overlap": True})
    for plan in (
        Plan(strategy="fsp", preset="megatron", tp=16, num_micro=1),
        Plan(strategy="mtp", preset="megatron", tp=4, num_micro=1),
    ):
        with_it, without = (
            answer(plan, model=small_model(kv_heads=16, heads=16), preset=preset).parts_s["tp_comm"]
            for preset in (on, framework_preset("megatron"))
        )
        assert with_it == without


# Copies around collectives over the sequence: where a micro-batch has several, and where tokens are
# exchanged for heads.


RANKS, TOKENS = 4, 1024


def copied(micro_batch: int, strategy: str = "fsp", preset: str = "fsdp", **changes: Any) -> float:
    """Bytes that copies of a layer move, in whole hidden states of the micro-batch."""
    asked = job(world_size=RANKS, seq_len=TOKENS, preset=framework_preset(preset).changed(changes))
    (block,) = written(small_model(), asked, strategy, Layout.of(RANKS, tp=RANKS, micro_batch=micro_batch)).blocks
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
    asked = job(world_size=RANKS, seq_len=TOKENS, preset=framework_preset("fsdp"))
    layout = Layout.of(RANKS, tp=np.array([RANKS, RANKS, 1]), micro_batch=np.array([1, 2, 2]))
    (block,) = written(small_model(), asked, "fsp", layout).blocks
    (behind,) = [op for op in block.forward if op.name == "mlp.up.enter_in_order"]
    assert isinstance(behind, MemoryBound)
    assert behind.rows.tolist() == [0, 2 * TOKENS, 0]


def test_a_copy_stands_behind_a_gather_and_before_a_reduction() -> None:
    asked = job(world_size=RANKS, seq_len=TOKENS, preset=framework_preset("fsdp"))
    (block,) = written(small_model(), asked, "fsp", Layout.of(RANKS, tp=RANKS, micro_batch=2)).blocks
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


@pytest.mark.parametrize(("copies", "into", "out"), [("reordered", 2, 2), ("lists", 2, 1), ("permuted", 1, 1)])
def test_each_copy_of_an_exchange_reads_and_writes_its_whole_array(copies: str, into: int, out: int) -> None:
    """q, k and v go in and the output comes out; gradients go the other way round, and copy so."""
    forward, backward = exchanged(copies)
    assert [op.repeat for op in forward] == [into, into, into, out]
    assert [op.repeat for op in backward] == [into, out, out, out]
    for op in (forward[0], forward[-1], backward[0], backward[-1]):
        assert isinstance(op.repeat, int)
        assert bytes_moved(op).tolist() == [0.0, 2.0 * op.repeat * 2 * TOKENS * small_model().hidden]
