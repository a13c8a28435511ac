"""Copies to a host and Adam on it take what was published of the machines they were measured on."""

import numpy as np
import pytest

from profdb.modelled.offload import RELATIVE_STD, host_transfer_s, host_update_s
from spec.arrays import floats, ints
from spec.cluster.cluster import HostSpec
from spec.origin import Origin

DGX_2 = HostSpec(link_bandwidth=16e9, memory_bandwidth=256e9, links=8)


def test_adam_on_a_dgx_2() -> None:
    """arXiv 2101.06840, table 4: 1.03 s for 4 and 2.57 s for 10 billion parameters."""
    told = host_update_s(DGX_2, ints([4_000_000_000, 10_000_000_000]), 1)
    assert told.seconds == pytest.approx([1.03, 2.57], rel=0.005)
    assert (told.origin == int(Origin.MODELLED)).all()
    assert (told.relative_std == RELATIVE_STD).all()


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
