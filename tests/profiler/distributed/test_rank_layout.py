"""Ranks as torchrun and Slurm tell them."""

import pytest

from profiler.distributed.rank_layout import RankLayout, first_host, read_rank_layout, tasks_per_node
from spec.errors import ConfigError


def variables(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())


SLURM = variables(
    "SLURM_PROCID=11 SLURM_NPROCS=32 SLURM_LOCALID=3 SLURM_NNODES=4 SLURM_TASKS_PER_NODE=8(x4) "
    "SLURM_JOB_NODELIST=gpu[017-019,23],login SLURM_JOB_ID=1234567"
)
TORCHRUN = variables("RANK=11 WORLD_SIZE=32 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 MASTER_ADDR=node0 MASTER_PORT=29501")


def test_without_a_launcher_there_is_one_process() -> None:
    assert read_rank_layout({}) == RankLayout()
    # a login shell inside an allocation has Slurm's variables but one process
    assert read_rank_layout({"SLURM_PROCID": "0", "SLURM_NPROCS": "1"}) == RankLayout()


def test_torchrun_tells_everything() -> None:
    layout = read_rank_layout(TORCHRUN)
    assert (layout.rank, layout.size, layout.local_rank, layout.local_size) == (11, 32, 3, 8)
    assert (layout.nodes, layout.node) == (4, 1)
    assert (layout.master_addr, layout.master_port, layout.launcher) == ("node0", 29501, "torchrun")


def test_slurm_tells_everything() -> None:
    layout = read_rank_layout(SLURM)
    assert (layout.rank, layout.size, layout.local_rank, layout.local_size) == (11, 32, 3, 8)
    assert (layout.nodes, layout.node) == (4, 1)
    assert layout.master_addr == "gpu017"
    assert layout.master_port == 20000 + 1234567 % 10000
    assert layout.launcher == "slurm"


def test_torchrun_inside_a_slurm_job_wins() -> None:
    assert read_rank_layout({**SLURM, **TORCHRUN}).launcher == "torchrun"


@pytest.mark.parametrize(
    ("hosts", "first"), [("gpu[003-007,9],login", "gpu003"), ("a1,a2", "a1"), ("solo", "solo"), ("x-y[1,3]", "x-y1")]
)
def test_first_host_of_a_node_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize(("text", "tasks"), [("8(x4)", 8), ("2", 2), ("4,4", 4), ("4(x2),4", 4)])
def test_tasks_per_node(text: str, tasks: int) -> None:
    assert tasks_per_node(text) == tasks


@pytest.mark.parametrize(
    "environ",
    [
        {**TORCHRUN, "RANK": "eleven"},
        {**TORCHRUN, "RANK": "32", "LOCAL_RANK": "0"},
        {**TORCHRUN, "WORLD_SIZE": "0"},
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "5"},
        {**TORCHRUN, "LOCAL_RANK": "4"},
        {**SLURM, "SLURM_TASKS_PER_NODE": "8(x3),4"},
        {**SLURM, "SLURM_TASKS_PER_NODE": "many"},
        {**SLURM, "SLURM_LOCALID": "1"},  # cyclic distribution: rank 11 would be local rank 2
        {**SLURM, "SLURM_JOB_NODELIST": ""},
        {**TORCHRUN, "MASTER_PORT": "0"},
        {**SLURM, "MASTER_PORT": "65536"},
    ],
)
def test_contradictions_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        read_rank_layout(environ)
