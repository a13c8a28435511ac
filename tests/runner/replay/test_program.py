"""Programs of stages: rows cut into iterations, files that fit together, plans as work."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.groups.degrees import Degrees
from runner.logs.analysis import analyse_log
from runner.replay.program import (
    Channel,
    DegreeOptions,
    ReplayTask,
    StageProgram,
    check_stages,
    groups_used,
    program_of,
    stage_files,
    task_from_files,
    task_from_request,
    task_name,
)
from spec.errors import ConfigError
from tests.solver.questions import request
from workload.aicb.csv_workload import EPOCH_END, Arguments, GeneralItem, Workload
from workload.diagnostics import WorkloadError

END = GeneralItem(comm_type=EPOCH_END)
WHERE = Path("w.csv")


def collective(kind: str = "all_reduce", group: str = "tp_group", ranks: int = 2, **more: object) -> GeneralItem:
    return GeneralItem(comm_type=kind, comm_group=group, comm_group_size=ranks, msg_size=64, **more)  # type: ignore[arg-type]


def message(additional: str) -> GeneralItem:
    kind = "isend" if additional.startswith("send") else "irecv"
    return GeneralItem(comm_type=kind, comm_group="pp_group", comm_group_size=1, msg_size=64, additional=additional)


def program(*items: GeneralItem, stage: int = 0, degrees: Degrees | None = None) -> StageProgram:
    return program_of([END, *items, END], stage, degrees or Degrees(tp=2, dp=2), WHERE)


def test_rows_are_cut_into_iterations_and_counts_into_launches() -> None:
    rows = [collective(), END, collective(count=3, elapsed_ms=6.0), END, collective(kind="barrier"), END]
    made = program_of(rows, 0, Degrees(tp=2, dp=2), WHERE)
    assert [len(part) for part in (made.init, *made.iterations)] == [1, 3, 1]
    assert [launch.item.elapsed_ms for launch in made.iterations[0]] == [2.0] * 3
    assert made.iteration(7) == made.iterations[1]
    assert len(made.everything) == 5


def test_groups_of_one_are_left_out() -> None:
    made = program(collective(ranks=1, group="cp_group"), collective())
    assert (len(made.iterations[0]), made.left_out) == (1, 1)


def test_a_ring_is_no_message_of_the_pipeline() -> None:
    ring = collective(kind="isend", group="cp_group")
    (launch,) = program(ring, degrees=Degrees(cp=2)).iterations[0]
    assert (launch.channel, launch.group) == (None, ("cp_group", 2))


def test_a_message_between_stages_needs_stages() -> None:
    with pytest.raises(WorkloadError, match="row 2: isend between stages, but there is only one"):
        program(message("send_next"))


@pytest.mark.parametrize(
    ("additional", "stage", "peer", "channel"),
    [
        ("send_next", 0, 1, Channel(downstream=True, wraps=False)),
        ("recv_prev", 1, 0, Channel(downstream=True, wraps=False)),
        ("send_prev", 1, 0, Channel(downstream=False, wraps=False)),
        ("recv_next", 0, 1, Channel(downstream=False, wraps=False)),
        ("send_next", 2, 0, Channel(downstream=True, wraps=True)),
        ("recv_prev", 0, 2, Channel(downstream=True, wraps=True)),
        ("send_prev", 0, 2, Channel(downstream=False, wraps=True)),
        ("recv_next", 2, 0, Channel(downstream=False, wraps=True)),
    ],
)
def test_peers_of_messages(additional: str, stage: int, peer: int, channel: Channel) -> None:
    launch = program(message(additional), stage=stage, degrees=Degrees(pp=3)).iterations[0][0]
    assert (launch.peer, launch.channel) == (peer, channel)


def test_groups_used_are_one_list_for_all_ranks() -> None:
    first = program(message("send_next"), collective(), degrees=Degrees(tp=2, pp=2))
    last = program(message("recv_prev"), stage=1, degrees=Degrees(tp=2, pp=2))
    assert groups_used([first, last]) == [("pp_down", 2), ("tp_group", 2)]


@pytest.mark.parametrize(
    ("item", "error_text"),
    [
        (collective(ranks=8), "w.csv: row 2: all_reduce over tp_group of 8 ranks: tp 2 x dp 2 has 2"),
        (collective(kind="reduce", dst=2), "row 2: reduce: dst = 2: a place in its group of 2, from 0"),
        (collective(kind="broadcast", src=2), "row 2: broadcast: src = 2"),
    ],
)
def test_rows_that_the_degrees_do_not_have_are_named(item: GeneralItem, error_text: str) -> None:
    with pytest.raises(WorkloadError, match=error_text):
        program(item)


def test_a_message_without_a_side_is_refused() -> None:
    bare = GeneralItem(comm_type="isend", comm_group="pp_group", msg_size=64)
    with pytest.raises(WorkloadError, match="row 2: isend: additional = '': send_next, send_prev"):
        program(bare, degrees=Degrees(pp=2))


@pytest.mark.parametrize("rows", [[END], [collective()], [END, collective(), END, collective()]])
def test_a_file_without_an_iteration_is_refused(rows: list[GeneralItem]) -> None:
    with pytest.raises(WorkloadError, match="has no iteration"):
        program_of(rows, 0, Degrees(tp=2), WHERE)


def test_an_operation_is_named_with_its_row() -> None:
    made = program(collective(stage="forward.block0"))
    assert made.iterations[0][0].label() == "all_reduce of 64 bytes over tp_group (forward.block0, row 2)"


PIPE = Degrees(tp=2, pp=2)


def stages(first: list[str], last: list[str]) -> list[StageProgram]:
    sides = [[message(word) for word in words] for words in (first, last)]
    return [program(*rows, stage=stage, degrees=PIPE) for stage, rows in enumerate(sides)]


def test_1f1b_of_two_stages_fits_together() -> None:
    # A send that waited for its receiver would stop here: both stages send before they receive.
    first = ["send_next", "send_next", "recv_next", "send_next", "recv_next", "recv_next"]
    last = ["recv_prev", "send_prev", "recv_prev", "send_prev", "recv_prev", "send_prev"]
    check_stages(stages(first, last))


def test_stages_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(WorkloadError, match=r"iteration 1 would deadlock: stage 0 in irecv .*; stage 1 in irecv"):
        check_stages(stages(["recv_next", "send_next"], ["recv_prev", "send_prev"]))


def test_a_message_that_nobody_receives_is_named() -> None:
    with pytest.raises(WorkloadError, match="stage 1 never receives isend of 64 bytes"):
        check_stages(stages(["send_next", "send_next"], ["recv_prev"]))


def test_a_message_of_another_size_is_named() -> None:
    sent = program(message("send_next"), degrees=PIPE)
    taken = program(replace(message("recv_prev"), msg_size=32), stage=1, degrees=PIPE)
    with pytest.raises(WorkloadError, match="meets a message of 64 bytes, row 2"):
        check_stages([sent, taken])


def test_collectives_over_stages_meet() -> None:
    shared = collective(group="pp_group")
    check_stages([program(shared, degrees=PIPE), program(collective(), shared, stage=1, degrees=PIPE)])
    other = replace(shared, msg_size=32)
    with pytest.raises(WorkloadError, match="stage 0 in all_reduce of 64 bytes over pp_group"):
        check_stages([program(shared, degrees=PIPE), program(other, stage=1, degrees=PIPE)])


def test_the_middle_stages_have_no_part_in_the_embedding() -> None:
    degrees = Degrees(pp=3)
    tied = collective(group="embedding_group")
    ends = [program(tied, degrees=degrees), program(degrees=degrees), program(tied, stage=2, degrees=degrees)]
    check_stages([replace(one, stage=stage) for stage, one in enumerate(ends)])


def test_files_of_other_lengths_are_refused() -> None:
    one = program(collective(), degrees=PIPE)
    with pytest.raises(WorkloadError, match="have 1, 2 iterations"):
        check_stages([one, replace(one, iterations=one.iterations * 2)])


TYPED = DegreeOptions(degrees={}, order="tp-cp-ep-dp-pp")


def written(path: Path, *items: GeneralItem, **arguments: int) -> Path:
    given: Arguments = dict(arguments)
    Workload(items=[END, *items, END]).write(path, given)
    return path


def test_stages_lie_beside_the_first(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a_workload-stage0.csv", message("send_next"), pipeline_model_parallel=2, world_size=4, stage=0
    )
    with pytest.raises(ConfigError, match=r"2, one for each pipeline stage .*a_workload-stage1.csv is not there"):
        task_from_files([first], TYPED, 4)
    written(tmp_path / "a_workload-stage1.csv", message("recv_prev"))
    work = task_from_files([first], TYPED, 4)
    assert (work.name, work.degrees.dp, [one.stage for one in work.programs]) == ("a", 2, [0, 1])


def test_stages_lie_one_after_another_in_a_file_of_2024(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    parts = []
    for stage, items in enumerate(([message("send_next")], [message("recv_prev"), collective()])):
        written(path, *items)
        parts.append(f"[ pp_stage{stage}: [rank0, rank1] ]\n{path.read_text()}")
    path.write_text("".join(parts))
    typed = DegreeOptions(degrees={"pp": 2, "tp": 2}, order="tp-cp-ep-dp-pp")
    work = task_from_files([path], typed, 4)
    assert [[launch.item.comm_type for launch in one.everything] for one in work.programs] == [
        ["isend"],
        ["irecv", "all_reduce"],
    ]
    assert [len(list(Workload.load(path, stage)[0].items)) for stage in range(2)] == [3, 4]
    with pytest.raises(ConfigError, match="files = 1: 4, one for each pipeline stage"):
        stage_files([path], 4)
    assert analyse_log(path, None).lines[-1] == "stage 0 of 2 in the file"


def test_what_differs_on_a_node_changes_the_digest(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", collective(), tensor_model_parallel_size=2)
    before = task_from_files([path], TYPED, 2).digest
    assert task_from_files([path], TYPED, 2).digest == before
    written(path, collective(), collective(), tensor_model_parallel_size=2)
    after = task_from_files([path], TYPED, 2).digest
    written(path, collective(), collective(), tensor_model_parallel_size=2, epoch_num=7)
    assert len({before, after, task_from_files([path], TYPED, 2).digest}) == 3


def test_another_stage_first_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", collective(), tensor_model_parallel_size=2, stage=1)
    with pytest.raises(ConfigError, match="stage = 1: 0 in the first file"):
        task_from_files([path], TYPED, 2)


def test_files_are_as_many_as_stages(tmp_path: Path) -> None:
    files = [tmp_path / "x.csv", tmp_path / "y.csv"]
    assert stage_files(files, 2) == files
    with pytest.raises(ConfigError, match="files = 2: 3, one for each pipeline stage"):
        stage_files(files, 3)


def test_names_of_results() -> None:
    assert task_name(Path("llama-3.1_workload-stage0.csv")) == "llama-3.1"
    assert task_name(Path("mine.csv")) == "mine"


REQUEST = request("tiny_internlm2.py", 0, cluster="h100-sxm", framework="megatron", missing="modelled")


@pytest.fixture(scope="module")
def pipelined() -> ReplayTask:
    return task_from_request(REQUEST, "tp=1,pp=2,dp=2", 4)


def test_every_stage_has_its_rows(pipelined: ReplayTask) -> None:
    assert [program.stage for program in pipelined.programs] == [0, 1]
    assert (pipelined.degrees.dp, pipelined.degrees.pp, pipelined.arguments["world_size"]) == (2, 2, 4)
    kinds = [{launch.item.comm_type for launch in program.everything} for program in pipelined.programs]
    assert all({"isend", "irecv", "computation"} <= each for each in kinds)
    timed = [one.item for one in pipelined.programs[0].everything if one.item.comm_type == "computation"]
    assert all((item.elapsed_ms or 0.0) > 0 for item in timed)
    assert len(pipelined.digest) == 64


def test_attention_and_what_is_no_product_are_rows(pipelined: ReplayTask) -> None:
    items = [one.item for one in pipelined.programs[0].everything if one.item.comm_type == "computation"]
    # configs/tiny_internlm2.py: 8 heads, 4 of keys and values, 256 / 8 channels, 256 tokens
    shapes = ((1, 8, 256, 32), (1, 4, 256, 32))
    assert {item.additional for item in items if item.shapes == shapes} == {
        "causal forward flash 0",
        "causal backward flash 0",
    }
    others = [item for item in items if item.shapes is None]
    assert any("norm" in item.stage for item in others)
    assert all(item.msg_size == pytest.approx((item.elapsed_ms or 0.0) * 1e6, abs=1) for item in others)


def test_dp_is_what_is_left(pipelined: ReplayTask) -> None:
    with pytest.raises(ConfigError, match="--plan: dp = 4: 2, what tp 1 x pp 2 x cp 1 leave of 4 processes"):
        task_from_request(REQUEST, "pp=2,dp=4", 4)


def test_a_plan_that_the_framework_does_not_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="megatron does not run msp"):
        task_from_request(REQUEST, "tp=2,strategy=msp", 4)
