"""Which GPU a rank takes."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from profiler import device
from profiler.device import ASSUMED_CORE_CACHE_BYTES, Device, choose_device, core_cache_bytes, nvidia_smi
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError
from profiler.distributed.world import World, check_same_machines
from spec.errors import ConfigError


def test_a_node_with_fewer_gpus_than_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match="LOCAL_RANK"):
        choose_device("cuda", RankLayout(rank=4, size=8, local_rank=4, local_size=8))


def test_a_slurm_task_of_one_gpu_sees_it_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    task = RankLayout(rank=3, size=8, local_rank=3, local_size=8, launcher="slurm")
    assert choose_device("cuda", task).index == 0
    assert chosen == [0]
    with pytest.raises(ConfigError, match="LOCAL_RANK"):
        choose_device("cuda", replace(task, launcher="torchrun"))


def test_two_ranks_on_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(layout=RankLayout(), device=Device(kind="cpu"))
    identities = ["GPU-1", "GPU-2", "GPU-1"]
    monkeypatch.setattr(World, "gather", lambda _, word: identities if word == "" else ["H200"] * 3)
    with pytest.raises(RankFailedError, match="ranks 0 and 2 share one GPU, GPU-1"):
        check_same_machines(world)


def test_the_driver_is_asked_by_the_gpus_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES=3 makes the node's fourth GPU torch's first."""

    def ask(command: list[str], **_: object) -> SimpleNamespace:
        return SimpleNamespace(stdout=f"{command[-1]}\n")

    monkeypatch.setattr(device.subprocess, "run", ask)
    monkeypatch.setattr(Device, "identity", "5a7c01d2")
    assert nvidia_smi("driver_version", Device(kind="cuda", index=0)) == "--id=GPU-5a7c01d2"
    monkeypatch.setattr(Device, "identity", "")
    assert nvidia_smi("driver_version", Device(kind="cuda", index=2)) == "--id=2"


def test_a_core_has_the_first_two_levels_of_cache_to_itself(tmp_path: Path) -> None:
    # a Xeon as sysfs tells it: 48 and 32 KiB, 2 MiB, and 105 MiB that all cores share
    for index, (level, size) in enumerate((("1", "48K"), ("1", "32K"), ("2", "2048K"), ("3", "107520K"))):
        cache = tmp_path / f"index{index}"
        cache.mkdir()
        (cache / "level").write_text(f"{level}\n")
        (cache / "size").write_text(f"{size}\n")
    (tmp_path / "index4").mkdir()  # a machine that says nothing of it
    assert core_cache_bytes(tmp_path) == 2 << 20
    assert core_cache_bytes(tmp_path / "index3") == ASSUMED_CORE_CACHE_BYTES


@pytest.mark.parametrize(("reserved", "allocated", "emptied"), [(90, 10, 1), (90, 60, 0), (40, 0, 0)])
def test_what_nobody_uses_is_given_back_before_others_need_it(
    reserved: int, allocated: int, emptied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 140 GB: NCCL, cuDNN and the driver cannot empty torch's cache."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: allocated)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    monkeypatch.setattr(Device, "memory_bytes", 140)
    Device(kind="cuda").leave_room()
    Device(kind="cpu").leave_room()
    assert len(calls) == emptied


def test_a_cache_is_emptied_of_what_only_cycles_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of a backward refers to itself: its tensors go with Python's own collection, not before."""

    class Tensors:
        def __init__(self) -> None:
            self.itself = self

    held = weakref.ref(Tensors())
    there: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: there.append(held() is not None))
    gc.disable()
    try:
        Device(kind="cpu").release_memory()
        assert (held() is not None, there) == (True, [])
        Device(kind="cuda").release_memory()
    finally:
        gc.enable()
    assert there == [False]


@pytest.mark.parametrize(
    ("sum_is", "problem", "answers"),
    [
        (1.0, None, True),
        (0.0, None, False),
        (1.0, RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (1.0, torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
    ],
)
@pytest.mark.parametrize("at", ["synchronize", "ones"])
def test_a_device_answers_when_it_has_finished_and_can_still_count(
    at: str, sum_is: float, problem: Exception | None, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize(_: int) -> None:
        if problem and at == "synchronize":
            raise problem

    def ones(count: int, device: torch.device) -> torch.Tensor:
        assert (count, device) == (1, torch.device("cuda", 3))
        if problem and at == "ones":
            raise problem
        return torch.full((1,), sum_is)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch, "ones", ones)
    assert Device(kind="cuda", index=3).answers() is answers
    assert Device(kind="cpu").answers()
