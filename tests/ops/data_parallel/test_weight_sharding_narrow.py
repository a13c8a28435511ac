"""Weights that travel in the format in which products read them: bytes gathered, cast and copied, by what
products of a layer read.
"""

from dataclasses import replace

import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, step_ops
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Comm, MemoryBound, Op, Pass, Phase, multiplies_low_precision
from ops.roles import Role
from spec.arrays import ints
from spec.frameworks import framework_preset
from spec.job import JobSpec
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

RANKS = 4
CURRENT = {"linear": "fp8", "scale_recipe": "tensor", "scaling": "current"}
TORCHAO = {**CURRENT, "scaling": "dynamic", "casts_every_forward": True, "parameter_gather": "fp8"}
XLA = {**CURRENT, "scaling": "delayed", "casts_every_forward": True, "parameter_gather": "fp8"}
HELD = {**CURRENT, "parameter_gather": "fp8", "narrow_parameters": True}


def asked(preset: str = "fsdp", **precision: object) -> JobSpec:
    plain = job(world_size=RANKS, seq_len=1024, preset=framework_preset(preset))
    return replace(plain, precision=replace(plain.precision, **precision))


def layer(question: JobSpec, stage: int = 3) -> Pass:
    layout = Layout.of(RANKS, zero_stage=stage, zero_size=RANKS)
    return written(small_model(), question, "mtp", layout).blocks[0]


def elements(piece: Pass) -> tuple[int, int]:
    """Of narrow products, and of all else."""
    narrow = sum(int(op.parameters[0]) for op in piece.forward if multiplies_low_precision(op))
    return narrow, sum(int(op.parameters[0]) for op in piece.forward) - narrow


def gathered(piece: Pass) -> list[float]:
    ops = (*piece.forward, *piece.backward)
    return [
        float(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.role is Role.PARAMETER_GATHER
    ]


def moved(piece: Pass, ending: str) -> dict[Phase, float]:
    """Bytes of the passes whose names end so, by phase, over the elements of narrow products."""
    found: dict[Phase, float] = {}
    for op in (*piece.forward, *piece.backward):
        if isinstance(op, MemoryBound) and op.name.endswith(ending):
            found[op.phase] = found.get(op.phase, 0.0) + float(bytes_moved(op)[0])
    return {phase: total / elements(piece)[0] for phase, total in found.items()}


def test_only_what_narrow_products_read_travels_narrow() -> None:
    """torchao float8/fsdp_utils.py: Float8Linear's weights alone; norms and router stay in 16 bits."""
    narrow, others = elements(layer(asked(**TORCHAO)))
    assert narrow > 100 * others > 0
    assert gathered(layer(asked(**TORCHAO))) == pytest.approx([narrow + 2 * others] * 2, abs=2 * RANKS)
    wide = layer(asked(**{**TORCHAO, "parameter_gather": "bf16"}))
    assert gathered(wide) == pytest.approx([2 * (narrow + others)] * 2, abs=2 * RANKS)


def test_frozen_weights_travel_narrow_too() -> None:
    """Beside adapters in 16 bits: every weight of qkv, out and the two products of the MLP is frozen, one of
    the norms is not narrow.
    """
    adapted = replace(asked(**TORCHAO), adapter_rank=16, adapted=frozenset({"q_k_v", "out"}))
    piece = layer(adapted)
    frozen = sum(int(op.frozen[0]) for op in piece.forward if multiplies_low_precision(op))
    others = sum(int(op.frozen[0] + op.parameters[0]) for op in piece.forward) - frozen
    assert frozen > 10 * others > 0
    assert gathered(piece) == pytest.approx([frozen + 2 * others] * 2, abs=2 * RANKS)


@pytest.mark.parametrize(
    ("precision", "shards", "whole"),
    [
        # read for the maximum and to cast (2 + 2), written (1), of a shard in each gather; turned (1 + 1) in
        # the backward
        (TORCHAO, 5 / RANKS, {Phase.INPUT_GRAD: 2}),
        # one read, one write; turned for the forward's product
        (XLA, 3 / RANKS, {Phase.FORWARD: 2}),
        # cast by the update: turned alone
        (HELD, 0, {Phase.FORWARD: 2}),
        # products that read either order
        ({**HELD, "transposed_copies": False}, 0, {}),
        # 16-bit weights that every rank casts whole, twice and in both orders
        ({**CURRENT, "casts_every_forward": True}, 0, {Phase.FORWARD: 6}),
    ],
)
def test_each_rank_casts_its_shard_alone(
    precision: dict[str, object], shards: float, whole: dict[Phase, float]
) -> None:
    piece = layer(asked(**precision))
    cast = moved(piece, "_parameters_cast")
    assert cast == pytest.approx(
        {Phase.FORWARD: shards, Phase.INPUT_GRAD: shards} if shards else {}, rel=1e-3
    )
    assert moved(piece, ".cast_weight") == pytest.approx(whole, rel=1e-3)


def test_copies_out_of_a_gather_move_what_travelled_and_gradients_stay_wide() -> None:
    narrow, wide = (layer(asked(**{**TORCHAO, "parameter_gather": kind})) for kind in ("fp8", "bf16"))
    for phase in (Phase.FORWARD, Phase.INPUT_GRAD):
        share = moved(narrow, "_parameters_copy")[phase] / moved(wide, "_parameters_copy")[phase]
        assert share == pytest.approx(0.5, rel=1e-2)
    assert moved(narrow, "_gradient_copy") == moved(wide, "_gradient_copy")


def step(question: JobSpec, on_rank: RankParameters) -> tuple[Op, ...]:
    layout = Layout.of(RANKS, zero_stage=1, zero_size=RANKS)
    context = LayerContext(model=small_model(), job=question, layout=layout)
    return step_ops(context, on_rank, ints(0))


def test_updated_shards_return_narrow_where_narrow_products_read_them() -> None:
    """Megatron-LM param_and_grad_buffer.py keeps a buffer a format: 3,000 of 4,000 weights take a byte, the
    embedding two.
    """
    nothing = ints(0)
    held = RankParameters(
        dense=ints(4000),
        weight=nothing,
        expert=nothing,
        narrow=RankParameters(dense=ints(3000), weight=nothing, expert=nothing),
    )
    back = [
        [int(op.size_bytes[0]) for op in step(question, held) if op.role is Role.PARAMETER_GATHER]
        for question in (asked("megatron", **HELD), asked("megatron", **CURRENT), asked("megatron"))
    ]
    assert back == [[3000 + 2 * 1000], [2 * 4000], [2 * 4000]]


@pytest.mark.parametrize(("scaling", "searched"), [("current", 1), ("delayed", 0)])
def test_the_update_looks_for_maxima_of_its_shards_where_scales_are_those_at_hand(
    scaling: str, searched: int
) -> None:
    nothing = ints(0)
    ops = step(
        asked("megatron", **{**HELD, "scaling": scaling}),
        RankParameters(dense=ints(4000), weight=nothing, expert=nothing),
    )
    maxima = [op for op in ops if isinstance(op, MemoryBound) and op.name.endswith("parameter_maxima")]
    assert [int(op.rows[0]) for op in maxima] == [4000 // RANKS] * searched
