"""A processor's steps find the memory that the step before let go of, as a GPU's find it in the allocator's cache."""

import pytest

from benchmarks import gpu_step
from benchmarks.gpu_steps.case import DecoderShape, StepCase
from benchmarks.gpu_steps.rows import row_of
from solver.problem.request import Request

PAGE_BYTES = 4096
WIDE = DecoderShape(hidden=64, layers=1, heads=4, kv_heads=2, ffn=64, vocab=16384, seq_len=128)


@pytest.mark.nightly
def test_pages_are_not_handed_back_between_steps() -> None:
    """A step that gets its memory anew writes to new pages four to six times as often as its logits have pages; one that
    keeps it may still grow by a few tensors in eight steps."""
    row = row_of(
        StepCase(shape=WIDE, micro_batch=1, steps=8), 1, "cpu", Request(root=gpu_step.ROOT, cluster="cpu"), 120.0
    )
    assert row.status == "ok", row.reason
    logits_pages = WIDE.seq_len * WIDE.vocab * 2 / PAGE_BYTES
    assert row.measurement["page_faults"] < 8 * 2 * logits_pages
