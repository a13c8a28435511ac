"""What a run measured, whoever ran it."""

from dataclasses import dataclass

import numpy as np

TRAIN = "train"
"""The form of what run_workload.py train wrote."""
TRACE = "torch.profiler"
REPLAY = "run"
"""The form of what run_workload.py run logged: operations one after another, nothing hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Seconds of each step counted (of a line of a log: the mean of the steps it covers), after ``warmup``
    steps or lines left out, and the most bytes of a rank that torch's allocator gave out and kept, where they
    are said. ``source`` is the file and ``form`` what wrote it. ``steps_cpu_s`` on a processor: CPU seconds
    of the busiest rank."""

    source: str
    form: str
    steps_s: tuple[float, ...]
    warmup: int
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    steps_cpu_s: tuple[float, ...] = ()

    @property
    def step_s(self) -> float:
        """Median."""
        return float(np.median(self.steps_s))

    @property
    def step_cpu_s(self) -> float | None:
        """Median; None where nobody counted."""
        return float(np.median(self.steps_cpu_s)) if self.steps_cpu_s else None

    @property
    def spread_s(self) -> tuple[float, float]:
        """Eight steps in ten lie between these."""
        low_s, high_s = np.quantile(self.steps_s, (0.1, 0.9))
        return float(low_s), float(high_s)
