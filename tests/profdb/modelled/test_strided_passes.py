"""Passes over strided or broadcast operands against the measured kernel they follow from."""

from dataclasses import replace
from pathlib import Path

import pytest

from ops.kernels import bytes_moved_per_element
from profdb.modelled.memory_bound import memory_bound_seconds, streaming_seconds
from profdb.modelled.strided_passes import STRIDED, excess_seconds
from spec.arrays import floats
from spec.cluster.reader import read_cluster

ROOT = Path(__file__).resolve().parents[3]
H200 = read_cluster("h200", root=ROOT).gpu


def test_a_broadcast_pass_takes_what_was_measured() -> None:
    """PyTorch's prelu, 1024 x 10240 in fp16, 1.18 TB/s on an H200 (TileOPs pull request 500): one pass that
    reads and writes two bytes, as each pass of the limits does."""
    elements = floats([1024 * 10240])
    passes = STRIDED["clamp_glu_unfused", "forward"].passes
    excess = excess_seconds(H200, "clamp_glu_unfused", "forward", elements, "fp16")
    streamed = streaming_seconds(H200, elements * 4.0)
    assert (streamed + excess / passes)[0] == pytest.approx(4.0 * 1024 * 10240 / 1.18e12, rel=0.01)


def test_passes_that_stream_longer_than_they_compute_take_no_longer() -> None:
    """On a memory slow enough the arithmetic hides; a kernel of contiguous operands has none to hide."""
    elements = floats([2**28])
    slow = replace(H200, memory_bandwidth=H200.memory_bandwidth / 10.0)
    for gpu, kernel in ((H200, "swiglu_unfused"), (slow, "clamp_glu_unfused")):
        for direction in ("forward", "backward"):
            per_element = bytes_moved_per_element(kernel, backward=direction == "backward", dtype="bf16")
            streamed = streaming_seconds(gpu, elements * per_element)
            assert memory_bound_seconds(gpu, kernel, direction, elements, "bf16")[0] == streamed[0]
    slower = memory_bound_seconds(H200, "clamp_glu_unfused", "backward", elements, "bf16")[0]
    assert slower > 1.5 * streaming_seconds(H200, elements * 30.0)[0]
