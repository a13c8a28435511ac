"""Copies to a host and Adam on it: as measured, else what was published of the machines they were measured on."""

import numpy as np
import pytest

from profdb.cases import HostCopyCase
from profdb.host_copies import MODEL_STD, TO_DEVICE, TO_HOST, host_copies, host_transfer_s, host_update_s
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from spec.arrays import floats, ints
from spec.cluster.cluster import HostSpec
from spec.origin import Origin

MIB = 1 << 20
MACHINE = MachineFacts(gpu="H100")


def sample(size_bytes: int, *trials_s: float, direction: str = TO_HOST, origin: Origin = Origin.MEASURED) -> Sample:
    case = HostCopyCase(direction=direction, size_bytes=size_bytes, devices=8)
    return Sample(case=case, trials_s=trials_s, origin=origin)


def test_between_sizes_below_and_above() -> None:
    samples = [sample(MIB, 1e-4, 1e-4), sample(16 * MIB, 3e-4, 4e-4, 5e-4), sample(MIB, 9.0, direction=TO_DEVICE)]
    copies = host_copies(ProfileDatabase(machine=MACHINE, samples=samples))
    assert copies is not None
    priced = copies.of(TO_HOST, np.array([0.0, MIB / 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB]), 8)
    assert priced is not None
    # 1e-4 to 4e-4 s over four doublings: half of the way in logarithms is 2e-4; four times the largest takes
    # four times as long
    assert priced.seconds == pytest.approx([0.0, 1e-4, 1e-4, 2e-4, 4e-4, 16e-4])
    measured, beyond = int(Origin.MEASURED), int(Origin.EXTRAPOLATED)
    assert priced.origin.tolist() == [beyond, beyond, measured, measured, measured, beyond]
    assert priced.relative_std[4] == pytest.approx(np.std([3, 4, 5]) / 4)
    assert copies.of(TO_HOST, np.array([1.0]), 4) is None


def test_what_was_modelled_or_failed_is_no_measurement() -> None:
    failed = Sample(case=HostCopyCase(direction=TO_HOST, size_bytes=8), trials_s=(), status="failed")
    samples = [failed, sample(MIB, 1.0, origin=Origin.MODELLED)]
    assert host_copies(ProfileDatabase(machine=MACHINE, samples=samples)) is None
    assert host_copies(ProfileDatabase(machine=MACHINE, samples=[])) is None


DGX_2 = HostSpec(link_bandwidth=16e9, memory_bandwidth=256e9, links=8)


def test_adam_on_a_dgx_2() -> None:
    """arXiv 2101.06840, table 4: 1.03 s for 4 and 2.57 s for 10 billion parameters."""
    told = host_update_s(DGX_2, ints([4_000_000_000, 10_000_000_000]), 1)
    assert told.seconds == pytest.approx([1.03, 2.57], rel=0.005)
    assert (told.origin == int(Origin.MODELLED)).all()
    assert (told.relative_std == MODEL_STD).all()


def test_ranks_share_the_memory_and_a_faster_one_is_done_sooner() -> None:
    elements = ints([1_000_000, 3_000_000])
    one = host_update_s(DGX_2, elements, 1).seconds
    assert host_update_s(DGX_2, elements, 16).seconds == pytest.approx(16 * one)
    twice = HostSpec(link_bandwidth=16e9, memory_bandwidth=512e9, links=8)
    assert host_update_s(twice, elements, 1).seconds == pytest.approx(one / 2)
    assert one[1] == pytest.approx(3 * one[0])


def test_copies_over_pcie_5_and_gpus_that_share_a_link() -> None:
    """nvbandwidth, host_to_device_memcpy_ce: 55.63 GB/s over PCIe 5.0 x16, 63.0 GB/s in 128b/130b."""
    host = HostSpec(link_bandwidth=63.0e9, memory_bandwidth=512e9, links=4)
    told = host_transfer_s(host, floats([0.0, 55.63e9]), 4)
    assert told.seconds == pytest.approx([0.0, 1.0])
    assert host_transfer_s(host, floats([55.63e9]), 8).seconds == pytest.approx([2.0])
    assert np.isfinite(told.relative_std).all()
