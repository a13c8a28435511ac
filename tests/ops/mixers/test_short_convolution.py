"""LFM2's gated short convolution by hand: c channels, three taps."""

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Pass
from spec.errors import ConfigError
from spec.mixers.short_convolution import ShortConvolutionSpec
from spec.model import ModelSpec
from spec.section import Section
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, SEQ, BATCH = 512, 2048, 3
TOKENS = SEQ * BATCH


def model(*, bias: bool = False) -> ModelSpec:
    return with_block(small_model(hidden=HIDDEN), mixer=ShortConvolutionSpec(channels=HIDDEN, bias=bias), mlp=None)


def layer(strategy: str = "mtp", *, bias: bool = False, **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    settings = job(seq_len=SEQ, world_size=ranks, context_parallel="all_to_all")
    return written(model(bias=bias), settings, strategy, Layout.of(ranks, micro_batch=BATCH, **degrees)).blocks[0]


@pytest.mark.parametrize("bias", [False, True])
def test_weights_are_two_products_and_the_taps(bias: bool) -> None:
    """transformers modeling_lfm2.py, Lfm2ShortConv: biases of the product in, the convolution and the product out. The norm and
    the last bias are whole on every rank."""
    weights = 4 * HIDDEN * HIDDEN + 3 * HIDDEN + bias * (3 + 1 + 1) * HIDDEN
    mixer = ShortConvolutionSpec(channels=HIDDEN, bias=bias)
    assert sum(module.elements for module in mixer.modules(HIDDEN, "")) == weights
    whole = HIDDEN + bias * HIDDEN
    for tp in (1, 2):
        owned = sum(int(op.parameters[0]) for op in layer(bias=bias, tp=tp).forward)
        assert owned == (weights + HIDDEN - whole) // tp + whole


def test_gates_and_convolution_move_and_keep_their_tensors() -> None:
    """Two gates: two tensors read and one written, back three and two; the convolution one each way, back two and one. Kept: the
    layer's and the product's input, B, C and x, what the convolution and the second gate read, and what the last product does."""
    piece = layer()
    moved = {
        op.name: float(bytes_moved(op)[0]) / (2 * TOKENS * HIDDEN)
        for op in piece.forward
        if isinstance(op, MemoryBound)
    }
    assert {name: moved[f"short_convolution.{name}"] for name in ("gate", "convolution", "output_gate")} == {
        "gate": 3,
        "convolution": 2,
        "output_gate": 3,
    }
    assert saved_bytes(piece) == 2 * TOKENS * HIDDEN * (2 + 3 + 1 + 1 + 1)
    shapes = [(int(op.m[0]), int(op.k[0]), int(op.n[0])) for op in piece.forward if isinstance(op, BatchedGemm)]
    assert shapes == [(TOKENS, HIDDEN, 3 * HIDDEN), (TOKENS, HIDDEN, HIDDEN)]


def test_context_parallelism_exchanges_channels() -> None:
    part = layer("fsp", cp=4)
    moved = {op.name: int(op.size_bytes[0]) for op in part.forward if isinstance(op, Comm) and op.axis is Axis.CP}
    assert moved == {f"short_convolution.{name}_context": 2 * TOKENS // 4 * HIDDEN for name in ("b", "c", "x", "out")}


def test_a_layer_of_a_config_has_the_model_s_channels() -> None:
    read = ShortConvolutionSpec.read(Section(where="test", name="short_convolution", values={"conv_kernel": 7}), 96)
    assert read == ShortConvolutionSpec(channels=96, conv_kernel=7)
    assert (read.cut_heads, read.repeatable_heads) == ((96,), ())
    with pytest.raises(ConfigError, match="taps"):
        ShortConvolutionSpec.read(Section(where="test", name="short_convolution", values={"taps": 7}), 96)
