"""A launch on all of its hosts at once: what they print, which of them fails and why, and the end of the others."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from runner.launch.command import LOCAL, Launch
from spec.program.command import print_error

SETTLE_S = 3.0
"""After the first failure, how long the hosts have to say why in words of their own."""
GRACE_S = 15.0
"""After the first failure, how long the other hosts have to end by themselves; then they are ended."""
STOP_S = 45.0
"""Longest that a host may take to end when it is told to: torchrun gives its ranks 30 s."""
LAST_WORDS_S = 2.0
"""Longest wait for what a host still prints when it has ended: a process that it left behind may keep its output open."""
OWN_STATUSES = {255: "ssh ended with status 255", 127: "status 127", 126: "status 126", 3: "no such folder"}
"""Statuses that are a host's own trouble: no connection, no program, no folder. The ranks cannot know of it."""
WORDS = ("error: ", "note: ")


@dataclass(slots=True, kw_only=True)
class HostRun:
    """One host of a launch: its process here (ssh, or torchrun itself), what it said, and its status when it has ended."""

    host: str
    process: subprocess.Popen[bytes]
    words: list[str] = field(default_factory=list)
    """Its lines of WORDS."""
    last_line: str = ""
    status: int | None = None

    @property
    def failed(self) -> bool:
        """True if it has ended in an error."""
        return bool(self.status)

    def reason(self) -> str:
        """One line on its failure."""
        status = OWN_STATUSES.get(self.status or 0, f"ended with status {self.status}")
        return f"error: {self.host or 'torchrun'}: {status}{f': {self.last_line}' if self.last_line else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """The status of a launch, 0 if all of its hosts ended well, and its error lines."""

    status: int
    errors: tuple[str, ...] = ()


def run_on_hosts(launch: Launch) -> LaunchResult:
    """Runs a launch; prints what its first host prints and the errors of the others, each under its name."""
    runs = [_start(launch, node) for node in range(len(launch.hosts))]
    ended: queue.Queue[HostRun] = queue.Queue()
    for node, run in enumerate(runs):
        threading.Thread(target=_follow, args=(run, node == 0, ended), daemon=True).start()
    supervisor = Supervisor(runs)
    try:
        while any(run.status is None for run in runs):
            try:
                run = ended.get(timeout=0.2)
                run.status = run.process.returncode
                supervisor.note(run)
            except queue.Empty:
                pass
            supervisor.tick()
    except KeyboardInterrupt:
        _stop(runs)
        raise
    supervisor.explain()
    return LaunchResult(status=supervisor.status, errors=tuple(supervisor.errors))


def _start(launch: Launch, node: int) -> HostRun:
    host = launch.hosts[node]
    words = ["sh", "-c", launch.script(node)] if host == LOCAL else launch.ssh(node)
    pipe = subprocess.PIPE
    # In a session of its own: Ctrl-C reaches the hosts through their input, which ends them in order.
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    return HostRun(host=host, process=process)


def _follow(run: HostRun, is_first: bool, ended: "queue.Queue[HostRun]") -> None:
    """Copy what a host prints until it ends."""
    assert run.process.stdout is not None
    assert run.process.stderr is not None
    copies = [
        threading.Thread(target=_copy, args=(run.process.stdout, sys.stdout, run, is_first), daemon=True),
        threading.Thread(
            target=_copy, args=(run.process.stderr, sys.stderr, run, is_first), kwargs={"notes": True}, daemon=True
        ),
    ]
    for copy in copies:
        copy.start()
    run.process.wait()
    for copy in copies:
        copy.join(LAST_WORDS_S)
    ended.put(run)


def _copy(source: IO[bytes], target: IO[str], run: HostRun, is_first: bool, *, notes: bool = False) -> None:
    """Pass on what the first host prints as it comes, of the others whole lines under their name: all of stdout, of
    stderr (``notes``) those that are meant for a reader, as torchrun adds a page to each failure."""
    rest = b""
    while chunk := os.read(source.fileno(), 1 << 16):
        if is_first:
            target.write(chunk.decode(errors="replace"))
            target.flush()
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            _take(line.decode(errors="replace").rstrip(), target, run, is_first, notes=notes)
    _take(rest.decode(errors="replace").rstrip(), target, run, is_first, notes=notes)


def _take(line: str, target: IO[str], run: HostRun, is_first: bool, *, notes: bool) -> None:
    said = line.startswith(WORDS)
    if notes and line.strip("= -"):
        run.last_line = line.strip()
    if notes and said:
        run.words.append(line)
    if line and not is_first and (said or not notes):
        print(f"{run.host}: {line}", file=target, flush=True)


class Supervisor:
    """Says which hosts failed, and ends the others of a launch when one has failed."""

    def __init__(self, runs: Sequence[HostRun], now: Callable[[], float] = time.monotonic) -> None:
        self.runs = runs
        self.now = now
        self.status = 0
        self.errors: list[str] = []
        self._failed_at: float | None = None
        self._explained: set[str] = set()
        self._stopped = False

    def note(self, run: HostRun) -> None:
        """A host has ended."""
        if not run.failed:
            return
        if self._failed_at is None:
            self._failed_at, self.status = self.now(), run.status or 0
        if run.status in OWN_STATUSES and not run.words and not self._stopped:
            self._explain(run)

    def tick(self) -> None:
        """Explain failures that no rank has explained, and end the hosts that are left."""
        if self._failed_at is None:
            return
        if self.now() - self._failed_at > SETTLE_S:
            self.explain()
        if self.now() - self._failed_at > GRACE_S and not self._stopped:
            self._stopped = True
            threading.Thread(target=_stop, args=(self.runs,), daemon=True).start()

    def explain(self) -> None:
        """Say why hosts failed, unless some rank has said why the launch did."""
        self.errors = [line for run in self.runs for line in run.words if line.startswith("error: ")]
        self.errors += sorted(self._explained)
        if not self.errors:
            for run in self.runs:
                if run.failed:
                    self._explain(run)

    def _explain(self, run: HostRun) -> None:
        self._explained.add(run.reason())
        self.errors.append(run.reason())
        print_error(run.reason())


def _stop(runs: Sequence[HostRun]) -> None:
    """Close the hosts' input, at which they end their ranks; kill what does not end."""
    for run in runs:
        if run.process.stdin is not None:
            run.process.stdin.close()
    deadline = time.monotonic() + STOP_S
    for run in runs:
        try:
            run.process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            run.process.kill()
