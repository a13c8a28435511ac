"""Copies to the host and back by what was measured."""

import numpy as np
import pytest

from profdb.cases import HostCopyCase
from profdb.lookup.host_copies import TO_DEVICE, TO_HOST, host_copies
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from spec.origin import Origin

MIB = 1 << 20
MACHINE = MachineFacts(gpu="H100")


def sample(
    size_bytes: int, *trials_s: float, direction: str = TO_HOST, origin: Origin = Origin.MEASURED
) -> Sample:
    case = HostCopyCase(direction=direction, size_bytes=size_bytes, devices=8)
    return Sample(case=case, trials_s=trials_s, origin=origin)


def test_between_sizes_below_and_above() -> None:
    samples = [
        sample(MIB, 1e-4, 1e-4),
        sample(16 * MIB, 3e-4, 4e-4, 5e-4),
        sample(MIB, 9.0, direction=TO_DEVICE),
    ]
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
