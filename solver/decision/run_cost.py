"""What a whole training run takes: days, GPU-hours, money, energy."""

from dataclasses import dataclass

from solver.decision.goodput import Goodput
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.units import DAY_S, HOUR_S, KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Of ``tokens``: seconds of wall clock (with what interruptions take where goodput is asked for), hours
    of all GPUs held, spare ones included, their price where one was given, and the energy of the GPUs at
    their sheet's watts (0 where the sheet has none)."""

    tokens: float
    seconds: float
    gpu_hours: float
    price: float | None
    energy_kwh: float

    @property
    def days(self) -> float:
        """Of wall clock."""
        return self.seconds / DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """``tokens`` to train on, the price of a GPU for an hour, and nodes held idle."""

    tokens: float
    price_per_gpu_hour: float | None = None
    spare_nodes: int = 0


def run_cost(
    job: JobSpec, cluster: ClusterSpec, step_s: float, terms: Terms, goodput: Goodput | None = None
) -> RunCost:
    """A run of steps of ``step_s`` seconds; GPUs that wait draw as much as those that train, spare ones nothing."""
    effective = 1.0 if goodput is None else goodput.effective
    steps = terms.tokens / job.global_batch_tokens
    seconds = steps * step_s / effective if effective > 0 else float("inf")
    held = job.world_size + terms.spare_nodes * cluster.gpus_per_node
    gpu_hours = held * seconds / HOUR_S
    price = terms.price_per_gpu_hour
    return RunCost(
        tokens=terms.tokens,
        seconds=seconds,
        gpu_hours=gpu_hours,
        price=None if price is None else price * gpu_hours,
        energy_kwh=job.world_size * seconds * cluster.gpu.power_w / KWH,
    )
