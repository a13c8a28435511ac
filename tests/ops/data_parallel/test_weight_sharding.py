"""How gradients of stages 2 and 3 are reduced in every backward."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.step import RankParameters, step_ops
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, Lane, MemoryBound, Op, Pass, Phase, multiplies_low_precision
from ops.roles import Role
from spec.arrays import bools, ints
from spec.collectives import Collective
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec
from tests.ops.layouts import job, step_on, written
from tests.solver.questions import small_model

ALL_REDUCED, SCATTERED = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER
BESIDE, IN_ITS_WAY = Lane.PREFETCH, Lane.MAIN


def reductions(preset: str, stage: int) -> dict[tuple[Collective, Lane], int]:
    """Bytes of a layer's reductions by collective and lane, over 4 ranks."""
    asked = job(world_size=4, seq_len=1024, preset=framework_preset(preset))
    layout = Layout.of(4, zero_size=4, zero_stage=stage)
    layer = written(small_model(), asked, "mtp", layout, "none").blocks[0]
    found: dict[tuple[Collective, Lane], int] = {}
    for op in layer.backward:
        if isinstance(op, Comm) and op.role is Role.GRADIENT_REDUCTION and op.size_bytes[0]:
            key = (op.collective, op.lane)
            found[key] = found.get(key, 0) + int(op.size_bytes[0])
    return found


@pytest.mark.parametrize(
    ("preset", "stage", "collective", "lane"),
    [
        # DeepSpeed runtime/zero/config.py: overlap_comm true at stage 3 alone,
        # use_multi_rank_bucket_allreduce; XTuner's and accelerate's configurations overlap at stage 2 too
        ("deepspeed", 2, ALL_REDUCED, IN_ITS_WAY),
        ("deepspeed", 3, SCATTERED, BESIDE),
        ("xtuner", 2, ALL_REDUCED, BESIDE),
        ("xtuner", 3, SCATTERED, BESIDE),
        # runtime/zero/stage2.py of 2021 reduces slices to their owners
        ("deepspeed-2021", 2, SCATTERED, BESIDE),
        ("fsdp", 2, SCATTERED, BESIDE),
    ],
)
def test_stage_2_reduces_as_its_framework_does_and_stage_3_scatters(
    preset: str, stage: int, collective: Collective, lane: Lane
) -> None:
    """Every gradient travels once, whole, in 16 bits."""
    found = reductions(preset, stage)
    assert set(found) == {(collective, lane)}
    assert found[collective, lane] == sum(reductions(preset, 5 - stage).values())


def test_below_stage_2_nothing_is_reduced_in_a_micro_batch() -> None:
    assert not reductions("deepspeed", 1)


# What PyTorch's FSDP2 and its checkpointing run around and instead of a layer's own operations.


FSDP = framework_preset("fsdp")


def layer(preset: FrameworkPreset, recompute: str = "none", *, stage: int = 3, reduce: str = "bf16") -> Pass:
    plain = job(world_size=4, seq_len=1024, preset=preset)
    asked = replace(plain, precision=replace(plain.precision, reduce=reduce))
    return written(small_model(), asked, "mtp", Layout.of(4, zero_size=4, zero_stage=stage), recompute).blocks[0]


def copied_bytes(piece: Pass) -> dict[str, float]:
    """Bytes of copies beside the compute, per element of the layer, by phase."""
    elements = sum(int(op.parameters[0]) for op in piece.forward)
    found: dict[str, float] = {}
    for op in (*piece.forward, *piece.backward):
        if isinstance(op, MemoryBound) and op.name.endswith(("_parameters_copy", "_gradient_copy")):
            assert op.lane is Lane.MAIN
            found[op.phase.value] = found.get(op.phase.value, 0.0) + float(bytes_moved(op)[0]) / elements
    return found


@pytest.mark.parametrize(
    ("stage", "reduce", "expected"),
    [
        # 16 bits read and written; gradients that travel in fp32 read 2 bytes and write 4
        (3, "bf16", {"forward": 4, "input_grad": 4, "weight_grad": 4}),
        (3, "fp32", {"forward": 4, "input_grad": 4, "weight_grad": 6}),
        (2, "bf16", {"forward": 4, "input_grad": 0, "weight_grad": 4}),
    ],
)
def test_parameters_are_copied_out_and_gradients_in(stage: int, reduce: str, expected: dict[str, float]) -> None:
    assert copied_bytes(layer(FSDP, stage=stage, reduce=reduce)) == pytest.approx(expected)


def test_frameworks_that_gather_in_place_copy_nothing() -> None:
    assert not copied_bytes(layer(FSDP.changed({"data_parallel.fsdp_version": 0})))
    assert not copied_bytes(layer(framework_preset("deepspeed")))


@pytest.mark.parametrize(
    ("stage", "reduce", "expected"),
    [
        # joined (2 + 2) and divided (2 + 2); in fp32 joined, cast (2 + 4) and divided (4 + 4)
        (3, "bf16", 8),
        (2, "bf16", 8),
        (3, "fp32", 18),
        (1, "fp32", 0),
    ],
)
def test_flat_gradients_are_joined_cast_and_divided(stage: int, reduce: str, expected: float) -> None:
    flat = FSDP.changed({"data_parallel.fsdp_version": 1})
    piece = layer(flat, stage=stage, reduce=reduce)
    elements = sum(int(op.parameters[0]) for op in piece.forward)
    passes = [
        op
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, MemoryBound) and op.name.endswith(("_join", "_gradient_cast", "_divide"))
    ]
    assert sum(float(bytes_moved(op)[0]) for op in passes) / elements == pytest.approx(expected)
    assert not copied_bytes(piece)


def repeated(piece: Pass) -> list[str]:
    return [op.name for op in piece.backward if op.phase is Phase.RECOMPUTE]


def test_recomputation_ends_before_the_last_product() -> None:
    early = repeated(layer(FSDP, "full"))
    whole = repeated(layer(FSDP.changed({"recomputation.stops_early": False}), "full"))
    assert whole[: len(early)] == early
    assert [name for name in whole if name not in early] == ["mlp.down", "mlp.down.leave", "mlp.residual"]
    products = [op for op in layer(FSDP, "full").forward if isinstance(op, BatchedGemm)]
    assert products[-1].name == "mlp.down"


# Weights that travel in the format in which products read them: bytes gathered, cast and copied, by what
# products of a layer read.


RANKS = 4
CURRENT = {"linear": "fp8", "scale_recipe": "tensor", "scaling": "current"}
TORCHAO = {**CURRENT, "scaling": "dynamic", "casts_every_forward": True, "parameter_gather": "fp8"}
XLA = {**CURRENT, "scaling": "delayed", "casts_every_forward": True, "parameter_gather": "fp8"}
HELD = {**CURRENT, "parameter_gather": "fp8", "low_precision_parameters": True}


def asked(preset: str = "fsdp", **precision: object) -> JobSpec:
    plain = job(world_size=RANKS, seq_len=1024, preset=framework_preset(preset))
    return replace(plain, precision=replace(plain.precision, **precision))


def sharded_layer(question: JobSpec, stage: int = 3) -> Pass:
    layout = Layout.of(RANKS, zero_stage=stage, zero_size=RANKS)
    return written(small_model(), question, "mtp", layout).blocks[0]


def elements(piece: Pass) -> tuple[int, int]:
    """Of narrow products, and of all else."""
    narrow = sum(int(op.parameters[0]) for op in piece.forward if multiplies_low_precision(op))
    return narrow, sum(int(op.parameters[0]) for op in piece.forward) - narrow


def gathered(piece: Pass) -> list[float]:
    ops = (*piece.forward, *piece.backward)
    return [float(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.role is Role.PARAMETER_GATHER]


def moved(piece: Pass, ending: str) -> dict[Phase, float]:
    """Bytes of the passes whose names end so, by phase, over the elements of narrow products."""
    found: dict[Phase, float] = {}
    for op in (*piece.forward, *piece.backward):
        if isinstance(op, MemoryBound) and op.name.endswith(ending):
            found[op.phase] = found.get(op.phase, 0.0) + float(bytes_moved(op)[0])
    return {phase: total / elements(piece)[0] for phase, total in found.items()}


def test_only_what_narrow_products_read_travels_narrow() -> None:
    """torchao float8/fsdp_utils.py: Float8Linear's weights alone; norms and router stay in 16 bits."""
    narrow, others = elements(sharded_layer(asked(**TORCHAO)))
    assert narrow > 100 * others > 0
    assert gathered(sharded_layer(asked(**TORCHAO))) == pytest.approx([narrow + 2 * others] * 2, abs=2 * RANKS)
    wide = sharded_layer(asked(**{**TORCHAO, "parameter_gather": "bf16"}))
    assert gathered(wide) == pytest.approx([2 * (narrow + others)] * 2, abs=2 * RANKS)


def test_frozen_weights_travel_narrow_too() -> None:
    """Beside adapters in 16 bits: every weight of qkv, out and the two products of the MLP is frozen, one of
    the norms is not narrow.
    """
    adapted = replace(asked(**TORCHAO), adapter_rank=16, adapted=frozenset({"q_k_v", "out"}))
    piece = sharded_layer(adapted)
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
    piece = sharded_layer(asked(**precision))
    cast = moved(piece, "_parameters_cast")
    assert cast == pytest.approx({Phase.FORWARD: shards, Phase.INPUT_GRAD: shards} if shards else {}, rel=1e-3)
    assert moved(piece, ".cast_weight") == pytest.approx(whole, rel=1e-3)


def test_copies_out_of_a_gather_move_what_travelled_and_gradients_stay_wide() -> None:
    narrow, wide = (sharded_layer(asked(**{**TORCHAO, "parameter_gather": kind})) for kind in ("fp8", "bf16"))
    for phase in (Phase.FORWARD, Phase.INPUT_GRAD):
        share = moved(narrow, "_parameters_copy")[phase] / moved(wide, "_parameters_copy")[phase]
        assert share == pytest.approx(0.5, rel=1e-2)
    assert moved(narrow, "_gradient_copy") == moved(wide, "_gradient_copy")


def step(question: JobSpec, on_rank: RankParameters) -> tuple[Op, ...]:
    layout = Layout.of(RANKS, zero_stage=1, zero_size=RANKS)
    context = LayerContext(model=small_model(), job=question, layout=layout)
    return step_ops(context, on_rank, bools(False))


def test_updated_shards_return_narrow_where_narrow_products_read_them() -> None:
    """Megatron-LM param_and_grad_buffer.py keeps a buffer a format: 3,000 of 4,000 weights take a byte, the
    embedding two.
    """
    nothing = ints(0)
    held = RankParameters(
        dense=ints(4000),
        weight=nothing,
        expert=nothing,
        low_precision=RankParameters(dense=ints(3000), weight=nothing, expert=nothing),
    )
    back = [
        [int(op.size_bytes[0]) for op in step(question, held) if op.role is Role.PARAMETER_GATHER]
        for question in (asked("megatron", **HELD), asked("megatron", **CURRENT), asked("megatron"))
    ]
    assert back == [[3000 + 2 * 1000], [2 * 4000], [2 * 4000]]


@pytest.mark.parametrize(("scaling", "searched"), [("current", 1), ("delayed", 0)])
def test_the_update_looks_for_maxima_of_its_shards_where_scales_are_those_at_hand(scaling: str, searched: int) -> None:
    nothing = ints(0)
    ops = step(
        asked("megatron", **{**HELD, "scaling": scaling}),
        RankParameters(dense=ints(4000), weight=nothing, expert=nothing),
    )
    maxima = [op for op in ops if isinstance(op, MemoryBound) and op.name.endswith("parameter_maxima")]
    assert [int(op.rows[0]) for op in maxima] == [4000 // RANKS] * searched


# FSDP on pipeline stages gathers a stage's parameters once a step and reduces its gradients once; under no_sync the
# gradients of all micro-batches are reduced once, and parameters gathered for each.


ELEMENTS = 1000


def layout(pp: int, stage: int = 3, shards: int = 4) -> Layout:
    return Layout.of(8, pp=pp, zero_size=shards, zero_stage=stage)


def ops_of_layer(pp: int, stage: int = 3, preset: str = "fsdp", reduce: str = "bf16") -> tuple[Op, ...]:
    plain = job(world_size=8, preset=framework_preset(preset))
    asked = replace(plain, precision=replace(plain.precision, reduce=reduce))
    block = written(small_model(), asked, "mtp", layout(pp, stage), "none").blocks[0]
    return (*block.forward, *block.backward)


def carried(ops: tuple[Op, ...]) -> float:
    """Bytes of collectives over the shards."""
    return sum(float(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.axis is Axis.ZERO_SHARD)


def summed(ops: tuple[Op, ...]) -> float:
    """Bytes of adding up whole gradients."""
    own = [op for op in ops if isinstance(op, MemoryBound) and op.serves is Role.GRADIENT_REDUCTION]
    return sum(float(bytes_moved(op)[0]) for op in own if op.role is Role.ACCUMULATE)


def bytes_of_step(pp: int, stage: int, preset: str = "fsdp") -> dict[Collective, int]:
    ops = step_on(job(preset=framework_preset(preset)), layout(pp, stage), ELEMENTS)
    return {op.collective: int(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.size_bytes[0]}


@pytest.mark.parametrize("stage", [2, 3])
def test_a_micro_batch_moves_nothing_over_the_shards_and_adds_up_whole_gradients(stage: int) -> None:
    """16-bit gradients added to a 16-bit sum: two reads and a write (accumulate_unsharded_grad_if_needed)."""
    ops = ops_of_layer(2, stage)
    elements = sum(int(op.parameters[0]) for op in ops if op.phase is Phase.FORWARD)
    assert carried(ops) == 0.0 < carried(ops_of_layer(1, stage))
    assert summed(ops) == 3 * 2 * elements
    assert summed(ops_of_layer(1, stage)) == 0.0
    copies = [op for op in ops if op.name.endswith(("_parameters_copy", "_gradient_copy"))]
    assert sum(float(bytes_moved(op)[0]) for op in copies if isinstance(op, MemoryBound)) == 0.0


def test_sums_in_fp32_are_read_and_written_wide() -> None:
    """torchtitan: reduce_dtype fp32, so 2 + 4 + 4 bytes an element."""
    ops = ops_of_layer(2, reduce="fp32")
    elements = sum(int(op.parameters[0]) for op in ops if op.phase is Phase.FORWARD)
    assert summed(ops) == 10 * elements


@pytest.mark.parametrize("stage", [2, 3])
def test_the_step_moves_every_parameter_and_gradient_once(stage: int) -> None:
    width = 2
    assert bytes_of_step(2, stage) == {
        Collective.REDUCE_SCATTER: ELEMENTS * width,
        Collective.ALL_GATHER: ELEMENTS * width,
    }
    assert bytes_of_step(1, stage) == {}


def test_other_frameworks_gather_for_every_micro_batch() -> None:
    assert not FSDP.changed({"pipeline.keeps_gathered": False}).pipeline.keeps_gathered
    ops = ops_of_layer(2, 3, preset="deepspeed")
    assert carried(ops) > 0.0
    assert summed(ops) == 0.0
    assert bytes_of_step(2, 3, preset="deepspeed") == {}


def test_rows_of_one_table_each_have_their_own() -> None:
    both = Layout.of(
        8, pp=np.array([1, 2]), dp=np.array([8, 4]), zero_size=np.array([4, 4]), zero_stage=np.array([3, 3])
    )
    block = written(small_model(), job(world_size=8, preset=FSDP), "mtp", both, "none").blocks[0]
    gathers = [op for op in block.forward if isinstance(op, Comm) and op.axis is Axis.ZERO_SHARD]
    assert all(op.size_bytes[0] > 0 == op.size_bytes[1] for op in gathers)


def accumulated(micro_batches: int, *, once: bool = True, stage: int = 3) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """The operations of a micro-batch's layer and of the step, under Hugging Face's Trainer on 8 ranks."""
    preset = framework_preset("hf-trainer").changed({"data_parallel.reduces_once": once})
    plain = job(world_size=8, preset=preset)
    asked = replace(plain, global_batch_tokens=plain.global_batch_tokens * micro_batches)
    shards = Layout.of(8, dp=8, zero_size=8, zero_stage=stage)
    block = written(small_model(), asked, "mtp", shards, "none").blocks[0]
    return (*block.forward, *block.backward), step_on(asked, shards, ELEMENTS)


def collectives(ops: tuple[Op, ...], kind: Collective) -> int:
    """Bytes over the shards."""
    of_kind = [op for op in ops if isinstance(op, Comm) and op.collective is kind and op.axis is Axis.ZERO_SHARD]
    return sum(int(op.size_bytes[0]) for op in of_kind)


@pytest.mark.parametrize("stage", [2, 3])
def test_under_no_sync_gradients_travel_once_a_step_and_parameters_for_every_micro_batch(stage: int) -> None:
    """accelerate no_sync around all micro-batches but the last: joined (2 + 2 bytes), added to a 16-bit sum (3 x 2)."""
    layer_ops, step_of = accumulated(4, stage=stage)
    before, _ = accumulated(4, once=False, stage=stage)
    assert collectives(layer_ops, Collective.REDUCE_SCATTER) == 0 < collectives(before, Collective.REDUCE_SCATTER)
    gathers = collectives(layer_ops, Collective.ALL_GATHER)
    assert gathers == collectives(before, Collective.ALL_GATHER) > 0
    assert collectives(step_of, Collective.REDUCE_SCATTER) == 2 * ELEMENTS
    assert collectives(step_of, Collective.ALL_GATHER) == 0
    elements = sum(int(op.parameters[0]) for op in layer_ops if op.phase is Phase.FORWARD)
    assert summed(layer_ops) == 3 * 2 * elements
    joins = [op for op in layer_ops if isinstance(op, MemoryBound) and op.name.endswith("_join")]
    assert sum(float(bytes_moved(op)[0]) for op in joins) == 2 * 2 * elements


def test_a_single_micro_batch_is_reduced_as_its_backward_makes_it() -> None:
    layer_ops, step_of = accumulated(1)
    before, plain = accumulated(1, once=False)
    assert [op.name for op in layer_ops] == [op.name for op in before]
    assert collectives(layer_ops, Collective.REDUCE_SCATTER) == collectives(before, Collective.REDUCE_SCATTER) > 0
    assert collectives(step_of, Collective.REDUCE_SCATTER) == collectives(plain, Collective.REDUCE_SCATTER) == 0
