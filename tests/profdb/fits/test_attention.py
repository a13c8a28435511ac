"""What the fit of attention counts of a call."""

import pytest

from profdb.fits.families import attention_shapes
from spec.arrays import ints

COLUMNS = {
    "batch": ints(2),
    "q_len": ints(128),
    "kv_len": ints(256),
    "heads": ints(8),
    "kv_heads": ints(2),
    "qk_dim": ints(64),
    "v_dim": ints(32),
    "window": ints(0),
}


def test_a_backward_has_five_products_for_the_forwards_two() -> None:
    """2 (qk_dim + v_dim) FLOPs a pair and head forward (FlashAttention-2, 2307.08691)."""
    ways = {
        way: attention_shapes(COLUMNS, {"dtype": "bf16", "mask": "full", "direction": way})
        for way in ("forward", "backward")
    }
    forward = 2 * 2 * 8 * 128 * 256 * (64 + 32)
    assert ways["forward"].flops[0] == pytest.approx(forward)
    assert ways["backward"].flops[0] == pytest.approx(forward * 5 / 2)
    moved = 2 * 2 * (128 * 8 * 64 + 256 * 2 * (64 + 32) + 128 * 8 * 32)
    assert ways["forward"].size_bytes[0] == pytest.approx(moved)
    assert ways["backward"].size_bytes[0] == pytest.approx(2 * moved)
