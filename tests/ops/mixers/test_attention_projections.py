"""Widths of what stands before an attention core, by published models."""

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import BatchedGemm, MemoryBound, Pass
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT

SEQ = 1024


def layer(config: str, tp: int) -> Pass:
    model = read_config(ROOT / "configs" / config).model
    return written(model, job(seq_len=SEQ), "mtp", Layout.of(8, tp=tp)).blocks[0]


@pytest.mark.published
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_latent_attention_of_deepseek_v3(tp: int) -> None:
    """arXiv 2412.19437 sec. 4.2: hidden 7168, 128 heads of 128 + 64 and 128, latents of 1536 and 512 + 64; the down
    projections are whole on every rank, the up projections cut over heads."""
    found = {
        op.name.removeprefix("attention."): (int(op.m[0]), int(op.k[0]), int(op.n[0]))
        for op in layer("671B_deepseek_v3.toml", tp).forward
        if isinstance(op, BatchedGemm) and op.name.startswith("attention.")
    }
    heads = 128 // tp
    assert found == {
        "q_down": (SEQ, 7168, 1536),
        "q_up": (SEQ, 1536, heads * 192),
        "kv_down": (SEQ, 7168, 576),
        "kv_up": (SEQ, 512, heads * (128 + 128)),
        "out": (SEQ, heads * 128, 7168),
    }


@pytest.mark.parametrize("tp", [1, 4])
def test_norms_and_rotations_take_queries_and_keys_alone(tp: int) -> None:
    """Qwen3-8B (its config.json): 32 heads of 128, 8 of keys and of values; read and written in 2 bytes. Of
    DeepSeek-V3 64 channels of each head and of the one key that all share are rotated."""
    found = {
        op.name: float(bytes_moved(op)[0])
        for op in layer("8B_qwen3.json", tp).forward
        if isinstance(op, MemoryBound)
    }
    both = 2 * 2 * SEQ * (32 + 8) // tp * 128
    assert found["attention.rotary"] == both
    assert found["attention.qk_norm"] == pytest.approx(both, rel=1e-3)
    (rotated,) = [op for op in layer("671B_deepseek_v3.toml", tp).forward if op.name == "attention.rotary"]
    assert isinstance(rotated, MemoryBound)
    assert (rotated.rows * rotated.width).tolist() == [SEQ * (128 // tp + 1) * 64]
