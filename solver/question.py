"""What a search or a price is asked about."""

from dataclasses import dataclass

from solver.calibrate.factors import Calibration
from solver.times.op_times import Pricer
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which model, under which job, on which cluster, priced by which book; ``calibration`` holds the factors
    of the user's cluster where they are asked for."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    pricer: Pricer
    calibration: Calibration | None = None
