"""How a sequence is dealt over cp; that it is put together again is tested with the trainer."""

import pytest

from runner.reference.layers import chunks_of


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_rank_holds_as_many_pairs_under_the_causal_mask(ranks: int) -> None:
    """Chunk i of size c sees i c^2 whole pairs and c (c + 1) / 2 of its own, so i + j must be the same for all."""
    held = [chunks_of(rank, ranks) for rank in range(ranks)]
    assert sorted(chunk for pair in held for chunk in pair) == list(range(2 * ranks))
    assert {sum(pair) for pair in held} == {2 * ranks - 1}
