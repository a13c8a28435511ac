"""Copies to a device and back: page-locked, the bytes of the case, one way."""

from typing import Any

import pytest
import torch

from profdb.cases import HostCopyCase
from profiler.benchmarks.host import launch_host_copy
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from tests.profiler.fakes import device_like


def world(kind: str = "cuda") -> World:
    return World(
        layout=RankLayout(rank=0, size=1, local_size=1), device=device_like(kind, torch_device=torch.device("cpu"))
    )


@pytest.mark.parametrize("direction", ["to_device", "to_host"])
def test_the_bytes_of_the_case_are_copied_one_way(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    copied: list[tuple[torch.Tensor, torch.Tensor, bool]] = []
    made = torch.empty

    def page_locked(size: Any, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        pinned.append(made(size, dtype=dtype))
        return pinned[-1]

    def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
        copied.append((target, source, non_blocking))

    monkeypatch.setattr(torch, "empty", page_locked)
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    case = HostCopyCase(direction=direction, size_bytes=1000)
    launched = launch_host_copy(case, world())
    # filled from the device, which holds random numbers
    ((filled, numbers, _),) = copied
    assert filled is pinned[0]
    assert len(numbers.unique()) > 100
    copied.clear()
    launched.calls[0]()
    ((target, source, queued),) = copied
    assert launched.case == case
    assert queued
    assert target.nbytes == source.nbytes == 1000
    assert (source is pinned[0], target is pinned[0]) == (direction == "to_device", direction == "to_host")


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (HostCopyCase(direction="to_device", size_bytes=8), "cpu"),
        (HostCopyCase(direction="sideways", size_bytes=8), "cuda"),
        (HostCopyCase(direction="to_host", size_bytes=8, devices=8), "cuda"),
    ],
)
def test_what_cannot_be_copied_as_said_is_refused(case: HostCopyCase, kind: str) -> None:
    with pytest.raises(UnsupportedCaseError):
        launch_host_copy(case, world(kind))
