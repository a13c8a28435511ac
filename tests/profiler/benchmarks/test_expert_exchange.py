"""Tokens go to the ranks of the experts that all ranks agree they chose, and come back added up."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from profdb.cases import ExpertExchangeCase
from profiler.benchmarks import expert_exchange
from profiler.benchmarks.collectives import GroupMember
from profiler.benchmarks.expert_exchange import all_to_all_call, chosen_experts, deep_ep_call, launch_expert_exchange
from profiler.benchmarks.launched import UnsupportedCaseError
from tests.profiler.benchmarks.signatures import checked_class
from tests.profiler.fakes import fake_world

CPU = torch.device("cpu")
CASE = ExpertExchangeCase(
    direction="dispatch", tokens=50, hidden=8, experts=8, topk=2, intra=2, inter=1, siblings=1, dtype="fp32"
)


def place(rank: int) -> GroupMember:
    return GroupMember(ranks=(0, 1), rank=rank, handle="group", where=CPU)


@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_rows_sent_to_a_rank_are_those_it_awaits(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, list[int], list[int]]] = []

    def exchange(received: Any, sent: Any, rows_in: list[int], rows_out: list[int], group: Any = None) -> None:
        assert (received.shape[1], sent.shape[1], group) == (8, 8, "group")
        seen.append((received.shape[0], sent.shape[0], rows_in, rows_out))

    monkeypatch.setattr(dist, "all_to_all_single", exchange)
    for rank in (0, 1):
        all_to_all_call(replace(CASE, direction=direction), place(rank))[0]()
    first, second = seen
    for received, sent, rows_in, rows_out in seen:
        assert (received, sent) == (sum(rows_in), sum(rows_out))
    assert first[3][1] == second[2][0]
    assert second[3][0] == first[2][1]
    # every token's two experts: 100 rows leave each rank on the way out and come back to it
    own = 1 if direction == "dispatch" else 0
    assert [one[own] for one in seen] == [100, 100]


def test_each_token_has_different_experts_and_each_rank_its_own_tokens() -> None:
    chosen = chosen_experts(CASE, 0)
    assert chosen.shape == (50, 2)
    assert (chosen[:, 0] != chosen[:, 1]).all()
    assert not torch.equal(chosen, chosen_experts(CASE, 1))
    assert torch.equal(chosen, chosen_experts(CASE, 0))


def sizes_of(share: int) -> Any:
    return SimpleNamespace(
        get_nvl_buffer_size_hint=lambda hidden_bytes, ranks: share * hidden_bytes * ranks,
        get_rdma_buffer_size_hint=lambda hidden_bytes, ranks: 0,
    )


class Buffer:
    """DeepEP's, as far as its names and shapes go (deep_ep/buffers/legacy.py)."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, group: Any, num_nvl_bytes: int, num_rdma_bytes: int) -> None:
        Buffer.made.append((group, num_nvl_bytes, num_rdma_bytes))

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Any:
        return sizes_of(100)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Any:
        return sizes_of(120)

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int) -> tuple[Any, ...]:
        Buffer.made.append((tuple(topk_idx.shape), topk_idx.dtype, num_experts))
        return "of_rank", "of_node", "of_expert", "in_rank", None

    def dispatch(self, x: torch.Tensor, **words: Any) -> tuple[Any, ...]:
        weights = words.pop("topk_weights")
        words.pop("topk_idx")
        Buffer.made.append((tuple(x.shape), x.dtype, weights.dtype, words))
        return x, None, None, [], "handle", None

    def combine(self, x: torch.Tensor, handle: Any) -> None:
        Buffer.made.append((tuple(x.shape), handle))


checked_class("deep_ep", Buffer)


def test_deep_ep_is_called_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(Buffer=Buffer, topk_idx_t=torch.int64)
    monkeypatch.setattr(expert_exchange, "optional_package", lambda name: package)
    bf16 = replace(CASE, dtype="bf16", direction="combine")
    gpu = GroupMember(ranks=(0, 1), rank=0, handle="group", where=torch.device("cpu"))
    with pytest.raises(UnsupportedCaseError, match="no GPU"):
        deep_ep_call(bf16, gpu, chosen_experts(bf16, 0))
    meta = SimpleNamespace(ranks=(0, 1), rank=0, handle="group", where=SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch, "randn", lambda *size, device: torch.empty(size, device=CPU))
    whole_ones, whole_to = torch.ones, torch.Tensor.to
    monkeypatch.setattr(torch, "ones", lambda *size, dtype, device: whole_ones(*size, dtype=dtype))
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda self, *kind, device=None, dtype=None: whole_to(self, *kind, **({"dtype": dtype} if dtype else {})),
    )
    Buffer.made.clear()
    deep_ep_call(bf16, meta, chosen_experts(bf16, 0))()  # type: ignore[arg-type]
    counts = {
        "num_tokens_per_rank": "of_rank",
        "num_tokens_per_rdma_rank": "of_node",
        "is_token_in_rank": "in_rank",
        "num_tokens_per_expert": "of_expert",
    }
    assert Buffer.made == [
        ("group", 120 * 16 * 2, 0),  # the larger of both ways: one buffer serves them
        ((50, 2), torch.int64, 8),
        ((50, 8), torch.bfloat16, torch.float32, counts),
        ((50, 8), "handle"),
    ]


@pytest.mark.parametrize(
    "changed",
    [{"direction": "sideways"}, {"kernel": "pigeon"}, {"kernel": "deepep"}, {"experts": 7}, {"topk": 9}, {"intra": 4}],
)
def test_what_cannot_be_exchanged_here_is_refused(changed: dict[str, Any]) -> None:
    case = replace(CASE, **changed)
    with pytest.raises(UnsupportedCaseError):
        launch_expert_exchange(case, fake_world(1, 2))
