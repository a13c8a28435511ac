"""A run over the links of a cluster: nccl-tests' tables, the matrix of pairs, halves, and who is slower than its peers."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from profiler.benchmarks.launched import OUT_OF_MEMORY
from profiler.device import choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.termination import install_abort_hook
from profiler.distributed.world import World, open_world
from profiler.links.nccl_table import TableRequest, tables
from profiler.links.pairs import (
    PAIR_BYTES,
    PairTimes,
    draw_pairs,
    half_lines,
    matrix_lines,
    measure_halves,
    measure_pairs,
    pair_lines,
)
from profiler.links.slower import PeerTimes, slow_rank_lines
from profiler.timing import stopwatch_for
from spec.errors import ConfigError

PROBE_SIDE = {"cuda": 8192, "cpu": 256}
PROBES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksOptions:
    """Options of ``links``; ``table`` None leaves nccl-tests' tables out, ``picture`` is where the matrix is drawn."""

    device: str = "auto"
    timeout_s: float = 120.0
    table: TableRequest | None = field(default_factory=TableRequest)
    pair_bytes: int = PAIR_BYTES
    picture: Path | None = None
    say: Callable[[str], object] = print


def run_links(options: LinksOptions, layout: RankLayout) -> list[str]:
    """The findings, on rank 0, after printing tables and matrix. Raises ConfigError for a single rank."""
    if layout.size == 1:
        raise ConfigError(where="links", key="processes", value=1, allowed="two and more (launch --nproc 8 -- links)")
    device = choose_device(options.device, layout)
    world = open_world(layout, device, timeout_s=options.timeout_s)
    install_abort_hook(world)
    try:
        pairs, findings = measure_links(world, options)
    except OUT_OF_MEMORY:
        raise
    except RuntimeError as broken:
        # torch's word of a socket says less than who is gone.
        raise world.failure(str(broken)) from broken
    world.close()
    if not world.leads:
        return []
    if options.picture is not None:
        draw_pairs(pairs, options.picture)
        findings.append(f"wrote {options.picture}")
    return findings or ["no rank, node or link is slower than its peers"]


def measure_links(world: World, options: LinksOptions) -> tuple[PairTimes, list[str]]:
    """Returns the times of all pairs and the findings, after printing tables, matrix and halves."""
    clock = stopwatch_for(world.device, collective=True)
    hosts = world.gather(socket.gethostname())
    for line in tables(options.table, world, clock, hosts) if options.table is not None else ():
        _say(options, world, line)
    findings = slow_rank_lines(probe_ranks(world), hosts)
    pairs = measure_pairs(world, clock, hosts, options.pair_bytes)
    for line in matrix_lines(pairs):
        _say(options, world, line)
    findings += pair_lines(pairs, hosts)
    if world.layout.nodes > 1:
        halves = measure_halves(world, clock, options.pair_bytes)
        for line in half_lines(halves, options.pair_bytes, world.layout.local_size):
            _say(options, world, line)
    return pairs, findings


def _say(options: LinksOptions, world: World, line: str) -> None:
    if world.leads:
        options.say(line)


def probe_ranks(world: World) -> PeerTimes:
    """Seconds of the same product on every rank: all at once on GPUs, one after another on processors, which they share."""
    side = PROBE_SIDE[world.device.kind]
    left, right = (torch.randn(side, side, device=world.device.torch_device).bfloat16() for _ in ("left", "right"))
    clock, own = stopwatch_for(world.device, collective=True), 0.0
    for turn in range(world.size if world.device.kind == "cpu" else 1):
        world.begin("products")
        if world.device.kind != "cpu" or turn == world.rank:
            trials = [clock.burst((lambda: torch.mm(left, right),), 10, None) for _ in range(1 + PROBES)]
            own = float(np.median(trials[1:]))
        world.slowest([0.0])
    seconds = np.zeros(world.size)
    for rank, one_s in world.gather_rows([(world.rank, own)]):
        seconds[int(rank)] = one_s
    times = PeerTimes()
    times.add("products", seconds)
    return times
