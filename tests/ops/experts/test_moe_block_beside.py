"""What an expert block keeps where another micro-batch runs beside its exchanges."""

import pytest

from ops.layout import Layout
from tests.ops.experts.test_moe_block import HIDDEN, SEQ, WIDTH, model
from tests.ops.layouts import job, written


@pytest.mark.parametrize(("ep", "shared", "outputs"), [(4, WIDTH, 1), (4, 0, 0), (1, WIDTH, 0)])
def test_beside_another_micro_batch_the_shared_experts_output_stays(
    ep: int, shared: int, outputs: int
) -> None:
    """Megatron-LM models/common/utils.py, before_detached: 2 bytes a token and channel."""

    def kept(*, beside: bool) -> float:
        asked = job(seq_len=SEQ, overlap_expert_a2a=beside)
        found = written(model(shared_ffn_hidden=shared), asked, "mtp", Layout.of(8, ep=ep)).blocks[0]
        return sum(float(op.saved_bytes[0]) for op in found.forward)

    assert kept(beside=True) - kept(beside=False) == outputs * 2.0 * SEQ * HIDDEN
