from pathlib import Path

import pytest

from runner.groups.degrees import Degrees
from runner.replay.program import Channel, Program, groups_used, program_of
from workload.aicb.csv_workload import EPOCH_END, GeneralItem
from workload.findings import WorkloadError

END = GeneralItem(comm_type=EPOCH_END)
WHERE = Path("w.csv")


def collective(
    kind: str = "all_reduce", group: str = "tp_group", ranks: int = 2, **more: object
) -> GeneralItem:
    return GeneralItem(comm_type=kind, comm_group=group, comm_group_size=ranks, msg_size=64, **more)  # type: ignore[arg-type]


def message(additional: str) -> GeneralItem:
    kind = "isend" if additional.startswith("send") else "irecv"
    return GeneralItem(
        comm_type=kind, comm_group="pp_group", comm_group_size=1, msg_size=64, additional=additional
    )


def program(*items: GeneralItem, stage: int = 0, degrees: Degrees | None = None) -> Program:
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
    with pytest.raises(WorkloadError, match="row 2: isend between stages, and there is one"):
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
    ("item", "said"),
    [
        (collective(ranks=8), "w.csv: row 2: all_reduce over tp_group of 8 ranks: tp 2 x dp 2 has 2"),
        (collective(kind="reduce", dst=2), "row 2: reduce: dst = 2: a place in its group of 2, from 0"),
        (collective(kind="broadcast", src=2), "row 2: broadcast: src = 2"),
    ],
)
def test_rows_that_the_degrees_do_not_have_are_named(item: GeneralItem, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
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
