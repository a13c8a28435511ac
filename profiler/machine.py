"""The machine on which samples are measured, its hardware spec, and the file that its samples go to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from profdb.cases import GemmCase, GroupedGemmCase
from profdb.sample import MachineFacts, Sample
from profdb.store.data_file import load_profile
from profiler.device import nvidia_smi
from profiler.distributed.world import World
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import cluster_names, read_cluster

CPU_CLUSTER = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """The hardware spec of this machine, and its file's stem."""

    stem: str
    cluster: ClusterSpec


def find_hardware_spec(device_name: str, kind: str, root: Path) -> HardwareSpec | None:
    """Returns the hardware spec under ``root``/configs/clusters whose GPU the driver calls ``device_name``, or
    ``cpu`` on a processor; None when there is none."""
    for stem in cluster_names(root):
        cluster = read_cluster(stem, root=root)
        # Driver names are exact: variants of one GPU (PCIe, SXM) have specs of their own.
        if (kind == "cpu" and stem == CPU_CLUSTER) or device_name in cluster.gpu.device_names:
            return HardwareSpec(stem=stem, cluster=cluster)
    return None


def domain_of_spec(hardware: HardwareSpec | None, ranks_per_node: int) -> int:
    """Returns the ranks of the hardware spec's scale-up domain where it divides a node (PCIe below each of two
    processors), else 0: a node."""
    ranks = hardware.cluster.scale_up_ranks if hardware else 0
    return ranks if 0 < ranks < ranks_per_node and ranks_per_node % ranks == 0 else 0


def machine_facts(world: World, hardware: HardwareSpec | None, date: str) -> MachineFacts:
    """Returns the machine as device, driver and torch report it. ``gpu`` is the name in the hardware spec where there
    is one, so that measured and modelled samples of one GPU merge; else the driver's."""
    device = world.device
    on_gpu = device.kind == "cuda"
    return MachineFacts(
        gpu=hardware.cluster.gpu.name if hardware else device.name,
        memory_bytes=device.memory_bytes,
        nodes=world.layout.nodes,
        gpus_per_node=world.layout.local_size,
        driver=nvidia_smi("driver_version", device) if on_gpu else "",
        torch=str(torch.__version__),
        nccl=".".join(str(part) for part in torch.cuda.nccl.version()) if on_gpu else "",  # type: ignore[no-untyped-call]
        date=date,
        cluster=hardware.stem if hardware else "",
    )


def with_best_flops(machine: MachineFacts, samples: Iterable[Sample]) -> MachineFacts:
    """Returns the facts with the best FLOP/s that any sample of each dtype reached."""
    best: dict[str, float] = dict(machine.best_flops)
    for sample in samples:
        flops = flops_of(sample)
        if sample.status == "ok" and flops > 0.0:
            dtype = str(getattr(sample.case, "dtype_in", ""))
            best[dtype] = max(best.get(dtype, 0.0), flops / sample.median_s)
    return replace(machine, best_flops=best)


def flops_of(sample: Sample) -> float:
    """Returns 2 m k n of matrix products; 0 for everything else (attention does not count masked work)."""
    case = sample.case
    if isinstance(case, GemmCase):
        return 2.0 * case.batch * case.m * case.k * case.n
    return 2.0 * case.m * case.k * case.n if isinstance(case, GroupedGemmCase) else 0.0


# The default output of a run: never a profile of another machine, and for a rehearsal never one with real times.

FOLDER = Path("prof_data")
REHEARSAL = FOLDER / "cpu.pt"
DEFAULT = FOLDER / "data.pt"


def default_output(kind: str, name: str, cluster: ClusterSpec | None) -> Path:
    """Returns the profile that a run on the device ``name`` (``kind`` cuda or cpu) adds to: data.pt when that is of
    this GPU or absent, else a file named after the GPU; for a processor always its own.

    Raises ProfileError when data.pt cannot be read.
    """
    if kind == "cpu":
        return REHEARSAL
    # Profiles name a GPU as its hardware spec does.
    gpu = cluster.gpu.name if cluster else name
    if not DEFAULT.exists() or load_profile(DEFAULT).machine.gpu == gpu:
        return DEFAULT
    return FOLDER / f"{cluster.name if cluster else file_stem(name)}.pt"


def file_stem(name: str) -> str:
    """Returns the name of a GPU as a file's: letters, digits and single dashes."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return "-".join(words) or "gpu"
