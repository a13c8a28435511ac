"""The attention kernel of packed sequences."""

import pytest

from ops.layout import Layout
from ops.op import Attention
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ = 2048


def cores(layout: Layout, **changes: object) -> list[Attention]:
    asked = job(seq_len=SEQ, world_size=layout.world_size, **changes)
    (block,) = written(small_model(), asked, "mtp", layout).blocks
    return [op for op in (*block.forward, *block.backward) if isinstance(op, Attention)]


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_packed_documents_attend_to_themselves_alone(micro_batch: int) -> None:
    layout = Layout.of(1, micro_batch=micro_batch)
    packed, whole = cores(layout, document_tokens=512), cores(layout)
    assert [(op.batch.tolist(), op.q_len.tolist(), op.kv_len.tolist(), op.mask) for op in packed] == [
        ([4 * micro_batch], [512], [512], "varlen")
    ] * 2
    assert [4.0 * op.flops[0] for op in packed] == [op.flops[0] for op in whole]
    assert [op.saved_bytes.tolist() for op in packed] == [op.saved_bytes.tolist() for op in whole]


def test_a_last_document_may_be_shorter() -> None:
    (forward, _) = cores(Layout.of(1), document_tokens=600)
    assert (forward.batch.tolist(), forward.q_len.tolist()) == ([4], [600])


@pytest.mark.parametrize("tokens", [0, SEQ, 10 * SEQ])
def test_a_document_of_a_whole_sequence_is_one(tokens: int) -> None:
    packed, whole = cores(Layout.of(1), document_tokens=tokens), cores(Layout.of(1))
    assert [(op.mask, op.q_len.tolist()) for op in packed] == [(op.mask, op.q_len.tolist()) for op in whole]


def test_a_ring_attends_to_all_and_an_exchange_within_documents() -> None:
    layout = Layout.of(2, cp=2)
    assert cores(layout, document_tokens=128)[0].q_len.tolist() == [SEQ // 2]
    exchanged = cores(layout, document_tokens=128, context_parallel="all_to_all")
    assert {op.q_len.tolist()[0] for op in exchanged} == {128}


def test_unfused_scores_are_whole() -> None:
    assert {op.mask for op in cores(Layout.of(1), document_tokens=128, flash_attention=False)} <= {"causal"}
