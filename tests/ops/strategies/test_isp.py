"""InternEvo's isp by hand: tokens cut over the sequence group, weights whole while they multiply."""

import pytest

from ops.layout import Layout
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Phase
from ops.roles import Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
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


@pytest.mark.parametrize(
    ("recompute", "phases"),
    [("none", [Phase.FORWARD, Phase.INPUT_GRAD]), ("full", [Phase.FORWARD, Phase.RECOMPUTE])],
)
def test_weights_are_gathered_twice_also_where_a_layer_runs_again(
    recompute: str, phases: list[Phase]
) -> None:
    """InternEvo keeps what the repeated forward gathered until the layer's backward is done."""
    asked = job(seq_len=SEQ, preset=framework_preset("internevo"))
    layer = written(small_model(), asked, "isp", Layout.of(8, tp=TP, wp=2), recompute).blocks[0]
    over_wp = [op for op in (*layer.forward, *layer.backward) if isinstance(op, Comm) and op.axis is Axis.WP]
    elements = sum(int(op.parameters[0]) for op in layer.forward if isinstance(op, BatchedGemm))
    for kind, during in ((Collective.ALL_GATHER, phases), (Collective.REDUCE_SCATTER, [Phase.WEIGHT_GRAD])):
        moved = {
            phase: sum(int(op.size_bytes[0]) for op in over_wp if (op.collective, op.phase) == (kind, phase))
            for phase in dict.fromkeys(op.phase for op in over_wp if op.collective is kind)
        }
        # 16 bits of both halves of every weight.
        assert moved == dict.fromkeys(during, 2 * 2 * elements)
