"""What a profile lacks, in words, and the command that would measure it."""

from profdb.cases import Family
from profdb.sample import MachineFacts

BENCHMARK_OF: dict[Family, str] = {
    Family.GEMM: "linear",
    Family.GROUPED_GEMM: "grouped_gemm",
    Family.ATTENTION: "attention",
    Family.MEMORY_BOUND: "memory_bound",
    Family.OPTIMIZER: "optimizer",
    Family.HOST: "host",
}
"""Names that gen_profiler_data.py --only takes; collectives go by their own."""


def curve_name(family: Family, labels: dict[str, str], *, across: bool = False) -> str:
    """The curve in words: family with its words and flags, or a collective with its reach."""
    if family is Family.COLLECTIVE:
        return f"{labels['collective']} {'across domains' if across else 'inside a domain'}"
    said = ", ".join(f"{name} {word}" for name, word in labels.items() if word not in ("", "0"))
    return f"{family.value} ({said})"


def measuring_command(
    family: Family, labels: dict[str, str], machine: MachineFacts, *, across: bool = False
) -> str:
    """A torchrun line; collectives need every GPU of a node, and a second node for what goes ``across``
    scale-up domains."""
    benchmark = BENCHMARK_OF.get(family) or labels["collective"]
    ranks = max(machine.gpus_per_node, 1 if across else 2) if family is Family.COLLECTIVE else 1
    nodes = "--nnodes=2 " if across else ""
    return f"torchrun {nodes}--nproc-per-node={ranks} gen_profiler_data.py --only {benchmark}"
