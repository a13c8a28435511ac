"""InternEvo's isp by hand: tokens cut over the sequence group, weights whole while they multiply."""

from ops.layout import Layout
from ops.op import BatchedGemm, MemoryBound
from ops.roles import Role
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ, TP, HIDDEN, VOCAB = 2048, 4, 512, 4096


def test_the_head_multiplies_a_rank_s_tokens_by_the_whole_vocabulary() -> None:
    """arXiv 2401.09149: weights are gathered whole, so no rank has a part of the logits' columns."""
    head = written(small_model(), job(seq_len=SEQ), "isp", Layout.of(8, tp=TP, wp=2)).head
    (logits,) = [op for op in head.forward if isinstance(op, BatchedGemm) and op.role is Role.LOGITS]
    assert (logits.m.tolist(), logits.k.tolist(), logits.n.tolist()) == ([SEQ // TP], [HIDDEN], [VOCAB])
    (loss,) = [op for op in head.forward if isinstance(op, MemoryBound) and op.role is Role.CROSS_ENTROPY]
    assert (loss.rows.tolist(), loss.width.tolist()) == ([SEQ // TP], [VOCAB])
