"""Ranks that come, come late or never, before there is any group."""

import socket
import time

import pytest
import torch.distributed as dist

from profiler.ranks import meeting
from profiler.ranks.meeting import RankFailedError, connect, meet
from profiler.ranks.rank_layout import RankLayout


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """The store of a run, kept in this process."""
    kept = dist.HashStore()
    monkeypatch.setattr(meeting, "connect", lambda *_, **__: kept)
    monkeypatch.setattr(meeting, "ASK_AGAIN_S", 0.005)
    return kept


def test_all_ranks_are_waited_for(store: dist.Store) -> None:
    store.set("here/1", "1")
    assert meet(RankLayout(rank=0, size=2, local_size=2), 0.0) is store


def test_who_has_not_come_is_named_within_the_timeout(store: dist.Store) -> None:
    store.set("here/0", "1")
    store.set("here/2", "1")
    began = time.monotonic()
    with pytest.raises(RankFailedError) as missed:
        meet(RankLayout(rank=2, size=14, local_rank=2, local_size=14), 0.05)
    assert 0.05 <= time.monotonic() - began < 2.0
    # eight by name; the first of those that came says it, of all that know
    assert str(missed.value) == (
        "ranks 1, 3, 4, 5, 6, 7, 8, 9 and 4 more of 14 did not come within 0.05 s (--timeout_s)"
    )
    assert missed.value.speaker == 0


def test_a_rank_without_its_first_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with socket.socket() as probe:  # bound, but nobody listens
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        layout = RankLayout(
            rank=1, size=2, local_rank=1, local_size=2, master_addr="127.0.0.1", master_port=port
        )
        with pytest.raises(
            RankFailedError, match=f"rank 1 finds no rank 0 at 127.0.0.1:{port} within 0.2 s"
        ) as found:
            connect(layout, 0.2)
    assert found.value.speaker == 1
