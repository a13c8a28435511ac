"""Eight hosts with two ranks each: what is wrong with one of them is said in one line, within a minute."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runner.launch.played_cluster import Cluster, played_cluster

LINKS = ("--no_preflight", "--", "links", "--device", "cpu", "--timeout_s", "60")
pytestmark = [pytest.mark.nightly, pytest.mark.distributed]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with played_cluster(tmp_path) as cluster:
        yield cluster


def ended(process: subprocess.Popen[str], status: int) -> list[str]:
    """Lines on both outputs of a launch that ended with ``status``."""
    out, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    return [*out.splitlines(), *errors.splitlines()]


def test_hosts_that_cannot_run_are_named_before_the_start(cluster: Cluster) -> None:
    """One that is gone, one without the package, one with a full disk."""
    (cluster.folder / "node-3.gone").touch()
    cluster.mount("node-5", f"mount -t tmpfs none {Path(torch.__file__).parent}")
    cluster.mount("node-7", f"mount -t tmpfs -o size=1m none {cluster.folder}")
    started_s = time.monotonic()
    lines = ended(cluster.launched("--", "links", "--device", "cpu"), 2)
    assert time.monotonic() - started_s < 60.0
    assert [line.partition(": ")[2][:34] for line in lines if line.startswith("error: ")] == [
        "node-3: cannot be used: ssh: conne",
        "node-5: torch cannot be imported: ",
        "node-7: 0.00 GiB of disk left wher",
    ]
    assert "note: without them: --exclude node-3,node-5,node-7" in lines


def test_a_slow_link_is_told_from_its_nodes(cluster: Cluster) -> None:
    """A quarter of the others' rate in both directions."""
    for pair in (("node-2", "node-5"), ("node-5", "node-2")):
        cluster.slow_link(*pair, "100mbit")
    lines = ended(cluster.launched(*LINKS, "--no_table", "--pair_bytes", "1MiB"), 0)
    (named,) = [line for line in lines if line.startswith("slow: ") and "products" not in line]
    assert named.startswith("slow: the link between node-2 and node-5: its messages take ")


def test_a_host_that_is_cut_off_is_named_within_a_minute(cluster: Cluster) -> None:
    process = cluster.launched(*LINKS, "--iters", "100000")
    assert process.stdout is not None
    while "Collective test starting" not in process.stdout.readline():
        assert process.poll() is None
    cluster.cut_off("node-4")
    cut_s = time.monotonic()
    lines = ended(process, 1)  # as torchrun ends
    assert time.monotonic() - cut_s < 100.0
    (named,) = [line for line in lines if line.startswith("error: ")]
    assert named.startswith("error: ranks 6, 7 on node-4 exited or stopped in all_reduce_perf")
    assert not any("RuntimeError" in line for line in lines)
