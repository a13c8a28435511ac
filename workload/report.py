"""Lines that run_workload.py prints: findings, parts of a step, topologies, groups and flows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from spec.units import GIGA, MIB, seconds_to_ms
from workload.diagnostics import Finding, summary_of
from workload.topology.hardware_spec import TopologyShape
from workload.topology.topology import Topology
from workload.traffic.flows import RankFlows

MOST_GROUPS = 8
CLOSED_FORM = "SimAI closed form"


def print_lines(lines: Iterable[str]) -> int:
    """Prints the lines; returns 0, the exit status of a verb that answers."""
    for line in lines:
        print(line)
    return 0


def finding_lines(findings: Sequence[Finding], *, everything: bool = False) -> list[str]:
    """Returns the findings, three of a kind or all, and their number by severity."""
    lines = summary_of(findings, per_kind=len(findings) if everything else 3)
    counts = Counter(each.severity.value for each in findings)
    total = ", ".join(f"{count} {severity}" for severity, count in sorted(counts.items()))
    return [*lines, total or "no findings"]


def part_lines(title: str, parts: Mapping[str, float]) -> Iterator[str]:
    """Yields the parts of a step (seconds), which sum to it, in ms and as shares."""
    total_s = sum(parts.values())
    yield f"{title:<20}{'ms':>14}{'share':>9}"
    for name, part_s in {**parts, "step": total_s}.items():
        share = part_s / total_s if total_s else 0.0
        yield f"{name:<20}{seconds_to_ms(part_s):>14.3f}{share:>9.1%}"


def topology_line(topology: Topology) -> str:
    """Returns line 1 of a topology file in words."""
    nodes, nv_switches, others, links = topology.counts
    return (
        f"{topology.num_gpus} {topology.gpu_type} in servers of {topology.gpus_per_server}; {nodes} nodes, "
        f"{nv_switches} NV switches, {others} other switches, {links} links"
    )


def shape_line(shape: TopologyShape) -> str:
    """Returns the bandwidth of one GPU in one direction, by network domain."""
    words = [f"{shape.scale_up / GIGA:g} GB/s among {shape.scale_up_ranks} GPUs"]
    if shape.server > shape.scale_up:
        words.insert(0, f"{shape.server / GIGA:g} GB/s inside a rack")
    if shape.scale_out:
        words.append(f"{shape.scale_out / GIGA:g} GB/s beyond")
    return f"one GPU, one way: {', '.join(words)}"


def group_lines(kind: str, groups: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yields number, size and members of a kind's groups, the first MOST_GROUPS of them."""
    members = " ".join(_ranks(group) for group in groups[:MOST_GROUPS])
    more = f" and {len(groups) - MOST_GROUPS} more" if len(groups) > MOST_GROUPS else ""
    yield f"{kind}: {len(groups)} groups of {len(groups[0])}: {members}{more}"


def flow_lines(flows: RankFlows) -> Iterator[str]:
    """Yields the number of flows, their bytes, and the largest of them."""
    total = float(flows.size_bytes.sum())
    largest = float(flows.size_bytes.max(initial=0.0))
    stages = int(flows.stage.max(initial=-1)) + 1
    yield f"{flows.src.size} flows in {stages} stages, {total:.0f} bytes in all ({total / MIB:.3f} MiB)"
    yield f"largest flow: {largest:.0f} bytes"


def _ranks(group: Sequence[int]) -> str:
    ranks = ",".join(str(rank) for rank in group[:16])
    return f"[{ranks}{',...' if len(group) > 16 else ''}]"
