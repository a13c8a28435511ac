"""The order of what stands between tokens and their experts."""

import pytest

from ops.layout import Layout
from tests.ops.experts.test_moe_block import COPIES, HIDDEN, SEQ, model, moved
from tests.ops.layouts import job, written


@pytest.mark.parametrize("ep", [4, 1])
def test_rows_are_sorted_after_they_were_gathered_over_etp(ep: int) -> None:
    """Megatron-LM core 0.12 token_dispatcher.py, token_permutation: all_to_all, gather over tp, then
    sort_chunks_by_idxs over all rows; token_unpermutation the other way round. So ``R etp`` rows are moved, whatever ep is."""
    layout = Layout.of(8, tp=2, ep=ep, etp=2)
    found = written(model(), job(seq_len=SEQ), "fsp", layout).blocks[0]
    assert moved(found, "moe.sort") == moved(found, "moe.unsort") == 2 * 2 * COPIES * HIDDEN * 2
    order = [op.name for op in found.forward]
    around = ["moe.expert_gather", "moe.sort", "moe.up", "moe.down", "moe.unsort", "moe.expert_scatter"]
    assert [name for name in order if name in around] == around
