"""A cluster of eight hosts on one machine: network namespaces joined by a bridge, each with an address, a name and files of
its own, links slowed by ``tc ... tbf``, and an ``ssh`` for PATH that enters them."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOSTS = tuple(f"node-{number}" for number in range(1, 9))
RATE = "400mbit"
TOOLS = ("ip", "tc", "unshare", "mount")

SSH = """#!/bin/sh
# ssh -o OPTION ... -- HOST COMMAND: into the namespace of the host, with its name, its /etc/hosts and its files
while [ "$1" != -- ]; do shift; done
host="$2" command="$3"
[ -e "{folder}/$host.gone" ] && {{ echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }}
exec ip netns exec "{prefix}$host" unshare --mount --uts sh -c '
    hostname "$1"; mount --bind "{folder}/hosts" /etc/hosts
    [ -e "{folder}/$1.mount" ] && . "{folder}/$1.mount"
    exec sh -c "$2"' sh "$host" "$command"
"""


def ran(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def why_not() -> str:
    """Why this machine cannot play a cluster; "" if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    try:
        ran("ip", "netns", "add", f"try{os.getpid()}")
        ran("ip", "netns", "del", f"try{os.getpid()}")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.strip()}"
    return ""


@dataclass
class Cluster:
    """``folder`` holds the list of hosts and what makes hosts differ."""

    folder: Path
    prefix: str

    def inside(self, host: str, *words: str) -> str:
        return ran("ip", "netns", "exec", f"{self.prefix}{host}", *words)

    @property
    def hosts(self) -> Path:
        return self.folder / "iplist"

    def slow_link(self, host: str, other: str, rate: str) -> None:
        """What a host sends to another passes a narrower bucket than the rest."""
        address = self.address(other)
        self.inside(host, "tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "htb", "default", "2")
        for band, limit in ((1, rate), (2, RATE)):
            self.inside(host, *f"tc class add dev eth0 parent 1: classid 1:{band} htb rate {limit} burst 64k".split())
        match = "tc filter add dev eth0 protocol ip parent 1: prio 1 u32 match ip dst"
        self.inside(host, *f"{match} {address}/32 flowid 1:1".split())

    def cut_off(self, host: str) -> None:
        """The host is gone: no packet comes or goes, nobody is told."""
        self.inside(host, "ip", "link", "set", "eth0", "down")

    @contextmanager
    def throttled(self, host: str) -> Iterator[None]:
        """The ranks of a host run a quarter of the time."""
        ended = threading.Event()

        def throttle() -> None:
            while not ended.wait(0.02):
                pids = ran("ip", "netns", "pids", f"{self.prefix}{host}").split()
                for signum, pause_s in ((signal.SIGSTOP, 0.06), (signal.SIGCONT, 0.0)):
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            os.kill(int(pid), signum)
                    time.sleep(pause_s)

        thread = threading.Thread(target=throttle)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def mount(self, host: str, script: str) -> None:
        """Shell commands in the host's own view of the files, before anything else runs there."""
        (self.folder / f"{host}.mount").write_text(script)

    @staticmethod
    def address(host: str) -> str:
        return f"10.77.0.{HOSTS.index(host) + 1}"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
        path = f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return kept | {"PATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def launched(self, *words: str) -> subprocess.Popen[str]:
        """``launch`` with two ranks a host on all hosts: its words before ``--`` and after."""
        command = [sys.executable, str(ROOT / "run_workload.py"), "launch", "--hosts", str(self.hosts), "--nproc", "2"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *words], cwd=self.folder, env=self.environment(), stdout=pipe, stderr=pipe, text=True
        )


@contextmanager
def played_cluster(folder: Path) -> Iterator[Cluster]:
    """Eight hosts, taken down at the end whatever happens."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    cluster = Cluster(folder=folder, prefix=f"pss{os.getpid()}-")
    cluster.hosts.write_text("".join(f"{host}\n" for host in HOSTS))
    names = "".join(f"{cluster.address(host)} {host}\n" for host in HOSTS)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (folder / "ssh").write_text(SSH.format(folder=folder, prefix=cluster.prefix))
    (folder / "ssh").chmod(0o755)
    switch = f"{cluster.prefix}switch"
    try:
        ran("ip", "netns", "add", switch)
        ran("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        ran("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(HOSTS, start=1):
            space, port = f"{cluster.prefix}{host}", f"port{number}"
            ran("ip", "netns", "add", space)
            ran("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ran("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            ran("ip", "-n", space, "address", "add", f"{cluster.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ran("ip", "-n", space, "link", "set", device, "up")
            cluster.inside(host, *f"tc qdisc add dev eth0 root tbf rate {RATE} burst 64k latency 400ms".split())
        yield cluster
    finally:
        for space in (switch, *(f"{cluster.prefix}{host}" for host in HOSTS)):
            for process in subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False).stdout.split():  # fmt: skip
                os.kill(int(process), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
