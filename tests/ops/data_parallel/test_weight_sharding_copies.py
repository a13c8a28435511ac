"""What PyTorch's FSDP2 and its checkpointing run around and instead of a layer's own operations."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import BatchedGemm, Lane, MemoryBound, Pass, Phase
from spec.frameworks import FrameworkPreset, framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

FSDP = framework_preset("fsdp")


def layer(preset: FrameworkPreset, recompute: str = "none", *, stage: int = 3, reduce: str = "bf16") -> Pass:
    plain = job(world_size=4, seq_len=1024, preset=preset)
    asked = replace(plain, precision=replace(plain.precision, reduce=reduce))
    return written(
        small_model(), asked, "mtp", Layout.of(4, zero_size=4, zero_stage=stage), recompute
    ).blocks[0]


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
def test_parameters_are_copied_out_and_gradients_in(
    stage: int, reduce: str, expected: dict[str, float]
) -> None:
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
