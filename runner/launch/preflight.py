"""A look at all hosts before a launch: releases, GPUs, links, memory, disk and clocks in one table, and what is wrong."""

import json
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from runner.launch import host_facts
from runner.launch.command import LOCAL, Launch, ssh_words
from solver.report.terminal import table
from spec.program.command import print_error
from spec.units import GIB

ANSWER_S = 90.0
"""Longest that a host may take to say how it is; importing torch from a network file system takes most of it."""
CLOCK_READINGS = 5
MOST_SKEW_S = 0.5
"""Times of hosts further apart than this make logs hard to read together, and certificates and leases fail."""
LEAST_DISK_BYTES = 2 * GIB
"""A profile with its journal and pictures, or the logs of a long run."""
LEAST_FREE_SHARE = 0.9
"""Of a GPU's memory: less, and somebody else uses it."""
LEAST_CLOCK_SHARE = 0.9
"""Of the highest clock that any host's GPUs may reach: below it, clocks are locked or the part is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """``facts`` of a host (host_facts), the seconds that its clock is ahead of ours, or the ``problem`` of reaching it."""

    host: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    ahead_s: float = 0.0
    problem: str = ""


def look_at_hosts(launch: Launch) -> list[HostState]:
    """The state of every host, all asked at once."""
    with ThreadPoolExecutor(len(launch.hosts)) as threads:
        return list(threads.map(lambda host: _look_at(host, launch), launch.hosts))


def _look_at(host: str, launch: Launch) -> HostState:
    """The state of one host."""
    program = Path(launch.project) / "runner" / "launch" / Path(host_facts.__file__).name
    script = f"{launch.exports()}exec {shlex.join([launch.python, str(program), str(launch.folder)])}"
    words = ["sh", "-c", script] if host == LOCAL else ssh_words(host, script)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        killer = threading.Timer(ANSWER_S, process.kill)
        killer.start()
        try:
            facts = json.loads(process.stdout.readline())
            readings = [_clock(process.stdin, process.stdout) for _ in range(CLOCK_READINGS)]
        except (ValueError, OSError):
            killer.cancel()
            process.kill()
            lines = [line.strip() for line in process.communicate()[1].splitlines() if line.strip()]
            reason = lines[-1] if lines else f"no answer within {ANSWER_S:.0f} s"
            return HostState(host=host, problem=f"cannot be used: {reason}")
        killer.cancel()
    return HostState(host=host, facts=facts, ahead_s=min(readings)[1])


def _clock(asks: IO[str], answers: IO[str]) -> tuple[float, float]:
    """Seconds of a question and its answer, and how far the host's clock was ahead of ours half way between."""
    before = time.time()
    asks.write("time\n")
    asks.flush()
    remote = float(answers.readline())
    after = time.time()
    return after - before, remote - (before + after) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinding:
    """What is wrong with a host; ``fatal`` if a launch cannot do without it."""

    host: str
    text: str
    fatal: bool = False

    def line(self) -> str:
        """One line on it."""
        return f"{'error' if self.fatal else 'note'}: {self.host or 'this host'}: {self.text}"


COLUMNS: Mapping[str, Callable[[HostState], str]] = {
    "python": lambda one: one.facts["python"],
    "torch": lambda one: one.facts.get("torch", "absent"),
    "NCCL": lambda one: one.facts.get("nccl", ""),
    "driver": lambda one: _common(one, "driver"),
    "GPUs": lambda one: f"{len(one.facts['gpus'])} x {_common(one, 'gpu')}" if one.facts["gpus"] else "",
    "free GiB": lambda one: f"{min(_gpu_numbers(one, 'free_mib'), default=0) / 1024:.1f}" if one.facts["gpus"] else "",
    "MHz": lambda one: f"{min(_gpu_numbers(one, 'sm_mhz')):.0f}" if _gpu_numbers(one, "sm_mhz") else "",
    "ECC": lambda one: f"{sum(_gpu_numbers(one, 'ecc')):.0f}" if _gpu_numbers(one, "ecc") else "",
    "Xid": lambda one: str(len(one.facts["xid"])) if one.facts["gpus"] else "",
    "NVLink": lambda one: _up_of(one.facts["nvlink"]["up"], one.facts["nvlink"]["down"]),
    "InfiniBand": lambda one: _up_of(*_ports(one)),
    "cores": lambda one: str(one.facts["cores"]),
    "memory GiB": lambda one: f"{one.facts.get('memory_free_bytes', 0) / GIB:.1f}",
    "disk GiB": lambda one: f"{one.facts.get('disk_free_bytes', 0) / GIB:.1f}",
    "clock ms": lambda one: f"{1e3 * one.ahead_s:+.0f}",
}


def preflight_table(states: Sequence[HostState]) -> str:
    """One line a host; columns that no host has anything for are left out. Free memory and clocks are of the GPU with the
    least, ``clock ms`` is how far a host's clock is ahead of this one's."""
    known = [one for one in states if not one.problem]
    columns = {name: cell for name, cell in COLUMNS.items() if any(cell(one) for one in known)}
    rows = [[one.host or "this host", *(cell(one) for cell in columns.values())] for one in known]
    return table(rows, ["host", *columns]) if rows else ""


def findings(states: Sequence[HostState], nproc: int) -> list[HostFinding]:
    """What is wrong with single hosts, and in what they differ from most."""
    result = [HostFinding(host=one.host, text=one.problem, fatal=True) for one in states if one.problem]
    known = [one for one in states if not one.problem]
    for one in known:
        result += [HostFinding(host=one.host, text=text, fatal=True) for text in _obstacles(one, nproc)]
        result += [HostFinding(host=one.host, text=text) for text in _faults(one, known)]
    for name in ("python", "torch", "NCCL", "driver", "GPUs", "cores"):
        result += _different(known, name, COLUMNS[name])
    result += _different(known, "packages", lambda one: ", ".join(f"{k} {v}" for k, v in one.facts["packages"].items()))
    return result


def _obstacles(one: HostState, nproc: int) -> Iterator[str]:
    """Why a host cannot take part."""
    if "torch_problem" in one.facts:
        yield f"torch cannot be imported: {one.facts['torch_problem']}"
    if one.facts["gpus"] and len(one.facts["gpus"]) < nproc:
        yield f"{len(one.facts['gpus'])} GPUs for {nproc} ranks"
    if one.facts.get("disk_free_bytes", 0) < LEAST_DISK_BYTES:
        yield f"{one.facts.get('disk_free_bytes', 0) / GIB:.2f} GiB of disk left where results go"
    if not one.facts["writable"]:
        yield "the folder of results cannot be written"


def _faults(one: HostState, known: Sequence[HostState]) -> Iterator[str]:
    """What will make a host slow, or an error likely."""
    shares = [free / total for free, total in zip(*(_gpu_numbers(one, key) for key in MEMORY), strict=True)]
    if shares and min(shares) < LEAST_FREE_SHARE:
        yield f"GPU {shares.index(min(shares))} has {100 * min(shares):.0f} % of its memory free: somebody else uses it"
    if errors := sum(_gpu_numbers(one, "ecc")):
        yield f"{errors:.0f} uncorrected ECC errors: nvidia-smi -q -d ECC"
    if one.facts["xid"]:
        yield f"Xid {one.facts['xid'][-1]} in the kernel's log"
    if down := one.facts["nvlink"]["down"]:
        yield f"{down} NVLinks are down"
    if dead := [name for name, state in one.facts["infiniband"].items() if not state.startswith("ACTIVE")]:
        yield f"InfiniBand {', '.join(dead)} not active"
    best = max((mhz for other in known for mhz in _gpu_numbers(other, "most_sm_mhz")), default=0.0)
    if (most := _gpu_numbers(one, "most_sm_mhz")) and min(most) < LEAST_CLOCK_SHARE * best:
        yield f"clocks end at {min(most):.0f} MHz, elsewhere at {best:.0f}"
    middle = float(np.median([other.ahead_s for other in known]))
    if abs(one.ahead_s - middle) > MOST_SKEW_S:
        yield f"its clock is {abs(one.ahead_s - middle):.1f} s {'ahead of' if one.ahead_s > middle else 'behind'} the others'"


MEMORY = ("free_mib", "total_mib")


def _different(known: Sequence[HostState], name: str, cell: Callable[[HostState], str]) -> Iterator[HostFinding]:
    """The hosts whose value is not that of most."""
    counts = Counter(cell(one) for one in known)
    if len(counts) > 1:
        (usual, count), *_ = counts.most_common(1)
        for one in known:
            if cell(one) != usual:
                text = f"{name} {cell(one) or 'absent'}, on {count} others {usual or 'absent'}"
                yield HostFinding(host=one.host, text=text)


def _common(one: HostState, key: str) -> str:
    """What all GPUs of a host share, else each different value."""
    return "/".join(dict.fromkeys(gpu[key] for gpu in one.facts["gpus"]))


def _gpu_numbers(one: HostState, key: str) -> list[float]:
    """A number of each GPU, where nvidia-smi reports one."""
    return [float(gpu[key]) for gpu in one.facts["gpus"] if gpu[key].replace(".", "", 1).isdigit()]


def _ports(one: HostState) -> tuple[int, int]:
    """InfiniBand ports that are active, and that are not."""
    active = sum(state.startswith("ACTIVE") for state in one.facts["infiniband"].values())
    return active, len(one.facts["infiniband"]) - active


def _up_of(up: int, down: int) -> str:
    return f"{up}/{up + down}" if up + down else ""


def preflight(launch: Launch) -> bool:
    """Prints the table and the findings of all hosts; True if a launch can start."""
    states = look_at_hosts(launch)
    if text := preflight_table(states):
        print(text, flush=True)
    found = findings(states, launch.nproc)
    for one in found:
        print_error(one.line())
    fatal = list(dict.fromkeys(one.host for one in found if one.fatal))
    if fatal and set(fatal) < set(launch.hosts):
        print_error(f"note: without {'it' if len(fatal) == 1 else 'them'}: --exclude {','.join(fatal)}")
    return not fatal
