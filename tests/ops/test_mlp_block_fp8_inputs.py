"""Inputs of gated activations that wait for the backward in fp8."""

import pytest

from ops.layout import Layout
from ops.op import MemoryBound, Pass, Phase
from ops.roles import Role
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT

SEQ, FFN, EXPERT, EXPERTS_OF_A_TOKEN = 256, 18432, 2048, 8


def blocks(where: str, *modules: str) -> tuple[Pass, ...]:
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    asked = job(seq_len=SEQ, fp8_activation_inputs=where)
    return written(model, asked, "mtp", Layout.of(8, ep=8), "none", modules).blocks


def saved(piece: Pass) -> float:
    return sum(float(op.saved_bytes[0]) for op in piece.forward)


@pytest.mark.parametrize(("where", "dense", "experts"), [("experts", 0, 1), ("all", 1, 1)])
def test_gate_and_up_are_kept_in_a_byte_each(where: str, dense: int, experts: int) -> None:
    """Two of 18,432 channels a token of a dense layer, two of 2,048 for each of 8 routed experts and the shared one."""
    plain, narrow = blocks(""), blocks(where)
    routed = SEQ * 2 * EXPERT * (EXPERTS_OF_A_TOKEN + 1)
    assert saved(plain[0]) - saved(narrow[0]) == dense * SEQ * 2 * FFN
    assert saved(plain[1]) - saved(narrow[1]) == experts * routed


def test_a_pass_writes_them_and_one_reads_them_back() -> None:
    """Three bytes an element each: two of bf16 and one of fp8; a copy moves four."""
    piece = blocks("all")[0]
    for ops, phase in ((piece.forward, Phase.FORWARD), (piece.backward, Phase.INPUT_GRAD)):
        (one,) = [op for op in ops if op.role is Role.CAST and op.serves is Role.ACTIVATION]
        assert isinstance(one, MemoryBound)
        assert (one.phase, one.kernel) == (phase, "copy")
        assert 4 * int(one.rows[0]) * int(one.width[0]) == 3 * SEQ * 2 * FFN
