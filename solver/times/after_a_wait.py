"""A layer in whose midst the host waits for the device: the device then idles until the host has issued something.

The host reads how many tokens each expert gets once a layer and forward (Megatron-Core token_dispatcher.py,
``_maybe_dtoh_and_synchronize``; experts.py, ``tokens_per_expert.tolist()``), and waits once more where the experts'
activation has an offset (ops.experts.mlp). Nothing is issued ahead at such a moment, so each operation after it starts
when the operation before has ended and the host has issued it, whichever is later, until the host is ahead again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """One operation for N rows: seconds of the host for it, seconds the device waits for it, the equal launches that
    both are spread over, and whether the host waits for the device before it."""

    host_s: FloatArray
    device_s: FloatArray
    launches: FloatArray
    waits: bool = False


def between_waits_s(operations: Sequence[Issued]) -> FloatArray:
    """Seconds from one wait to the next for layers one after another, of N rows; the first operation that
    waits begins the round, at every further one the host waits until the device is through. Raises ValueError
    where none waits.

    A launch runs when it is issued and the one before has ended: of n equal launches the last ends no earlier than
    the device's time after what ran before, than the first one's issue and the device's time, and than the last
    one's issue and one launch.
    """
    first = next((index for index, one in enumerate(operations) if one.waits), None)
    if first is None:
        raise ValueError("a layer in which the host never waits has no round")
    host_s = np.zeros(1)
    device_s = np.zeros(1)
    for one in (*operations[first:], *operations[:first]):
        if one.waits:
            host_s = np.maximum(host_s, device_s)
        begun_s = host_s + one.host_s / one.launches
        host_s = host_s + one.host_s
        ended_s = np.maximum(
            np.maximum(device_s, begun_s) + one.device_s, host_s + one.device_s / one.launches
        )
        device_s = np.where(one.device_s > 0.0, ended_s, device_s)
    return np.maximum(host_s, device_s)
