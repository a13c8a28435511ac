"""A run in this one process: computation alone, with no group of more than one rank."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from profiler.device import Device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.watchdog import Beat
from runner.groups.degrees import Degrees
from runner.logs.log import Log
from runner.replay.operations import ComputeMode, attention_case, buffer_elements, operations_for, product_case, whole
from runner.replay.program import DegreeOptions, task_from_files
from runner.replay.run import RankProgress, ReplayOptions, StragglerFinder, run_workload
from tests.runner.replay.test_program import END, collective, message, program
from workload.aicb.csv_workload import GeneralItem, Workload
from workload.diagnostics import WorkloadError


def test_a_product_as_launched() -> None:
    case = product_case(((2048, 1, 5120), (5120, 1920)), "bf16")
    assert (case.m, case.k, case.n, case.layout, case.dtype_in) == (2048, 5120, 1920, "NN", "bf16")


def test_every_rank_gets_an_equal_part() -> None:
    buffer = torch.zeros(64, dtype=torch.bfloat16)
    assert (whole(buffer, 8, 4).dtype, whole(buffer, 8, 4).numel()) == (torch.bfloat16, 4)
    assert whole(buffer, 10, 4).numel() == 8
    assert (whole(buffer, 1, 4).dtype, whole(buffer, 1, 4).numel()) == (torch.uint8, 4)
    assert whole(buffer, 0, 4).numel() == 4


def test_buffers_hold_the_largest_message() -> None:
    launches = program(collective(), collective(kind="all_gather")).iterations[0]
    elements = buffer_elements(launches)
    buffer = torch.zeros(elements, dtype=torch.bfloat16)
    assert all(whole(buffer, size, 2).numel() * buffer.element_size() >= size for size in (63, 64))
    assert elements == 35


def test_equal_launches_share_their_operands() -> None:
    first = GeneralItem(comm_type="computation", shapes=((2, 3), (3, 4)), stage="a")
    other = GeneralItem(comm_type="computation", shapes=((2, 3), (3, 5)), stage="b")
    made = program(first, first, other).iterations[0]
    cpu = operations_for(made, Device(kind="cpu"), {}, ComputeMode.REAL, "fp32")
    calls = [cpu.call(launch) for launch in made]
    assert calls[0] is calls[1]
    assert calls[2] is not calls[0]


def test_an_attention_as_launched() -> None:
    item = GeneralItem(
        comm_type="computation",
        shapes=((1, 4, 16, 8), (1, 2, 16, 8)),
        additional="causal backward flash 0",
        stage="backward.attention.core",
    )
    (launch,) = program(item).iterations[0]
    case = attention_case(launch, "fp32")
    assert (case.heads, case.kv_heads, case.q_len, case.kv_len, case.qk_dim) == (4, 2, 16, 16, 8)
    assert (case.mask, case.direction, case.dtype) == ("causal", "backward", "fp32")
    call = operations_for([launch], Device(kind="cpu"), {}, ComputeMode.REAL, "fp32").call(launch)
    assert call is not None
    call()
    (bare,) = program(replace(item, additional="causal")).iterations[0]
    with pytest.raises(WorkloadError, match="additional = 'causal': mask direction kernel window"):
        attention_case(bare, "fp32")


SHAPES = ((8, 16), (16, 4))
TYPED = DegreeOptions(degrees={}, order="tp-cp-ep-dp-pp")


def played(
    tmp_path: Path, compute: ComputeMode, *items: GeneralItem, epochs: int | None = None
) -> tuple[Log, list[str]]:
    path = tmp_path / "one_workload.csv"
    Workload(items=[END, *items, END]).write(path, {"world_size": 1})
    options = ReplayOptions(
        results=tmp_path / "results", device="cpu", compute=compute, dtype="fp32", epochs=epochs, quiet=True
    )
    lines = run_workload(options, lambda world: task_from_files([path], TYPED, world), RankLayout())
    return Log.load(tmp_path / "results" / "comm_logs" / "one_log.csv"), lines


def test_products_are_run_and_logged(tmp_path: Path) -> None:
    product = GeneralItem(comm_type="computation", shapes=SHAPES, stage="forward.x", count=2)
    log, lines = played(tmp_path, ComputeMode.REAL, product, collective(ranks=1), epochs=3)
    assert [len(epoch) for epoch in log.comm_log_each_epoch] == [0, 2, 2, 2]
    assert all(item.shapes == SHAPES and (item.elapsed_ms or 0) > 0 for item in log.comm_logs)
    assert "1 rows over groups of one rank left out" in lines
    kept, arguments = Workload.load(tmp_path / "results" / "comm_logs" / "one_workload.csv")
    assert (list(kept.items)[1], arguments) == (product, {"world_size": 1})
    ranks = (tmp_path / "results" / "comm_logs" / "one_ranks.csv").read_text().splitlines()
    assert ranks[0] == "rank,stage,epoch,iteration_ms,communication_ms,computation_ms"
    assert [line.split(",")[:3] for line in ranks[1:]] == [["0", "0", str(epoch)] for epoch in range(4)]


def test_sleep_takes_the_time_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, slept_s = time.sleep, []

    def recorded_sleep(seconds: float) -> None:
        slept_s.append(seconds)
        sleep(seconds)

    monkeypatch.setattr("runner.replay.operations.time.sleep", recorded_sleep)
    timed = GeneralItem(comm_type="computation", shapes=SHAPES, elapsed_ms=40.0, count=2)
    nanoseconds = GeneralItem(comm_type="computation", msg_size=30_000_000)
    untimed = GeneralItem(comm_type="computation", shapes=SHAPES)
    log, _ = played(tmp_path, ComputeMode.SLEEP, timed, nanoseconds, untimed)
    # Requested exactly; measured at least, as a busy machine wakes a process late.
    assert slept_s[-3:] == pytest.approx([0.02, 0.02, 0.03])
    assert all((item.elapsed_ms or 0) >= least for item, least in zip(log.comm_logs, (20, 20, 30), strict=True))


def test_skipped_computation_is_no_operation(tmp_path: Path) -> None:
    product = GeneralItem(comm_type="computation", shapes=SHAPES, elapsed_ms=40.0)
    log, _ = played(tmp_path, ComputeMode.SKIP, product)
    assert (log.comm_logs, len(log.epoch_times)) == ([], 2)


DEGREES = Degrees(tp=2, pp=2)
FIRST = program(collective(), message("send_next"), message("recv_next"), collective(), degrees=DEGREES)
LAST = program(message("recv_prev"), collective(), message("send_prev"), stage=1, degrees=DEGREES)
FINDER = StragglerFinder(programs=(FIRST, LAST), degrees=DEGREES)


def behind(*places: tuple[int, bool] | None) -> Sequence[int]:
    """By rank how many communications have begun, and whether it computes since."""
    beats = {}
    for rank, place in enumerate(places):
        word = ""
        if place is not None:
            word = RankProgress(passes=2, part=1, begun=place[0], computes=place[1]).text()
        beats[rank] = Beat(1, 1, word)
    return FINDER.behind(beats)


def test_a_rank_that_computes_while_its_group_waits() -> None:
    # ranks 0 and 1 wait for the last stage's messages, rank 2 for rank 3 in their tp group
    assert behind((3, False), (3, False), (2, False), (1, True)) == [3]


def test_who_has_done_least_is_not_always_to_blame() -> None:
    # rank 0 hangs between its collective and its message; ranks 2 and then 3 and 1 wait for it
    assert behind((1, True), (3, False), (1, False), (2, False)) == [0]


def test_a_collective_that_does_not_end_is_named_for_those_who_wait_behind_it() -> None:
    assert behind((3, False), (3, False), (2, False), (2, False)) == [2, 3]
    assert behind((1, False), (1, False), (2, False), (2, False)) == [0, 1, 2, 3]


def test_a_message_under_way_blames_nobody() -> None:
    assert behind((2, False), (2, False), (1, False), (1, False)) == [0, 1, 2, 3]


def test_a_rank_that_has_not_come_to_the_pass() -> None:
    assert behind((1, False), None, (1, False), (1, False)) == [1]


def test_two_at_once() -> None:
    assert behind((0, True), (1, False), (2, False), (1, True)) == [0, 3]


def test_a_place_is_read_as_written() -> None:
    place = RankProgress(passes=3, part=0, begun=7, computes=True)
    assert RankProgress.read(place.text()) == place
    assert RankProgress.read("") is None
