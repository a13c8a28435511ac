"""What travels over tp where products run in few bits: bytes by recipe, scales included, as Transformer
Engine gathers.
"""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import BatchedGemm, Comm, Lane, MemoryBound, Op, Pass, Phase
from ops.roles import Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.model import BlockRun, MoeSpec
from spec.settings.job import NARROW
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

TP, TOKENS = 4, 1024


def asked(recipe: str, **preset: object) -> JobSpec:
    plain = job(world_size=TP, seq_len=TOKENS, preset=framework_preset("megatron").changed(preset))
    return replace(plain, precision=replace(plain.precision, **NARROW.get(recipe, {})))


def layer(question: JobSpec, strategy: str = "fsp") -> Pass:
    return written(small_model(), question, strategy, Layout.of(TP, tp=TP)).blocks[0]


def gathered(piece: Pass) -> dict[str, float]:
    """Bytes an element of what is gathered of mlp.up's input, of it again, and of mlp.down's output gradient."""
    hidden = TOKENS * small_model().hidden
    names = {
        ("mlp.up.enter", Phase.FORWARD): "input",
        ("mlp.up.regather", Phase.WEIGHT_GRAD): "again",
        ("mlp.down.leave", Phase.INPUT_GRAD): "gradient",
        ("mlp.down.leave_columns", Phase.INPUT_GRAD): "gradient_columns",
    }
    return {
        names[op.name, op.phase]: float(op.size_bytes[0]) / hidden
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, Comm) and op.collective is Collective.ALL_GATHER and (op.name, op.phase) in names
    }


BLOCK, MX, NVFP4 = 1 + 4 / 128, 1 + 1 / 32, 0.5 + 1 / 16


@pytest.mark.parametrize(
    ("recipe", "each", "both_orders"),
    [
        ("bf16", 2.0, False),
        ("fp8-current", 1.0, False),
        ("fp8-blockwise", BLOCK, True),
        ("mxfp8", MX, True),
        ("nvfp4", NVFP4, True),
        ("fp8-tensor", 1.0, False),  # torchao's Float8RowwiseParallel and PrepareFloat8ModuleInput
        ("fp8-rowwise", 2.0, False),  # "currently assumes tensorwise scaling"
    ],
)
def test_bytes_gathered(recipe: str, each: float, both_orders: bool) -> None:
    expected = {"input": each, "again": each, "gradient": each} | (
        {"gradient_columns": each} if both_orders else {}
    )
    assert gathered(layer(asked(recipe))) == pytest.approx(expected)


def test_what_is_reduced_and_the_head_travel_in_16_bits() -> None:
    wide, narrow = (
        written(small_model(), asked(recipe), "fsp", Layout.of(TP, tp=TP)) for recipe in ("bf16", "mxfp8")
    )

    def sizes(piece: Pass, kind: Collective) -> list[float]:
        ops = (*piece.forward, *piece.backward)
        return [float(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.collective is kind]

    scattered = sizes(wide.blocks[0], Collective.REDUCE_SCATTER)
    assert sizes(narrow.blocks[0], Collective.REDUCE_SCATTER) == scattered
    assert sizes(narrow.head, Collective.ALL_GATHER) == sizes(wide.head, Collective.ALL_GATHER)


@pytest.mark.parametrize(
    ("recipe", "size"), [("fp8-current", 4), ("fp8-tensor", 4), ("nvfp4", 8), ("mxfp8", 0), ("bf16", 0)]
)
def test_ranks_agree_on_a_scale_before_they_cast(recipe: str, size: int) -> None:
    """Of both gathered inputs and both gathered output gradients of a layer; of NVFP4 for either order."""
    piece = layer(asked(recipe))
    found = [
        op for op in (*piece.forward, *piece.backward) if isinstance(op, Comm) and op.role is Role.REDUCE
    ]
    expected = [Phase.FORWARD] * 2 + [Phase.INPUT_GRAD] * 2 if size else []
    assert [op.phase for op in found] == expected
    assert all(op.size_bytes[0] == size and op.lane is Lane.MAIN for op in found)
    delayed = asked("fp8-current")
    delayed = replace(delayed, precision=replace(delayed.precision, scaling="delayed"))
    ops = (*layer(delayed).forward, *layer(delayed).backward)
    assert not [op for op in ops if isinstance(op, Comm) and op.role is Role.REDUCE]


def cast_bytes(piece: Pass, name: str, what: str) -> float:
    """Bytes through memory an element of the input or the output gradient of a product."""
    gemm = next(op for op in piece.forward if isinstance(op, BatchedGemm) and op.name == name)
    elements = gemm.m[0] * (gemm.k[0] if what == "input" else gemm.n[0])

    def of(op: Op) -> bool:
        return isinstance(op, MemoryBound) and op.name in (
            f"{name}.cast_{what}",
            f"{name}.cast_turned_{what}",
        )

    ops = [op for op in (*piece.forward, *piece.backward) if of(op)]
    return sum(float(bytes_moved(op)[0]) for op in ops if isinstance(op, MemoryBound)) / float(elements)


@pytest.mark.parametrize(
    ("recipe", "transposed", "part", "whole"),
    [
        # read twice, written along rows by each rank for its part; then turned: a narrow read and write of all
        ("fp8-current", True, 5.0, 2.0),
        ("fp8-current", False, 5.0, 0.0),
        # read once, written in both orders; parts of columns put side by side
        ("fp8-blockwise", True, 4.0, 2.0),
        ("mxfp8", False, 4.0, 0.0),
        ("nvfp4", False, 7.0, 1.0),
    ],
)
def test_each_rank_casts_its_part_and_turns_the_whole(
    recipe: str, transposed: bool, part: float, whole: float
) -> None:
    question = asked(recipe)
    question = replace(question, precision=replace(question.precision, transposed_copies=transposed))
    for name, what in (("mlp.up", "input"), ("mlp.down", "gradient")):
        assert cast_bytes(layer(question), name, what) == pytest.approx(part / TP + whole, rel=1e-2)
    # an input that no gather waits for is cast by itself, in both orders where products want both
    alone = cast_bytes(layer(question), "mlp.down", "input")
    assert alone == pytest.approx({"fp8-current": 6.0 if transposed else 5.0}.get(recipe, part), rel=1e-2)


def test_nothing_changes_where_no_tokens_are_cut() -> None:
    for strategy in ("mtp", "fsp"):
        whole = Layout.of(TP, tp=np.array([1]))
        piece = written(small_model(), asked("fp8-current"), strategy, whole).blocks[0]
        assert cast_bytes(piece, "mlp.up", "input") == pytest.approx(6.0, rel=1e-2)
        assert not any(
            "turned" in op.name and op.rows[0] for op in piece.backward if isinstance(op, MemoryBound)
        )


def test_columns_of_a_gradient_travel_beside_the_product_of_the_rows() -> None:
    """User buffers hand rows on in pieces, and columns by copy engines on the streams of that product."""
    piece = layer(asked("mxfp8", **{"tensor_parallel.overlap": True}))
    ops = [op for op in piece.backward if isinstance(op, Comm) and op.name.startswith("mlp.down.leave")]
    assert [op.lane for op in ops] == [Lane.PIECES, Lane.BESIDE]
    assert ops[1].pieces is not None
    assert (ops[1].pieces.thread_blocks, ops[1].beside_phase) == (0, Phase.INPUT_GRAD)


@pytest.mark.parametrize(("beside", "width"), [(False, 1), (True, 2)])
def test_shared_experts_that_hide_the_exchange_are_gathered_in_16_bits(beside: bool, width: int) -> None:
    """Transformer Engine gathers what it has cast; shared_experts.py gathers by itself, before (pre_forward_comm)."""
    question = replace(asked("fp8-current"), overlap_shared_experts=beside)
    block = small_model().blocks[0].block
    moe = MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=128, shared_ffn_hidden=128)
    model = replace(small_model(), blocks=(BlockRun(block=replace(block, mlp=None, moe=moe), count=2),))
    piece = written(model, question, "fsp", Layout.of(TP, tp=TP, ep=TP)).blocks[0]
    (gather,) = (op for op in piece.forward if op.name == "shared.up.enter")
    assert isinstance(gather, Comm)
    assert gather.size_bytes[0] == width * TOKENS * model.hidden
