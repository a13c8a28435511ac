"""Eight hosts with two ranks each: what is wrong with one of them is said in one line, within a minute."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import run_workload
from runner.logs.log import Log
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


def test_a_throttled_host_is_told_from_its_links(cluster: Cluster) -> None:
    process = cluster.launched(*LINKS, "--no_table", "--pair_bytes", "64KiB")
    with cluster.throttled("node-6"):
        lines = ended(process, 0)
    named = [line for line in lines if line.startswith("slow: ")]
    assert [line for line in named if "products" in line and "node-6" in line], lines
    assert not [line for line in named if "products" in line and "node-6" not in line], lines


def test_a_disk_that_fills_during_a_run_is_named_and_the_log_kept(cluster: Cluster) -> None:
    workload = cluster.folder / "tiny_workload.csv"
    shape = "--num_layers 2 --hidden_size 32 --num_attention_heads 4 --seq_length 16 --vocab_size 64 --world_size 16"
    shape += " --tensor_model_parallel_size 2 --global_batch 8 --computation_enable --format general"
    assert run_workload.main(["generate", *shape.split(), "--output", str(workload)]) == 0
    # written by node-1 alone, where a rank starts a log
    (cluster.folder / "results").mkdir()
    kept = cluster.folder / "kept"
    cluster.mount(
        "node-1",
        f"mount -t tmpfs -o size=128k none {cluster.folder}/results; trap 'cp -r {cluster.folder}/results {kept}' EXIT\n"
        'sh -c "$2"; exit $?',
    )
    run = ("run", str(workload), "--device", "cpu", "--compute", "skip", "--epoch_num", "100000", "--quiet")
    lines = ended(cluster.launched("--no_preflight", "--", *run), 1)
    # by the rank whose disk is full, or by the first that hears of it, on a line that begins with its host's name
    (named,) = [line for line in lines if "error: " in line]
    assert "No space left on device" in named
    assert "tiny_log.csv" in named
    log = Log.load(kept / "comm_logs" / "tiny_log.csv")
    assert len(log.epoch_times) > 2


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
