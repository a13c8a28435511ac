"""The device of this rank, and its name, memory and caches."""

import gc
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from profiler.distributed.rank_layout import RankLayout
from spec.cluster.cluster import ArchitectureSpec
from spec.errors import ConfigError

SECONDS_FOR_NVIDIA_SMI = 20

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

ASSUMED_CORE_CACHE_BYTES = 2 << 20
"""Assumption: the second-level cache of a core, half to 2 MiB on servers."""

MOST_CACHED = 0.5
"""Share of a device's memory that torch may cache, unused, between cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device of this rank: ``kind`` cuda or cpu, ``index`` of the GPU on this node, and its ``architecture``,
    None without a hardware spec."""

    kind: str
    index: int = 0
    architecture: ArchitectureSpec | None = None

    @property
    def torch_device(self) -> torch.device:
        """Returns the device for torch calls."""
        return torch.device("cuda", self.index) if self.kind == "cuda" else torch.device("cpu")

    @property
    def name(self) -> str:
        """Returns the GPU's name from the driver, or the processor's."""
        if self.kind == "cuda":
            return torch.cuda.get_device_name(self.index)
        return cpu_name()

    @property
    def identity(self) -> str:
        """Returns the GPU's UUID; "" if unknown, and on a CPU."""
        return str(self._property("uuid", ""))

    @property
    def driver_id(self) -> str:
        """Returns the GPU's name for the driver's tools, whatever CUDA_VISIBLE_DEVICES hides; "" if unknown."""
        # torch's UUID may lack the prefix that the driver's tools need.
        return f"GPU-{self.identity.removeprefix('GPU-')}" if self.identity else ""

    @property
    def memory_bytes(self) -> int:
        """Returns the memory of the whole device."""
        if self.kind == "cuda":
            return int(self._property("total_memory", 0))
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def cache_bytes(self) -> int:
        """Returns the size of the last-level cache that operands must exceed to come from memory (0: unknown, CPU)."""
        return int(self._property("L2_cache_size", 0))

    def _property(self, name: str, default: object) -> Any:
        """Returns one of torch's properties of a GPU; ``default`` on a CPU, and where this torch has none of that
        name."""
        if self.kind != "cuda":
            return default
        return getattr(torch.cuda.get_device_properties(self.index), name, default)

    @property
    def capability(self) -> tuple[int, int]:
        """Returns the CUDA compute capability; (0, 0) on a CPU."""
        return torch.cuda.get_device_capability(self.index) if self.kind == "cuda" else (0, 0)

    def synchronize(self) -> None:
        """Waits for everything queued on the device."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.index)

    def answers(self) -> bool:
        """Returns whether the device still works after an error; some errors stay until the process ends."""
        if self.kind != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.index)
            # A context with a sticky error fails at the next launch, even if synchronizing did not report it.
            return float(torch.ones(1, device=self.torch_device).sum()) == 1.0
        except RuntimeError:
            return False

    def release_memory(self) -> None:
        """Releases the cached memory, and objects that only reference cycles keep alive, after a case that did not
        fit."""
        if self.kind == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def leave_room(self) -> None:
        """Releases cached memory where it is more than MOST_CACHED. NCCL, cuDNN and the driver, which loads kernels
        at their first call, allocate outside of torch's cache and cannot empty it."""
        if self.kind == "cuda":
            # Reserved by torch's allocator, but used by no tensor.
            cached = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
            if cached > MOST_CACHED * self.memory_bytes:
                torch.cuda.empty_cache()


def choose_device(requested: str, layout: RankLayout) -> Device:
    """Returns the device of this rank; ``requested`` is cuda, cpu or auto. A Slurm task with a GPU of its own
    (--gpus-per-task=1) sees that GPU as the first.

    Raises ConfigError when a GPU is requested (auto requests one too) and none is there or usable, or when a node has
    fewer GPUs than ranks.
    """
    if requested == "cpu":
        return Device(kind="cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            where="command line",
            key="--device",
            value=requested,
            allowed="torch sees no GPU here; rehearse with --device cpu, or install a CUDA build of torch",
        )
    device_count = torch.cuda.device_count()
    # Slurm hides the node's other GPUs from such a task, whatever its local rank.
    local_rank = 0 if layout.launcher == "slurm" and device_count == 1 else layout.local_rank
    if local_rank >= device_count:
        raise ConfigError(
            where="environment",
            key="LOCAL_RANK",
            value=local_rank,
            allowed=f"below the number of GPUs of this node, {device_count}",
        )
    try:
        # The first use of the device: a GPU in exclusive mode, or with a broken driver, fails here and not during a
        # case.
        torch.cuda.set_device(local_rank)
        torch.zeros(1, device="cuda").cpu()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0][:200]
        raise ConfigError(
            where="command line",
            key="--device",
            value=requested,
            allowed=f"torch cannot use GPU {local_rank} ({reason}); rehearse with --device cpu",
        ) from error
    return Device(kind="cuda", index=local_rank)


def core_cache_bytes(caches: Path = CACHES) -> int:
    """Returns the larger of the first two levels of cache, which a core does not share, from Linux (kernel.org,
    Documentation/ABI/testing/sysfs-devices-system-cpu); ASSUMED_CORE_CACHE_BYTES where Linux does not report it."""
    sizes = []
    for cache in caches.glob("index*"):
        try:
            level, size = ((cache / name).read_text(encoding="ascii").strip() for name in ("level", "size"))
        except OSError:
            continue
        if level in ("1", "2") and size.removesuffix("K").isdecimal():
            sizes.append(1024 * int(size.removesuffix("K")))
    return max(sizes, default=ASSUMED_CORE_CACHE_BYTES)


def cpu_name() -> str:
    """Returns the model name of the processor; its architecture where the system does not report it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def nvidia_smi(field: str, device: Device) -> str:
    """Returns one field of ``nvidia-smi --query-gpu`` for a GPU; "" when the tool is absent or does not answer. The
    tool counts all GPUs of a node, torch only those in CUDA_VISIBLE_DEVICES, so the GPU is named by its UUID where
    that is known."""
    gpu_id = device.driver_id or str(device.index)
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", f"--id={gpu_id}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_FOR_NVIDIA_SMI, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
