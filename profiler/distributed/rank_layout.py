"""Rank of this process from its launcher's environment: torchrun, Slurm, or none (one process)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spec.errors import ConfigError

FIRST_SLURM_PORT = 20000
SLURM_PORTS = 10000
"""Ports for the rendezvous of a Slurm job: one by job number, outside the ephemeral range of Linux
(32768 and above) and the well-known ports."""

MOST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """The place of this process among all. Ranks of a node are consecutive; every node has ``local_size`` of them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    master_addr: str = ""
    master_port: int = 0
    launcher: str = "single"

    @property
    def nodes(self) -> int:
        """Returns the number of nodes."""
        return self.size // self.local_size

    @property
    def node(self) -> int:
        """Returns the index of this node."""
        return self.rank // self.local_size


def read_rank_layout(environ: Mapping[str, str]) -> RankLayout:
    """Returns the layout from torchrun's variables, else Slurm's, else a single process.

    Raises ConfigError for values that are no numbers or contradict each other.
    """
    # torchrun under Slurm sets both sets of variables: its own have the ranks.
    if "RANK" in environ and "WORLD_SIZE" in environ:
        layout = from_torchrun(environ)
    # A single task under srun is a single process.
    elif "SLURM_PROCID" in environ and number(environ, "SLURM_NPROCS", 1) > 1:
        layout = from_slurm(environ)
    else:
        return RankLayout()
    check(layout)
    return layout


def from_torchrun(environ: Mapping[str, str]) -> RankLayout:
    """Returns the layout from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
    size = number(environ, "WORLD_SIZE", 1)
    return RankLayout(
        rank=number(environ, "RANK", 0),
        size=size,
        local_rank=number(environ, "LOCAL_RANK", 0),
        local_size=number(environ, "LOCAL_WORLD_SIZE", size),
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=number(environ, "MASTER_PORT", 29500),
        launcher="torchrun",
    )


def from_slurm(environ: Mapping[str, str]) -> RankLayout:
    """Returns the layout from SLURM_PROCID, SLURM_NPROCS, SLURM_LOCALID, tasks per node and the first host of the
    node list."""
    size = number(environ, "SLURM_NPROCS", 1)
    nodes = number(environ, "SLURM_NNODES", 1)
    # The step's variables come first: srun may start fewer tasks or nodes than the job has.
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    local_size = tasks_per_node(per_node) if per_node else size // nodes
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    job = number(environ, "SLURM_JOB_ID", 0)
    return RankLayout(
        rank=number(environ, "SLURM_PROCID", 0),
        size=size,
        local_rank=number(environ, "SLURM_LOCALID", 0),
        local_size=local_size,
        master_addr=environ.get("MASTER_ADDR") or first_host(hosts),
        master_port=number(environ, "MASTER_PORT", FIRST_SLURM_PORT + job % SLURM_PORTS),
        launcher="slurm",
    )


def number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Returns an environment variable as a number; raises ConfigError when it is none."""
    text = environ.get(name, "")
    if text == "":
        return default
    if not re.fullmatch(r"\d{1,9}", text):
        raise ConfigError(where="environment", key=name, value=text, allowed="a whole number, 0 or more")
    return int(text)


def tasks_per_node(text: str) -> int:
    """Returns 8 for Slurm's ``8(x4)``, 8 tasks on each of 4 nodes; raises ConfigError when nodes differ
    (``8(x3),4``)."""
    # One entry per run of equal nodes; all must have the same number of tasks.
    counts = {part.split("(")[0] for part in text.split(",")}
    if len(counts) != 1 or not next(iter(counts)).isdigit():
        raise ConfigError(
            where="environment",
            key="SLURM_TASKS_PER_NODE",
            value=text,
            allowed="the same number of tasks on every node (srun --ntasks-per-node)",
        )
    return int(next(iter(counts)))


def first_host(hosts: str) -> str:
    """Returns the first name of a Slurm node list: ``gpu[003-007,9],login`` gives gpu003."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", hosts)
    if match is None:
        raise ConfigError(where="environment", key="SLURM_JOB_NODELIST", value=hosts, allowed="a Slurm node list")
    return match.group(1) + (match.group(2) or "")


def check(layout: RankLayout) -> None:
    """Raises ConfigError unless ranks are in blocks of equal nodes and the port exists."""
    if not 1 <= layout.master_port <= MOST_PORT:
        raise ConfigError(
            where="environment", key="MASTER_PORT", value=layout.master_port, allowed=f"a port from 1 to {MOST_PORT}"
        )
    if layout.size < 1 or layout.local_size < 1 or layout.size % layout.local_size:
        raise ConfigError(
            where="environment",
            key="processes",
            value=f"{layout.size} on nodes of {layout.local_size}",
            allowed="the same number of processes on every node",
        )
    if layout.rank >= layout.size or layout.rank % layout.local_size != layout.local_rank:
        raise ConfigError(
            where="environment",
            key="rank",
            value=f"rank {layout.rank} is local rank {layout.local_rank} of {layout.local_size}",
            allowed="ranks in blocks by node (torchrun does; with Slurm use srun --distribution=block)",
        )
