"""Benchmark: copies between page-locked memory of the host and the device, on all devices of a node at once."""

import torch

from profdb.cases import HostCopyCase
from profiler.benchmarks.launched import Launched, UnsupportedCaseError
from profiler.distributed.world import World


def launch_host_copy(case: HostCopyCase, world: World) -> Launched:
    """Returns the copy from one to the other of two buffers of the case's bytes.

    Raises UnsupportedCaseError for an unknown direction, without a device apart from the host, and where another
    number of devices of a node copies.
    """
    if case.direction not in ("to_device", "to_host"):
        raise UnsupportedCaseError(f"direction {case.direction!r} is neither to_device nor to_host")
    if world.device.kind != "cuda":
        raise UnsupportedCaseError("a processor is its own host: there is nothing to copy between")
    if world.layout.local_size != case.devices:
        raise UnsupportedCaseError(f"{world.layout.local_size} devices of a node copy here, not {case.devices}")
    # Random numbers are made on the device: a processor takes seconds for a GiB.
    on_device = torch.randint(0, 255, (case.size_bytes,), dtype=torch.uint8, device=world.device.torch_device)
    on_host = torch.empty((case.size_bytes,), dtype=torch.uint8, pin_memory=True)
    on_host.copy_(on_device)
    source, target = (on_host, on_device) if case.direction == "to_device" else (on_device, on_host)
    return Launched(
        case=case,
        calls=(lambda: target.copy_(source, non_blocking=True),),
        implementation="torch copy_, page-locked",
        collective=world.size > 1,
    )
