"""Sweeps of a collective: sizes, groups, and a header that SimAI reads whole."""

from pathlib import Path

import pytest

import run_workload
from workload.aicb.csv_workload import Workload
from workload.aicb.flags import COLLECTIVES
from workload.simai.check import check_simai
from workload.simai.reader import read_simai, usable_workload

SWEEP = "--world_size 16 --begin_size 1024 --end_size 8192"


def run(words: str, path: Path) -> int:
    return run_workload.main(["generate", *f"{words} --output {path}".split()])


@pytest.mark.parametrize("kind", sorted(COLLECTIVES))
def test_both_formats(kind: str, tmp_path: Path) -> None:
    ranks = 4 if kind.startswith("multi") else 16
    words = f"--test_comm {kind} {SWEEP} --tp_num {ranks}"
    assert run(words, tmp_path / "w.txt") == 0
    file = read_simai(tmp_path / "w.txt")
    assert check_simai(file) == []
    made = usable_workload(file)
    assert (made.header.tp, made.header.all_gpus, made.header.ga, made.header.vpp) == (ranks, 16, 1, 1)
    assert [row.forward_bytes for row in made.rows] == [1024, 2048, 4096, 8192]
    assert run(f"{words} --format general --epoch_num 2", tmp_path / "w.csv") == 0
    items = [item for item in Workload.load(tmp_path / "w.csv")[0].items if item.comm_group]
    assert [item.msg_size for item in items] == [1024, 2048, 4096, 8192] * 2
    assert {item.comm_group_size for item in items} == {ranks}


def test_a_sweep_may_end_between_two_sizes(tmp_path: Path) -> None:
    assert run("--test_comm all_reduce --world_size 8 --begin_size 3 --end_size 7", tmp_path / "w.txt") == 0
    assert [row.row.forward_bytes for row in read_simai(tmp_path / "w.txt").rows] == [3, 6]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--test_comm gossip --world_size 8", "gossip"),
        ("--test_comm all_reduce", "world_size"),
        ("--test_comm all_reduce --world_size 1", "2 or more"),
        ("--test_comm all_reduce --world_size 8 --tp_num 3", "dividing"),
        ("--test_comm multi_all_reduce --world_size 8", "several groups"),
        ("--test_comm all_reduce --world_size 8 --begin_size 0", "begin_size"),
        ("--test_comm all_reduce --world_size 8 --begin_size 9 --end_size 8", "end_size"),
        ("--test_comm all_reduce --world_size 8 --iter_num 0", "iter_num"),
        ("--test_comm all_reduce --world_size 8 --pp 2", "1 in a test"),
        ("--frame collective_test --world_size 8 --tp 3", "a divisor of the world"),
        ("--frame collective_test --world_size 8 --multi_all_reduce_enable 1", "2 or more"),
    ],
)
def test_bad_sweeps(words: str, match: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words, tmp_path / "w.txt") == 2
    complaint = capsys.readouterr().err
    assert match in complaint
    assert complaint.count("\n") == 1


def test_a_collective_test_as_aicb_runs_it(tmp_path: Path) -> None:
    """Its frame: over the data-parallel group, 500 repetitions of a size; several groups at once over the
    pipeline's, one rank of each node."""
    flags = "--frame collective_test --world_size 16 --begin_size 1024 --end_size 2048 --iter_num 3"
    assert run(f"{flags} --format general", tmp_path / "w.csv") == 0
    items = [item for item in Workload.load(tmp_path / "w.csv")[0].items if item.comm_group]
    assert [item.msg_size for item in items] == [1024] * 3 + [2048] * 3
    assert {(item.comm_type, item.comm_group, item.comm_group_size) for item in items} == {
        ("all_reduce", "dp_group", 16)
    }
    multi = f"{flags} --test_comm allgather --multi_all_reduce_enable 1 --pipeline_model_parallel 2"
    assert run(f"{multi} --format general", tmp_path / "w.csv") == 0
    items = [item for item in Workload.load(tmp_path / "w.csv")[0].items if item.comm_group]
    assert {(item.comm_type, item.comm_group, item.comm_group_size) for item in items} == {
        ("all_gather", "pp_group", 2)
    }


@pytest.mark.parametrize(
    ("flags", "tp", "ranks"),
    [
        ("--multi_all_reduce_enable 1 --pipeline_model_parallel 2", 8, 2),
        ("--tensor_model_parallel_size 4", 4, 4),
    ],
)
def test_ranks_apart_are_simais_data_parallel_group(flags: str, tp: int, ranks: int, tmp_path: Path) -> None:
    words = f"--frame collective_test --world_size 16 --begin_size 1048576 {flags}"
    assert run(words, tmp_path / "w.txt") == 0
    file = read_simai(tmp_path / "w.txt")
    assert check_simai(file) == []
    workload = usable_workload(file)
    assert (workload.header.tp, workload.header.dp) == (tp, ranks)
    (row,) = workload.rows
    assert (row.weight_grad_comm, row.weight_grad_bytes, row.forward_comm) == ("ALLREDUCE", 1048576, "NONE")
