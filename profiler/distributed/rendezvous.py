"""Rendezvous of the ranks of a run, whose error names those that do not come, and agreement on who reports its end."""

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from profiler.distributed.rank_layout import MOST_PORT, RankLayout
from profiler.distributed.restart import restarts
from spec.errors import UserError

POLL_S = 0.05
RANKS_A_POLL = 256
"""One store answers some 10,000 requests a second: the more ranks, the less often each of them polls."""
NAMED = 8
FAILED, SPOKEN = "failed", "spoken"
"""Keys of the rank that reports why the run ends, and of the fact that it has."""


class RankFailedError(UserError):
    """A rank could not go on, so every rank stops. ``speaker`` is the rank that reports it."""

    def __init__(self, message: str, speaker: int | None = None) -> None:
        super().__init__(message)
        self.speaker = speaker


@dataclass(frozen=True, slots=True)
class LastWord:
    """Agreement over the store on who reports why a run ends: one rank claims the report, the others end once it is
    made. A launcher ends all ranks as soon as the first has ended."""

    store: dist.Store
    rank: int

    def claim(self) -> int:
        """Returns the rank that reports it: this one, unless another has claimed it."""
        # compare_set writes only if nobody has: it returns the number of the first rank in any case.
        return int(self.store.compare_set(FAILED, "", str(self.rank)))

    def withdraw(self) -> None:
        """Removes the claim: the run goes on after all."""
        self.store.delete_key(FAILED)

    @property
    def speaker(self) -> int | None:
        """Returns the rank that has claimed the report."""
        return int(self.store.get(FAILED)) if self.store.check([FAILED]) else None

    def tell_spoken(self) -> None:
        """Lets the others end."""
        self.store.set(SPOKEN, "1")

    @property
    def is_spoken(self) -> bool:
        """Returns whether the rank that claimed the report has made it."""
        return self.store.check([SPOKEN])


def meet(layout: RankLayout, timeout_s: float) -> dist.Store:
    """Returns the store of this run once all ranks have joined it; raises RankFailedError naming those that have not
    after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    # Rank 0 hosts the store unless torchrun does; the others connect to it until the timeout.
    store = connect(layout, timeout_s, hosts=layout.rank == 0)
    store.set(f"here/{layout.rank}", socket.gethostname())
    # The last rank to arrive tells all the others, which poll one key instead of one per rank.
    if store.add("arrived", 1) == layout.size:
        store.set("all here", "1")
    if not _is_there(store, "all here", deadline, layout):
        speaker = LastWord(store, layout.rank).claim()
        absent = [rank for rank in range(layout.size) if speaker == layout.rank and not store.check([f"here/{rank}"])]
        raise RankFailedError(
            f"{rank_names(absent)} of {layout.size} did not join within {timeout_s:g} s (--timeout_s)", speaker=speaker
        )
    return store


def exchange_words(store: dist.Store, layout: RankLayout, about: str, word: str, timeout_s: float) -> list[str] | None:
    """Returns every rank's ``word``, by rank, over the store alone: before there is any group. ``about`` names this
    exchange. None if a rank does not write within ``timeout_s``. Rank 0, whose process may host the store, stays
    until all have read."""
    deadline = time.monotonic() + timeout_s
    store.set(f"{about}/{layout.rank}", word)
    # Rank 0 collects the words: of n ranks each reads one key instead of n.
    if layout.rank == 0:
        if not all(_is_there(store, f"{about}/{rank}", deadline, layout) for rank in range(layout.size)):
            return None
        store.set(f"{about}/all", packed([store.get(f"{about}/{rank}").decode() for rank in range(layout.size)]))
    elif not _is_there(store, f"{about}/all", deadline, layout):
        return None
    words = unpacked(store.get(f"{about}/all").decode(), layout.size)
    store.add(f"{about}/read", 1)
    if layout.rank == 0:
        _poll(lambda: store.add(f"{about}/read", 0) == layout.size, deadline, layout)
    return words


def packed(words: Sequence[str]) -> str:
    """Returns the words as JSON: the most frequent one, and the others by rank."""
    (usual, _), *_ = Counter(words).most_common(1)
    return json.dumps([usual, {rank: word for rank, word in enumerate(words) if word != usual}])


def unpacked(text: str, size: int) -> list[str]:
    """Returns the words that were packed."""
    usual, others = json.loads(text)
    return [others.get(str(rank), usual) for rank in range(size)]


def _is_there(store: dist.Store, key: str, deadline: float, layout: RankLayout) -> bool:
    """Returns True once the key is there, False at the deadline. It polls, as a timeout of torch's wait writes a
    trace to stderr."""
    return _poll(lambda: store.check([key]), deadline, layout)


def _poll(holds: Callable[[], bool], deadline: float, layout: RankLayout) -> bool:
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S * max(1.0, layout.size / RANKS_A_POLL))
    return True


def connect(layout: RankLayout, timeout_s: float, *, hosts: bool = False, may_be_open: bool = False) -> dist.Store:
    """Returns a new connection to the store: torchrun's where it has one, else that of the rank that ``hosts`` it.

    Raises RankFailedError when nothing answers there.
    """
    torchrun_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # Each start of this program has its own port: the previous one's may still be closing.
    port = layout.master_port if torchrun_store else port_of_start(layout, restarts(os.environ))
    is_master = hosts and not torchrun_store and not (may_be_open and is_port_open(layout.master_addr, port))
    try:
        if not is_master:
            wait_for_port(layout.master_addr, port, time.monotonic() + timeout_s)
        store = dist.TCPStore(
            layout.master_addr,
            port,
            is_master=is_master,
            timeout=timedelta(seconds=timeout_s),
            # ``meet`` waits for the ranks and names those that are absent.
            wait_for_workers=False,
        )
    except (OSError, RuntimeError, ValueError) as nobody:
        reason = str(nobody).partition("\n")[0][:200]
        raise RankFailedError(
            f"rank {layout.rank} finds no rank 0 at {layout.master_addr}:{port} within {timeout_s:g} s ({reason})",
            speaker=layout.rank,
        ) from nobody
    return dist.PrefixStore(prefix(os.environ), store)


def wait_for_port(host: str, port: int, deadline: float) -> None:
    """Returns when something listens there; raises OSError at the deadline. torch's own attempts write a stack each
    to stderr."""
    while True:
        remaining_s = deadline - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(remaining_s, POLL_S)).close()
        except OSError:
            if remaining_s <= 0:
                raise
            time.sleep(POLL_S)
        else:
            return


def is_port_open(host: str, port: int) -> bool:
    """Returns whether something listens there."""
    try:
        wait_for_port(host, port, time.monotonic())
    except OSError:
        return False
    return True


def port_of_start(layout: RankLayout, start: int) -> int:
    """Returns the port of a start, one higher for each; below the first where there are no higher ones."""
    above = layout.master_port + start
    return above if above <= MOST_PORT else layout.master_port - start


def prefix(environ: Mapping[str, str]) -> str:
    """Returns the prefix of this start's keys: those of an earlier start must not be read again."""
    return f"profiler/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{restarts(environ)}"


def rank_names(ranks: Sequence[int], hosts: Sequence[str] = ()) -> str:
    """Returns ``rank 3`` or ``ranks 3, 5``; only the first few of many."""
    names = ", ".join(str(rank) for rank in ranks[:NAMED])
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    where = f" on {', '.join(hosts[:NAMED])}" if hosts else ""
    return f"rank {names}{where}" if len(ranks) == 1 else f"ranks {names}{more}{where}"
