"""Every collective case launches its own collective, on the size and the group it says."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from profdb.cases import CollectiveCase
from profiler.benchmarks import torch_collectives
from profiler.benchmarks.collectives import GroupMember, launch_collective, random_buffer
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.distributed.world import World
from spec.collectives import Collective
from tests.profiler.fakes import fake_world

Calls = list[tuple[str, tuple[int, ...], Any]]

SENDER = 1  # rank 1 of two nodes of two; its pair inside the node is (0, 1), between nodes (1, 3)


def world(rank: int = SENDER) -> World:
    return fake_world(rank, 4)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """(collective, elements of its tensors, group) of every call that reaches torch.distributed."""
    seen: Calls = []

    def record(name: str) -> Any:
        def call(*tensors: Any, group: Any = None, **_: Any) -> None:
            elements = tuple(item.numel() for item in tensors if isinstance(item, torch.Tensor))
            seen.append((name, elements, group))

        return call

    names = "all_reduce all_gather_single all_gather_into_tensor reduce_scatter_single reduce_scatter_tensor"
    for name in (*names.split(), "all_to_all_single", "broadcast"):
        monkeypatch.setattr(dist, name, record(name), raising=False)

    def message(operations: list[dist.P2POp]) -> list[Any]:
        for operation in operations:
            seen.append((operation.op.__name__, (operation.tensor.numel(),), operation.group))
        return []

    class Operation:
        def __init__(self, op: Any, tensor: torch.Tensor, peer: int, group: Any) -> None:
            self.op, self.tensor, self.group = op, tensor, (*group, "peer", peer)

    monkeypatch.setattr(dist, "P2POp", Operation)
    monkeypatch.setattr(dist, "batch_isend_irecv", message)
    return seen


WHOLE = 4096
ELEMENTS = WHOLE // 2  # bf16

EXPECTED = {
    # (tensors as torch takes them, over a group of four): out first where there are two
    Collective.ALL_REDUCE: ("all_reduce", (ELEMENTS,)),
    Collective.ALL_GATHER: ("all_gather", (ELEMENTS, ELEMENTS // 4)),
    Collective.REDUCE_SCATTER: ("reduce_scatter", (ELEMENTS // 4, ELEMENTS)),
    Collective.ALL_TO_ALL: ("all_to_all", (ELEMENTS, ELEMENTS)),
    Collective.BROADCAST: ("broadcast", (ELEMENTS,)),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_collective_case_launches_its_own_collective(kind: Collective, called: Calls) -> None:
    case = CollectiveCase(collective=kind, size_bytes=WHOLE, intra=2, inter=2, siblings=1)
    launched = launch_collective(case, world())
    assert launched.case == case
    assert launched.collective
    launched.calls[0]()
    ((name, elements, group),) = called
    wanted, sizes = EXPECTED[kind]
    assert name.startswith(wanted)
    assert elements == sizes
    assert group == (0, 1, 2, 3)


def test_what_is_sent_is_random() -> None:
    """Links that compress, and power, tell constant data from numbers of a training step."""
    place = GroupMember(ranks=(0, 1), rank=0, handle=None, where=torch.device("cpu"))
    data = random_buffer(4096, place, torch.bfloat16)
    # uniform in 0 to 1
    assert data.float().std().item() == pytest.approx(12**-0.5, rel=0.1)


@pytest.mark.parametrize(("shape", "group"), [((2, 1, 1), (0, 1)), ((1, 2, 2), (1, 3)), ((2, 2, 1), (0, 1, 2, 3))])
def test_the_group_is_the_one_of_the_case(shape: tuple[int, int, int], group: tuple[int, ...], called: Calls) -> None:
    intra, inter, siblings = shape
    case = CollectiveCase(
        collective=Collective.ALL_REDUCE, size_bytes=WHOLE, intra=intra, inter=inter, siblings=siblings
    )
    launch_collective(case, world()).calls[0]()
    assert called[0][2] == group


@pytest.mark.parametrize(
    ("shape", "order", "peer"), [((2, 1, 1), ("irecv", "isend"), 0), ((1, 2, 2), ("isend", "irecv"), 3)]
)
def test_a_message_goes_there_and_back_between_neighbours(
    shape: tuple[int, int, int], order: tuple[str, str], peer: int, called: Calls
) -> None:
    intra, inter, siblings = shape
    case = CollectiveCase(collective=Collective.P2P, size_bytes=WHOLE, intra=intra, inter=inter, siblings=siblings)
    launched = launch_collective(case, world())
    launched.calls[0]()
    pair = (0, 1) if intra == 2 else (1, 3)
    assert called == [(name, (ELEMENTS,), (*pair, "peer", peer)) for name in order]
    assert launched.operations == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"intra": 3},  # does not divide the domain
        {"inter": 4},  # more domains than there are
        {"intra": 1, "inter": 1},
        {"siblings": 2},
        {"size_bytes": 4097},
        {"size_bytes": 0},
        {"collective": Collective.P2P},  # four ranks
        {"dtype": "fp4"},
    ],
)
def test_what_this_world_cannot_run_as_said_is_refused(wrong: dict[str, Any]) -> None:
    given = {"collective": Collective.ALL_REDUCE, "size_bytes": WHOLE, "intra": 2, "inter": 2}
    with pytest.raises(UnsupportedCaseError):
        launch_collective(CollectiveCase(**{**given, **wrong}), world())


def test_a_trial_is_that_of_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    others = torch.tensor([1.0, 9.0, 3.0], dtype=torch.float64)
    joined = {dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.SUM: torch.add}

    def all_reduce(buffer: torch.Tensor, op: Any, group: Any) -> None:
        buffer.copy_(joined[op](buffer, others))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    assert world().slowest([5.0, 5.0, 3.0]) == [5.0, 9.0, 3.0]


def test_renamed_collectives_are_found_under_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "new_name", "successor", raising=False)
    monkeypatch.setattr(dist, "old_name", "predecessor", raising=False)
    assert torch_collectives.collective_by_name("new_name", "old_name") == "successor"
    monkeypatch.delattr(dist, "new_name")
    assert torch_collectives.collective_by_name("new_name", "old_name") == "predecessor"
    monkeypatch.delattr(dist, "old_name")
    with pytest.raises(UnsupportedCaseError, match="neither new_name nor old_name"):
        torch_collectives.collective_by_name("new_name", "old_name")


def test_groups_beyond_the_cases_siblings_rest(called: Calls) -> None:
    """Two groups across the domains, (0, 2) and (1, 3); of one sibling only the first works."""
    case = CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=WHOLE, intra=1, inter=2, siblings=1)
    resting = launch_collective(case, world())  # rank 1
    resting.calls[0]()
    assert (resting.case, resting.collective, called) == (case, True, [])
    launch_collective(case, world(0)).calls[0]()
    assert [group for _, _, group in called] == [(0, 2)]
