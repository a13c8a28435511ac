"""Rendezvous of the ranks of a run, with the names of those that do not come."""

import os
import time
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist

from profiler.distributed.rank_layout import MOST_PORT, RankLayout
from profiler.distributed.restart import restarts
from spec.errors import UserError

POLL_S = 0.05
NAMED = 8


class RankFailedError(UserError):
    """A rank could not go on; every rank stops. ``speaker`` is the one that says so."""

    def __init__(self, message: str, speaker: int = 0) -> None:
        super().__init__(message)
        self.speaker = speaker


def meet(layout: RankLayout, timeout_s: float) -> dist.Store:
    """The store of this run, when all ranks have come to it; RankFailedError with those that have not after
    ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    store = connect(layout, timeout_s, hosts=layout.rank == 0)
    store.set(f"here/{layout.rank}", "1")
    absent = [rank for rank in range(layout.size) if not _is_there(store, f"here/{rank}", deadline)]
    if absent:
        here = next(rank for rank in range(layout.size) if rank not in absent)
        raise RankFailedError(
            f"{rank_names(absent)} of {layout.size} did not come within {timeout_s:g} s (--timeout_s)",
            speaker=here,
        )
    return store


def exchange_words(store: dist.Store, layout: RankLayout, about: str, word: str, timeout_s: float) -> list[str] | None:
    """Every rank's ``word``, by rank, over the store alone: before there is any group. ``about`` names this
    exchange. None where a rank says nothing within ``timeout_s``. Rank 0, which may keep the store, stays
    until all have read."""
    deadline = time.monotonic() + timeout_s
    store.set(f"{about}/{layout.rank}", word)
    if not all(_is_there(store, f"{about}/{rank}", deadline) for rank in range(layout.size)):
        return None
    words = [store.get(f"{about}/{rank}").decode() for rank in range(layout.size)]
    store.set(f"{about}/read/{layout.rank}", "1")
    if layout.rank == 0:
        all(_is_there(store, f"{about}/read/{rank}", deadline) for rank in range(layout.size))
    return words


def _is_there(store: dist.Store, key: str, deadline: float) -> bool:
    """True once the key is there, False at the deadline; polled, as a wait of torch's that runs out fills stderr."""
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def connect(layout: RankLayout, timeout_s: float, *, hosts: bool = False) -> dist.Store:
    """A connection of its own to the store: torchrun's where it keeps one, else that of the rank that ``hosts`` it.

    Raises RankFailedError when nobody answers there.
    """
    torchrun_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # a port of its own for each start of this program: the one before may still be closing
    port = layout.master_port if torchrun_store else port_of_start(layout, restarts(os.environ))
    try:
        store = dist.TCPStore(
            layout.master_addr,
            port,
            is_master=hosts and not torchrun_store,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as nobody:
        reason = str(nobody).partition("\n")[0][:200]
        raise RankFailedError(
            f"rank {layout.rank} finds no rank 0 at {layout.master_addr}:{port} within {timeout_s:g} s ({reason})",
            speaker=layout.rank,
        ) from nobody
    return dist.PrefixStore(prefix(os.environ), store)


def port_of_start(layout: RankLayout, start: int) -> int:
    """One port further for each start; back below the first where there are no more."""
    above = layout.master_port + start
    return above if above <= MOST_PORT else layout.master_port - start


def prefix(environ: Mapping[str, str]) -> str:
    """The run's own part of the store: what an earlier start left in it must not be met again."""
    return f"profiler/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{restarts(environ)}"


def rank_names(ranks: list[int]) -> str:
    """``rank 3``, ``ranks 3, 5``; the first few of many."""
    names = ", ".join(str(rank) for rank in ranks[:NAMED])
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}{more}"
