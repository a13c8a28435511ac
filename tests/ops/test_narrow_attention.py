"""Casts around attention in 8 bits: bytes by hand, and what the kernel keeps."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Attention, MemoryBound, Phase
from ops.roles import Role
from spec.job import Precision
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ = 512
MODEL = small_model()
MIXER = MODEL.blocks[0].block.mixer
READ = SEQ * (MIXER.num_heads * MIXER.qk_dim + MIXER.num_kv_heads * (MIXER.qk_dim + MIXER.v_dim))
MADE = SEQ * MIXER.num_heads * MIXER.v_dim


def layer(**precision: str) -> tuple[list[MemoryBound], float]:
    """Casts that serve the kernel, and the bytes that it keeps."""
    asked = job(seq_len=SEQ, world_size=1)
    said: Precision = replace(asked.precision, **precision)  # type: ignore[arg-type]
    block = written(MODEL, replace(asked, precision=said), "mtp", Layout.of(1)).blocks[0]
    ops = (*block.forward, *block.backward)
    casts = [
        op
        for op in ops
        if isinstance(op, MemoryBound) and op.served.role is Role.CORE and op.role is Role.CAST
    ]
    (core,) = (op for op in block.forward if isinstance(op, Attention))
    return casts, float(core.saved_bytes[0])


def moved(casts: list[MemoryBound], phase: Phase) -> float:
    return sum(float(bytes_moved(op)[0]) for op in casts if op.phase is phase)


def test_attention_in_16_bits_casts_nothing() -> None:
    assert layer()[0] == []


def test_a_known_scale_is_cast_to_once_and_what_the_kernel_makes_is_brought_back() -> None:
    """2 + 1 bytes of q, k and v in, 1 + 2 of the output out; backward the gradient of the output in, of q, k
    and v out.
    """
    casts, _ = layer(attention="fp8", linear="fp8", scaling="delayed")
    assert moved(casts, Phase.FORWARD) == pytest.approx(3 * READ + 3 * MADE, rel=1e-3)
    assert moved(casts, Phase.INPUT_GRAD) == pytest.approx(3 * MADE + 3 * READ, rel=1e-3)


def test_a_scale_found_in_the_tensor_is_read_for_first_and_the_kernel_writes_16_bits() -> None:
    casts, _ = layer(attention="fp8", linear="fp8", scaling="current")
    assert moved(casts, Phase.FORWARD) == pytest.approx(5 * READ, rel=1e-3)
    assert moved(casts, Phase.INPUT_GRAD) == pytest.approx(5 * MADE, rel=1e-3)


def test_the_kernel_keeps_what_it_read_and_its_output_in_8_bits() -> None:
    statistics = 4 * SEQ * MIXER.num_heads
    assert layer()[1] == 2 * READ + statistics
    narrow = layer(attention="fp8", linear="fp8", scaling="delayed")[1]
    assert narrow == READ + MADE + statistics
