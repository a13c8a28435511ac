"""Layers that narrow nothing beside ones that do."""

from dataclasses import replace

from ops.layout import Layout
from ops.op import Attention, BatchedGemm, Pass
from spec.job import Precision
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ = 512
NARROW = Precision(
    linear="fp8",
    attention="fp8",
    scale_recipe="tensor",
    scaling="current",
    narrow_parameters=True,
    parameter_gather="fp8",
)


def block_pieces(precision: Precision, first: int, last: int) -> list[tuple[int, Pass]]:
    model = small_model(layers=4).with_wide_ends(first, last)
    asked = replace(job(seq_len=SEQ, world_size=1), precision=precision)
    pieces = written(model, asked, "mtp", Layout.of(1)).blocks
    return [(run.count, piece) for run, piece in zip(model.blocks, pieces, strict=True)]


def formats(piece: Pass) -> set[str]:
    return {op.dtype for op in (*piece.forward, *piece.backward) if isinstance(op, BatchedGemm | Attention)}


def test_a_wide_layer_is_the_layer_of_a_job_that_narrows_nothing() -> None:
    """Products, attention, casts, what is kept: all as in bf16; layers between are as without."""
    (_, bf16), (_, fp8) = (block_pieces(one, 0, 0)[0] for one in (Precision(), NARROW))
    ends = block_pieces(NARROW, 1, 2)
    assert [count for count, _ in ends] == [1, 1, 2]
    assert [formats(piece) for _, piece in ends] == [{"bf16"}, {"fp8"}, {"bf16"}]
    for told, plain in ((ends[0][1], bf16), (ends[1][1], fp8), (ends[2][1], bf16)):
        for passed, known in ((told.forward, plain.forward), (told.backward, plain.backward)):
            assert [op.name for op in passed] == [op.name for op in known]
            assert [float(op.saved_bytes[0]) for op in passed] == [float(op.saved_bytes[0]) for op in known]


def test_formats_of_wide_layers_are_those_of_activations() -> None:
    wide = NARROW.of_wide_layers
    assert (wide.linear, wide.attention, wide.parameter_gather) == ("bf16", "bf16", "bf16")
    assert (wide.narrows, wide.casts_every_forward, wide.narrow_parameters) == (False, False, False)
    assert replace(NARROW, activation="fp16", attention="fp32").of_wide_layers.attention == "fp32"
