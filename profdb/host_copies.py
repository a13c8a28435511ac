"""Copies between a device and its host, and the optimizer's step on the host: measured, else from a hardware spec.

A curve applies to the number of devices of a node that copied while it was measured. Between sizes the time is
interpolated, both in logarithms; below the smallest size the time is constant (that of any copy), above the largest
the rate is.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profdb.cases import Family, HostCopyCase
from profdb.queries import TimeEstimate
from profdb.sample import ProfileDatabase
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import HostSpec
from spec.origin import Origin

TO_DEVICE, TO_HOST = "to_device", "to_host"

# NVIDIA nvbandwidth, host_to_device_memcpy_ce: 55.63 GB/s of page-locked memory over PCIe 5.0 x16, whose 32 GT/s
# in 128b/130b are 63.0 GB/s. Assumption: the same share on other generations and NVLink-C2C.
LINK_SHARE = 55.63 / 63.0

# Parameters per second for each byte per second of the memory. arXiv 2101.06840, table 4: CPU-Adam takes 1.03 s
# for 4 and 2.57 s for 10 billion parameters on a DGX-2 (two Xeon Platinum 8168, six channels of DDR4-2666
# each: 256 GB/s), 43 % of its rate at 28 bytes each (fp32: parameter and both moments read and written, the
# gradient read). Assumption: the same share of other memories.
ADAM_PER_BYTE = 10.0e9 / 2.57 / 256e9

MODEL_STD = 0.25  # Assumption: placement of memory among the processors is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCurve:
    """Seconds, and their relative standard deviation, by bytes, ascending; 1-D of one length."""

    size_bytes: FloatArray
    seconds: FloatArray
    relative_std: FloatArray

    def at(self, size_bytes: FloatArray) -> TimeEstimate:
        """Returns the times of copies of these sizes; 0 for nothing."""
        sizes = np.maximum(size_bytes, 1.0)
        # np.interp is constant outside the sizes, so the factor below continues the largest size's rate.
        logs = np.interp(np.log(sizes), np.log(self.size_bytes), np.log(self.seconds))
        seconds = np.exp(logs) * np.maximum(sizes / self.size_bytes[-1], 1.0)
        within = (sizes >= self.size_bytes[0]) & (sizes <= self.size_bytes[-1])
        return TimeEstimate(
            seconds=np.where(size_bytes > 0, seconds, 0.0),
            relative_std=np.interp(np.log(sizes), np.log(self.size_bytes), self.relative_std),
            origin=np.where(within, int(Origin.MEASURED), int(Origin.EXTRAPOLATED)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """Measured curves by direction and number of devices of a node that copy at the same time."""

    curves: Mapping[tuple[str, int], CopyCurve]

    def of(self, direction: str, size_bytes: FloatArray, devices: int) -> TimeEstimate | None:
        """Returns the times of copies of these sizes while ``devices`` devices copy; None where that was not
        measured."""
        curve = self.curves.get((direction, devices))
        return None if curve is None else curve.at(np.asarray(size_bytes, dtype=np.float64))


def host_copies(profile: ProfileDatabase) -> HostCopies | None:
    """Returns the curves of a profile; None where it has measured none."""
    trials: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in profile.measured_samples(Family.HOST_COPY):
        case = sample.case
        assert isinstance(case, HostCopyCase)
        trials[case.direction, case.devices][case.size_bytes] += sample.trials_s
    curves = {key: _curve(sizes) for key, sizes in trials.items()}
    return HostCopies(curves=curves) if curves else None


def _curve(sizes: Mapping[int, list[float]]) -> CopyCurve:
    ordered = sorted(sizes)
    middle = np.array([np.median(sizes[size]) for size in ordered])
    spread = np.array([np.std(sizes[size]) for size in ordered])
    return CopyCurve(size_bytes=np.array(ordered, dtype=np.float64), seconds=middle, relative_std=spread / middle)


def host_transfer_s(host: HostSpec, size_bytes: FloatArray, gpus: int) -> TimeEstimate:
    """Returns the time of ``size_bytes`` in one direction while all ``gpus`` GPUs of a node copy."""
    return _modelled(np.asarray(size_bytes, dtype=np.float64) / (host.link_per_gpu(gpus) * LINK_SHARE))


def host_update_s(host: HostSpec, elements: IntArray, ranks: int) -> TimeEstimate:
    """Returns the time of Adam over ``elements`` parameters of each of ``ranks`` ranks that share a node's memory."""
    return _modelled(elements * ranks / (host.memory_bandwidth * ADAM_PER_BYTE))


def _modelled(seconds: FloatArray) -> TimeEstimate:
    return TimeEstimate(
        seconds=seconds,
        relative_std=np.full(len(seconds), MODEL_STD),
        origin=np.full(len(seconds), int(Origin.MODELLED), dtype=np.int64),
    )
