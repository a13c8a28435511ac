"""Which GPU a rank takes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from profiler import device
from profiler.device import ASSUMED_CORE_CACHE_BYTES, Device, choose_device, core_cache_bytes, nvidia_smi
from profiler.ranks.meeting import RankFailedError
from profiler.ranks.rank_layout import RankLayout
from profiler.ranks.world import World, check_same_machines
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
