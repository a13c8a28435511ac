"""The CSV of a general workload: AICB's columns, read as it was written, malformed files refused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import run_workload
from tests.workload.generator import ROOT
from workload.aicb.csv_workload import COLUMNS, GeneralItem, Workload
from workload.diagnostics import WorkloadError

HEADER = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"
END = "CommType.epoch_end,None,None,0,,None,None,None,None,None,None,1"
ROW = "CommType.all_reduce,CommGroup.tp_group,8,1024,forward.x,None,None,None,None,None,None,1"


def test_columns_are_aicbs() -> None:
    assert ",".join(COLUMNS) == HEADER


def test_reads_what_it_wrote(tmp_path: Path) -> None:
    items = [
        GeneralItem(comm_type="computation", shapes=((2, 3, 4), (4, 5)), stage="forward.a", elapsed_ms=0.25),
        GeneralItem(
            comm_type="isend", comm_group="pp_group", comm_group_size=4, msg_size=7, dst=3, additional="send_next"
        ),
        GeneralItem(comm_type="epoch_end"),
    ]
    path = tmp_path / "w.csv"
    assert Workload(items=iter(items)).write(path, {"tp": 2}) == 3
    read, arguments = Workload.load(path)
    assert (list(read.items), arguments) == (items, {"tp": 2})
    assert path.read_text().splitlines()[1].startswith("CommType.computation,None,None,((2 3 4) (4 5)),forward.a")


def test_old_files_are_read(tmp_path: Path) -> None:
    # Samples of 2024: a line of ranks first, no group size.
    path = tmp_path / "old.csv"
    lines = ["[rank0 ~ rank127]", HEADER.replace("comm_group_size,", ""), ROW.replace("8,", "", 1)]
    path.write_text("\r\n".join(lines))
    (item,) = Workload.load(path)[0].items
    assert (item.comm_type, item.comm_group, item.comm_group_size, item.msg_size) == ("all_reduce", "tp_group", 0, 1024)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "is empty"),
        ("a,b,c\n", "columns"),
        (f"{HEADER}\n{ROW},1\n", "line 2: 13 cells"),
        (f"{HEADER}\n{ROW[:30]}\n", "line 2: "),
        (f"{HEADER}\n{ROW.replace('all_reduce', 'gossip')}\n", "gossip"),
        (f"{HEADER}\n{ROW.replace('tp_group', 'party')}\n", "party"),
        (f"{HEADER}\n{ROW.replace('1024', '-1')}\n", "'-1'"),
        (f"{HEADER}\n{ROW.replace('1024', '9' * 40)}\n", "whole number"),
        (f"{HEADER}\n{ROW.replace('1024', '²')}\n", "whole number"),
        (f"{HEADER}\n{ROW.replace('1024', '((1 2))')}\n", "pair of matrix"),
        (f"{HEADER}\n{ROW.replace('1024', '((1 x) (2 3))')}\n", "'x'"),
        (f"{HEADER}\n{ROW.replace('None,None,1', 'nan,None,1')}\n", "'nan'"),
        (f"{HEADER}\n{ROW.replace('1024', 'None')}\n", "without a size"),
        (f"{HEADER}\n{ROW.replace('1024', '((None 2) (2 3))')}\n", "no length"),
        (f"{HEADER}\n{END}\n{ROW}\n", "cut off"),
    ],
)
def test_malformed(content: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=match):
        Workload.load(path)


def test_a_file_that_is_not_there_and_a_folder_differ(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"missing\.csv: no such file"):
        Workload.load(tmp_path / "missing.csv")
    with pytest.raises(WorkloadError, match="is no general workload"):
        Workload.load(tmp_path)


def generate(words: str, path: Path) -> list[GeneralItem]:
    flags = f"{words} --format general --output {path}".split()
    assert run_workload.main(["generate", *flags]) == 0
    return list(Workload.load(path)[0].items)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_arguments_that_cannot_be_read_are_no_empty_ones(make: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(",".join(COLUMNS) + "\n")
    assert Workload.load(tmp_path / "w.csv")[1] == {}
    make(tmp_path / "w.csv.args.json")
    with pytest.raises(WorkloadError, match=r"args\.json: is no arguments file"):
        Workload.load(tmp_path / "w.csv")


def test_a_small_workload_to_the_letter(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    path = tmp_path / "w.csv"
    config = f"--config {ROOT}/configs/8x7B_mixtral.py"
    words = f"{config} --num_layers 2 --world_size 8 --tp_num 2 --pp_num 2 --sp --expert_model_parallel_size 2"
    generate(f"{words} --use_flash_attn --use_distributed_optimizer --global_batch 4 --stage 0", path)
    golden("workload/general_moe.csv", path.read_text())


def test_experts_communicate_in_both_directions(tmp_path: Path) -> None:
    items = generate(
        "--model_size moe --num_layers 2 --world_size 8 --expert_model_parallel_size 8 --use_flash_attn",
        tmp_path / "w.csv",
    )
    stages = [item.stage.split(".")[0] for item in items if item.comm_type == "all_to_all"]
    # dispatch, its probabilities and combine of two layers, forward and backward
    assert stages == ["forward"] * 6 + ["backward"] * 6


def test_iterations_and_phases(tmp_path: Path) -> None:
    words = "--model_size 7 --world_size 8 --tp_num 2 --global_batch 8 --epoch_num 3"
    items = generate(words, tmp_path / "w.csv")
    # one after the start-up and one after each iteration
    assert sum(item.comm_type == "epoch_end" for item in items) == 4
    steps = [item for item in items if item.stage.startswith("step")]
    assert len(steps) == 3, "one gradient all-reduce an iteration"
    assert items[-1].comm_type == "epoch_end"


def test_computation_rows_carry_shapes_and_times(tmp_path: Path) -> None:
    words = "--model_size 7 --world_size 1 --num_layers 1 --computation_enable --fixed_time_us 3"
    items = generate(words, tmp_path / "w.csv")
    up = [item for item in items if item.stage.endswith("mlp.up") and item.comm_type == "computation"]
    # forward, input gradient, weight gradient of 2048 tokens, 4096 -> 16384
    assert [item.shapes for item in up] == [
        ((1, 2048, 4096), (4096, 16384)),
        ((1, 2048, 16384), (16384, 4096)),
        ((1, 16384, 2048), (2048, 4096)),
    ]
    assert {item.elapsed_ms for item in up} == {0.003}


def test_every_stage_and_chunk_talks_to_its_neighbours(tmp_path: Path) -> None:
    words = (
        "--model_size 7 --num_layers 8 --world_size 4 --pp_num 4 --virtual_pipeline_model_parallel_size 2 "
        "--global_batch 4 --stage all"
    )
    run_workload.main(["generate", *f"{words} --format general --output {tmp_path}/w.csv".split()])
    sent: dict[tuple[int, int], int] = {}
    received: dict[tuple[int, int], int] = {}
    for rank in range(4):
        for item in Workload.load(tmp_path / f"w-stage{rank}.csv")[0].items:
            if item.comm_type == "isend" and item.dst is not None:
                sent[rank, item.dst] = sent.get((rank, item.dst), 0) + 1
            elif item.comm_type == "irecv" and item.src is not None:
                received[item.src, rank] = received.get((item.src, rank), 0) + 1
    assert sent == received
    # four micro-batches, two chunks; the chain of eight links wraps once from the last rank to the first
    assert sent[0, 1] == 8
    assert sent[3, 0] == sent[0, 3] == 4


def test_sharded_frames_refuse_other_degrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--frame DeepSpeed --model_size 7 --world_size 8 --tp_num 2 --format general"
    assert run_workload.main(["generate", *flags.split()]) == 2
    assert "data parallel only" in capsys.readouterr().err
