"""The bandwidth of every pair of nodes, or of ranks of a single node, by messages there and back; then of halves of the
nodes by all-reduces, halves of halves, and so on to single nodes.

Nodes meet in rounds, as teams of a tournament, so that every node has one partner at a time; each local rank exchanges with the
same local rank of the other node, so that all NICs are at work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from profiler.benchmarks.collectives import GroupMember, all_reduce_call, message_call
from profiler.benchmarks.launched import Call, Stopwatch
from profiler.distributed.world import World
from profiler.links.slower import leave_out, slow_peers
from spec.arrays import FloatArray
from spec.files import atomic_path
from spec.units import GIGA, MIB

PAIR_BYTES = 64 * MIB
"""Of a message: on the straight end of every link's curve."""
TRIALS = 5
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTimes:
    """``seconds[a, b, slot]`` of one message from node a to node b by each local rank, NaN on the diagonal; of one node its
    ranks take the nodes' place and there is one slot. ``names`` are those of the nodes or ranks."""

    seconds: FloatArray
    names: tuple[str, ...]
    size_bytes: int

    @property
    def rates(self) -> FloatArray:
        """GB/s of each pair, of its slowest slot."""
        return np.asarray(self.size_bytes / self.seconds.max(axis=2) / GIGA, dtype=np.float64)


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Rounds in which each of ``count`` meets each other once, by the circle method; an odd one rests in its turn."""
    players: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    half = len(players) // 2
    result = []
    for _ in range(len(players) - 1):
        meetings = zip(players[:half], reversed(players[half:]), strict=True)
        result.append([(min(a, b), max(a, b)) for a, b in meetings if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return result


def measure_pairs(world: World, clock: Stopwatch, hosts: Sequence[str], size_bytes: int = PAIR_BYTES) -> PairTimes:
    """The times of all pairs, the same on every rank."""
    layout = world.layout
    by_rank = layout.nodes == 1
    count, slots = (layout.size, 1) if by_rank else (layout.nodes, layout.local_size)
    own, slot = (layout.rank, 0) if by_rank else (layout.node, layout.local_rank)
    found: list[tuple[float, ...]] = []
    for number, meetings in enumerate(rounds(count), start=1):
        world.begin(f"round {number} of {count - 1} of pairs")
        partner = next((b if own == a else a for a, b in meetings if own in (a, b)), None)
        call: Call | None = None
        if partner is not None:
            ranks = sorted((layout.rank, partner * slots + slot))
            member = GroupMember(ranks=tuple(ranks), rank=layout.rank, handle=None, where=world.device.torch_device)
            call = message_call(member, size_bytes // DTYPE.itemsize, DTYPE)
        # every rank comes to every round, those that rest too: the next begins for all at once
        seconds = median_s(world, clock, call)
        if partner is not None:
            found.append((own, partner, slot, seconds / 2))
    times = np.full((count, count, slots), np.nan)
    for a, b, at, seconds in world.gather_rows(found):
        times[int(a), int(b), int(at)] = seconds
    names = tuple(f"rank {rank}" for rank in range(count)) if by_rank else tuple(hosts[:: layout.local_size])
    return PairTimes(seconds=times, names=names, size_bytes=size_bytes)


def median_s(world: World, clock: Stopwatch, call: Call | None) -> float:
    """Median seconds of a call, after one that is not counted; NaN on a rank that rests."""
    world.slowest([0.0])
    trials = [clock.burst((call,), 1, None) for _ in range(1 + TRIALS)][1:] if call is not None else [np.nan]
    return float(np.median(trials))


def measure_halves(world: World, clock: Stopwatch, size_bytes: int = PAIR_BYTES) -> list[tuple[int, FloatArray]]:
    """(nodes of a group, seconds of an all-reduce in each group): all nodes, then halves, down to single nodes."""
    layout = world.layout
    result, nodes = [], layout.nodes
    while nodes >= 1:
        ranks = nodes * layout.local_size
        starts = range(0, layout.size - layout.size % ranks, ranks)
        groups = [tuple(range(start, start + ranks)) for start in starts]
        if ranks > 1:
            world.begin(f"all-reduces of {nodes} nodes")
            handle = world.make_groups(groups)
            own = next((group for group in groups if layout.rank in group), None)
            call = None
            if own is not None:
                member = GroupMember(ranks=own, rank=layout.rank, handle=handle, where=world.device.torch_device)
                call = all_reduce_call(member, size_bytes // DTYPE.itemsize, DTYPE)
            seconds = median_s(world, clock, call)
            rows = world.gather_rows([(layout.rank // ranks, seconds)] if own is not None else [])
            slowest = np.zeros(len(groups))
            for group, one_s in rows:
                slowest[int(group)] = max(slowest[int(group)], one_s)
            result.append((nodes, slowest))
        nodes //= 2
    return result


def pair_lines(times: PairTimes, hosts: Sequence[str]) -> list[str]:
    """Nodes that are slow by all of their NICs, NICs of other nodes, and links between NICs that are not slow themselves."""
    seconds, names = times.seconds.copy(), times.names
    lines = []
    for node in slow_peers(np.nanmedian(seconds.min(axis=2), axis=1)):
        lines.append(f"slow: {names[node.place]}: its messages take {node.text()}{leave_out(names[node.place], hosts)}")
        # what it takes part in says nothing of the others
        seconds[node.place], seconds[:, node.place] = np.nan, np.nan
    known = [node for node in range(len(names)) if np.isfinite(seconds[node]).any()]
    nics = np.nanmedian(seconds[known], axis=1)
    for nic in slow_peers(nics.ravel()) if nics.shape[1] > 1 else ():
        node, slot = known[nic.place // nics.shape[1]], nic.place % nics.shape[1]
        lines.append(f"slow: {names[node]}, the NIC of local rank {slot}: its messages take {nic.text()}")
        seconds[node, :, slot], seconds[:, node, slot] = np.nan, np.nan
    pairs = [(a, b) for a in known for b in known if a < b and np.isfinite(seconds[a, b]).any()]
    for link in slow_peers([float(np.nanmax([seconds[a, b], seconds[b, a]])) for a, b in pairs]):
        a, b = pairs[link.place]
        lines.append(f"slow: the link between {names[a]} and {names[b]}: its messages take {link.text()}")
    return lines


def half_lines(halves: Sequence[tuple[int, FloatArray]], size_bytes: int, ranks_of_node: int) -> list[str]:
    """A line for each size of groups: the bus bandwidth (nccl-tests') of its fastest and its slowest."""
    lines = []
    for nodes, seconds in halves:
        ranks = nodes * ranks_of_node
        rates = 2 * (ranks - 1) / ranks * size_bytes / seconds / GIGA
        place = int(np.argmin(rates))
        which = f"; slowest: nodes {place * nodes + 1} to {(place + 1) * nodes}" if len(rates) > 1 else ""
        lines.append(f"all_reduce in {len(rates)} x {nodes} nodes: {rates.max():.3g} to {rates.min():.3g} GB/s{which}")
    return lines


def matrix_lines(times: PairTimes) -> list[str]:
    """The rates as text, of at most MOST_COLUMNS."""
    width = max(len(name) for name in times.names)
    if len(times.names) > MOST_COLUMNS:
        return []
    head = " ".join(f"{name[-8:]:>8}" for name in times.names)
    rows = [
        f"{name:{width}} " + " ".join(f"{'-':>8}" if np.isnan(rate) else f"{rate:8.3g}" for rate in row)
        for name, row in zip(times.names, times.rates, strict=True)
    ]
    return [
        f"GB/s of a message of {times.size_bytes / MIB:g} MiB, of the slowest local rank",
        f"{'':{width}} {head}",
        *rows,
    ]


MOST_COLUMNS = 16


def draw_pairs(times: PairTimes, path: Path) -> None:
    """Draws the matrix. Raises ExportError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(np.ma.masked_invalid(times.rates), cmap="viridis", vmin=0.0, interpolation="nearest")
    figure.colorbar(image, label="GB/s")
    axes.set_title(
        f"Messages of {times.size_bytes / MIB:g} MiB between pairs, the slowest local rank of each", wrap=True
    )
    if len(times.names) <= 2 * MOST_COLUMNS:
        axes.set_xticks(range(len(times.names)), times.names, rotation=90)
        axes.set_yticks(range(len(times.names)), times.names)
    with atomic_path(path) as temporary:
        FigureCanvasAgg(figure).print_figure(temporary, dpi=130, format=path.suffix.removeprefix(".") or "png")
