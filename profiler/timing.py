"""Timing calls on a device: warm-up, raw trials, outliers.

A *trial* is one reading of the clock: a burst of ``count`` launches of the operation, divided by
``count``. Every trial is stored. On a GPU a trial is bracketed by two CUDA events. The burst is queued
while a spinning kernel keeps the device busy, so that the time between the events is device time and not the
host's time to issue the launches (which is measured separately, profiler.benchmarks.host).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from profiler.benchmarks.launched import Call, Stopwatch
from profiler.device import Device, core_cache_bytes
from spec.arrays import BoolArray, FloatArray

SHORTEST_TRIAL_S = 100e-6
"""A burst lasts at least this: CUDA events resolve 0.5 us (CUDA C++ API, cudaEventElapsedTime), so
the reading is good to 1 %."""

LONGEST_BURST = 100
"""Launches in one burst, below the depth of a CUDA launch queue (1024) by far."""

OUTLIER_SCORE = 3.5
"""Modified z-score beyond which a trial is flagged (Iglewicz and Hoaglin 1993, sec. 3.3)."""

LEAST_OUTLIER = 0.05

SWEEP_S = 1e-3
"""Assumption: reading twice a core's own cache takes about this long; all ranks derive the number of trials from it."""

FASTEST_CLOCK_HZ = 2.0e9
"""Assumption: no GPU runs faster, so that spinning for n cycles takes at least n / this."""

LONGEST_HOLD_S = 0.02

PERIOD_S = 0.02
"""Period of products and the work between them: about a layer of a training step."""

REST = 1.5
"""Idle time of a GPU after a burst, in lengths of the burst. Measured on an H100 (benchmarks/notes/h100.md): it may draw a
third more than its limit for some ten milliseconds, then clocks fall, and later products take up to a tenth longer; at
work for 40 % of the time it stays below its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """Number of trials: as many as fit into ``seconds``, within the two limits. With five trials one may go wrong
    without widening their middle half."""

    warmup: int = 3
    min_trials: int = 5
    max_trials: int = 20
    seconds: float = 0.05

    def trials(self, one_trial_s: float) -> int:
        """Returns the number of trials of ``one_trial_s`` seconds each."""
        # A call of no measurable time would divide by 0.
        affordable = int(self.seconds / max(one_trial_s, 1e-9))
        return min(max(affordable, self.min_trials), self.max_trials)


@dataclass(slots=True, kw_only=True)
class CpuStopwatch:
    """Reads time.perf_counter around the burst."""

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Returns the seconds of one launch (see Stopwatch)."""
        if align is not None:
            align()
        start = time.perf_counter()
        for index in range(count):
            # Sets of operands in turn: together they exceed the cache (torch_dtypes.operand_copies).
            calls[index % len(calls)]()
        return (time.perf_counter() - start) / count


@dataclass(slots=True, kw_only=True)
class ColdStopwatch:
    """CPU seconds of the calling thread, launch by launch: other processes do not lengthen them. Before each launch
    ``sweep``, twice as large as the core's own cache, is read. So the launch finds neither its operands nor its code
    in the cache, as in a training step, where as many other operations come between."""

    sweep: torch.Tensor

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Returns the seconds of one launch (see Stopwatch)."""
        if align is not None:
            align()
        launched_s = 0.0
        for index in range(count):
            # Not part of the launch's time: the clock is read after it.
            self.sweep.sum()
            start = time.thread_time()
            calls[index % len(calls)]()
            launched_s += time.thread_time() - start
        return launched_s / count


@dataclass(slots=True, kw_only=True)
class CudaStopwatch:
    """CUDA events around a burst that is queued while a spinning kernel keeps the device busy."""

    device: Device
    host_s_per_call: float = 50e-6

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Returns the device seconds of one launch (see Stopwatch)."""
        # Events on the current stream, in milliseconds.
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        self.device.synchronize()
        # Spin for one and a half times as long as issuing the burst takes, by the last burst: the device must not run
        # dry before the last launch is queued.
        hold_s = min(1.5 * count * self.host_s_per_call + 20e-6, LONGEST_HOLD_S)
        torch.cuda._sleep(int(hold_s * FASTEST_CLOCK_HZ))
        # The barrier is queued after the spin and before the event, so that ranks start together.
        if align is not None:
            align()
        begin.record()
        issue_start = time.perf_counter()
        for index in range(count):
            calls[index % len(calls)]()
        issued_s = time.perf_counter() - issue_start
        end.record()
        end.synchronize()
        # The next burst spins for as long as this one took to issue.
        self.host_s_per_call = max(issued_s / count, 1e-6)
        return float(begin.elapsed_time(end)) * 1e-3 / count


@dataclass(slots=True, kw_only=True)
class SustainedStopwatch:
    """CUDA events around the products of a continuous load: in every period of PERIOD_S products run for ``share`` of
    the time and ``between`` for the rest, which takes ``between_s`` whatever the clocks are."""

    device: Device
    between: Call
    between_s: float
    share: float
    product_s: float = 1e-3

    @classmethod
    def of(cls, device: Device, between: Call, share: float) -> "SustainedStopwatch":
        """Returns a stopwatch that has measured ``between``."""
        clock = CudaStopwatch(device=device)
        clock.burst((between,), 1, None)
        return cls(device=device, between=between, between_s=clock.burst((between,), 10, None), share=share)

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Returns the device seconds of one product (see Stopwatch). The work between products is queued as well, but
        not counted."""
        # Products of a period, by the time of one in the last burst.
        whole = max(1, round(self.share * PERIOD_S / self.product_s))
        spans = []
        for first in range(0, count, whole):
            products = range(first, min(first + whole, count))
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for index in products:
                calls[index % len(calls)]()
            end.record()
            spans.append((begin, end))
            # Products take ``share`` of the period; ``between`` fills the other part of it, also after a last,
            # shorter group.
            rest_s = len(products) * self.product_s * (1.0 - self.share) / self.share
            for _ in range(round(rest_s / self.between_s)):
                self.between()
        self.device.synchronize()
        self.product_s = sum(begin.elapsed_time(end) for begin, end in spans) * 1e-3 / count
        return self.product_s


def raise_clocks(device: Device, seconds: float = 1.0) -> None:
    """Keeps a GPU busy until it has left its idle clocks; does nothing on a CPU."""
    if device.kind != "cuda":
        return
    busy = torch.randn((4096, 4096), dtype=torch.float16, device=device.torch_device)
    end = time.monotonic() + seconds
    # Products of 0.14 TFLOP in groups of 20, so that the host is never far ahead of the device.
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(busy, busy)
        device.synchronize()


def works_alone(device: Device) -> bool:
    """Returns whether the calling thread does all the work of a launch, so that its CPU seconds are those of the
    launch."""
    return device.kind == "cpu" and torch.get_num_threads() == 1


def stopwatch_for(device: Device, *, collective: bool = False) -> Stopwatch:
    """Returns the clock of a device. Ranks that wait for each other in a collective read wall time."""
    if device.kind == "cuda":
        return CudaStopwatch(device=device)
    # Several threads share the work of a launch, or ranks wait: one thread's CPU seconds miss both.
    if collective or not works_alone(device):
        return CpuStopwatch()
    # fp32 elements of 4 bytes.
    return ColdStopwatch(sweep=torch.ones(2 * core_cache_bytes() // 4))


def burst_length(one_call_s: float) -> int:
    """Returns the launches per trial, so that a trial lasts SHORTEST_TRIAL_S."""
    return min(max(math.ceil(SHORTEST_TRIAL_S / max(one_call_s, 1e-9)), 1), LONGEST_BURST)


def launches(clock: Stopwatch, one_call_s: float) -> tuple[int, float]:
    """Returns the launches of a trial, and its seconds including what runs before each launch."""
    if isinstance(clock, ColdStopwatch):
        return 1, one_call_s + SWEEP_S
    count = burst_length(one_call_s)
    return count, one_call_s * count


def outliers(trials: FloatArray) -> BoolArray:
    """Returns a mask of the trials far from the others: modified z-score above OUTLIER_SCORE, and more than
    LEAST_OUTLIER from the median (very even trials have no meaningful outliers).

    ``trials`` is 1-D seconds of any length; fewer than three are never flagged.
    """
    if trials.shape[0] < 3:
        return np.zeros(trials.shape[0], dtype=np.bool_)
    centre = float(np.median(trials))
    deviation = np.abs(trials - centre)
    scale = float(np.median(deviation))
    apart = deviation > LEAST_OUTLIER * centre
    # More than half of the trials are equal: the z-score is undefined, and the distance alone decides.
    if scale == 0.0:
        return np.asarray(apart, dtype=np.bool_)
    # 0.6745: the median absolute deviation of a standard normal distribution.
    return np.asarray(apart & (0.6745 * deviation / scale > OUTLIER_SCORE), dtype=np.bool_)


def spread(trials: FloatArray) -> float:
    """Returns interquartile range over median: the relative width of the middle half of the trials."""
    low, middle, high = np.percentile(trials, [25.0, 50.0, 75.0])
    return float((high - low) / middle)
