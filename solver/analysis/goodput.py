"""Goodput and cost of a training run: the share of time that it trains (Young 1974; Daly 2006), days, money and energy.

Interruptions of a job come at random: a GPU fails once in its MTBF on average, so a job of n GPUs once in MTBF / n.
After one the job restarts from its last checkpoint; checkpoints cost time themselves, so there is a best interval
between them."""

from dataclasses import dataclass
from math import exp, expm1, factorial, sqrt

from spec.cluster.cluster import ClusterSpec
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.parameters import num_parameters
from spec.units import DAY_S, HOUR_S, KWH

PUBLISHED_GPUS, PUBLISHED_DAYS, PUBLISHED_INTERRUPTIONS = 16_384, 54, 419
"""Unexpected interruptions of Llama-3 405B's training (arXiv 2407.21783 sec. 3.3.4)."""

PUBLISHED_MTBF_HOURS = 24.0 * PUBLISHED_DAYS * PUBLISHED_GPUS / PUBLISHED_INTERRUPTIONS
"""Mean hours of one GPU between two interruptions: 50,700, all causes counted on GPUs."""

PUBLISHED_STORAGE_BANDWIDTH = 2e12
"""Bytes/s that the storage of the same run sustains, with 7,500 servers and peaks of 7 TB/s (arXiv 2407.21783 sec.
3.3.1). Assumption: each GPU of another run has the same share of such a storage."""

PUBLISHED_RESTART_MINUTES = 10.0
"""Assumption: minutes from a fault until the job trains again, the upper bound that MegaScale states for detecting and
diagnosing one on average, on more than 10,000 GPUs (arXiv 2402.15627 sec. 6.3). Loading a checkpoint and starting again
come on top, and depend on the framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often GPUs fail and what that costs.

    ``mtbf_hours`` of one GPU; ``restart_s`` from an interruption until the job trains again from its checkpoint;
    ``checkpoint_s`` that training waits for a checkpoint, None for its bytes at ``storage_bandwidth`` (bytes/s; None
    for the published bandwidth of as many GPUs). With ``spare_nodes`` None a spare node is always at hand; else there
    are so many, and a failed node is repaired after ``repair_hours``."""

    mtbf_hours: float = PUBLISHED_MTBF_HOURS
    restart_s: float = 60.0 * PUBLISHED_RESTART_MINUTES
    checkpoint_s: float | None = None
    storage_bandwidth: float | None = None
    spare_nodes: int | None = None
    repair_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The goodput of a job: its ``mtbf_s``, bytes and seconds of a checkpoint, the best ``interval_s`` of training
    between two, seconds from an interruption to training (``restart_s``, of which ``spare_wait_s`` for a node), and the
    ``effective`` share of all time."""

    mtbf_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    interval_s: float
    restart_s: float
    spare_wait_s: float
    effective: float


def checkpoint_bytes(model: ModelSpec, job: JobSpec) -> float:
    """Returns the bytes of a checkpoint: parameters, the optimizer's own copy of them, and its moments."""
    precision = job.precision
    moments = 2.0 if job.optimizer.startswith("adam") else 1.0
    of_each = dtype_bytes(precision.parameter) + precision.master_bytes + moments * dtype_bytes(precision.moments)
    count = num_parameters(model)
    return of_each * (count.total + count.mtp)


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Returns the best seconds of training between checkpoints (Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", FGCS 22, 2006, eq. 37; its first term is Young's, CACM 17, 1974)."""
    # Beyond that the series of eq. 37 does not hold, and Daly sets the interval to the MTBF.
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    share = checkpoint_s / (2.0 * mtbf_s)
    return sqrt(2.0 * checkpoint_s * mtbf_s) * (1.0 + sqrt(share) / 3.0 + share / 9.0) - checkpoint_s


def effective_share(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Returns the share of all time that is training, where failures also come while a checkpoint is written or read
    (Daly 2006, eq. 20: M exp(R / M) (exp((tau + delta) / M) - 1) seconds for each tau of training)."""
    if (interval_s + checkpoint_s) / mtbf_s > MOST_EXPONENT or restart_s / mtbf_s > MOST_EXPONENT:
        return 0.0
    spent = exp(restart_s / mtbf_s) * expm1((interval_s + checkpoint_s) / mtbf_s)
    # Free checkpoints are written all the time: the limit for a short interval.
    return interval_s / (mtbf_s * spent) if spent else exp(-restart_s / mtbf_s)


MOST_EXPONENT = 300.0
"""Exponent beyond which no interval is ever finished, and the share is 0."""


def spare_wait_s(spares: int, failing_per_s: float, repair_s: float) -> float:
    """Returns the mean seconds that an interruption waits for a node. The number of nodes in repair has a Poisson
    distribution (M/G/infinity queue: each interruption takes one out for ``repair_s``); where all spares are in repair
    the job waits for the first of them."""
    load = failing_per_s * repair_s
    if load > MOST_EXPONENT:
        return repair_s / (spares + 1)
    # The probability that a spare is left.
    has_spare = sum(exp(-load) * load**nodes / factorial(nodes) for nodes in range(spares))
    return max(1.0 - has_spare, 0.0) * repair_s / (spares + 1)


def goodput_of(model: ModelSpec, job: JobSpec, reliability: Reliability) -> Goodput:
    """Returns the goodput of a job. It does not depend on the step time: every plan of one world trains the same share
    of time."""
    mtbf_s = HOUR_S * reliability.mtbf_hours / job.world_size
    size = checkpoint_bytes(model, job)
    share = job.world_size / PUBLISHED_GPUS
    bandwidth = reliability.storage_bandwidth or PUBLISHED_STORAGE_BANDWIDTH * share
    write_s = size / bandwidth if reliability.checkpoint_s is None else reliability.checkpoint_s
    wait_s = 0.0
    if reliability.spare_nodes is not None:
        wait_s = spare_wait_s(reliability.spare_nodes, 1.0 / mtbf_s, HOUR_S * reliability.repair_hours)
    interval_s = best_interval_s(write_s, mtbf_s)
    restart_s = reliability.restart_s + wait_s
    return Goodput(
        mtbf_s=mtbf_s,
        checkpoint_bytes=size,
        checkpoint_s=write_s,
        interval_s=interval_s,
        restart_s=restart_s,
        spare_wait_s=wait_s,
        effective=effective_share(interval_s, write_s, restart_s, mtbf_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of a run of ``tokens``: seconds of wall clock (with interruptions if there is a goodput), hours of all
    GPUs, spare ones included, their price if one is known, and the energy of the GPUs at the watts of their hardware
    spec (0 if it has none)."""

    tokens: float
    seconds: float
    gpu_hours: float
    price: float | None
    energy_kwh: float

    @property
    def days(self) -> float:
        """Returns the days of wall clock."""
        return self.seconds / DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The terms of a run: ``tokens`` to train on, the price of a GPU for an hour, and idle spare nodes."""

    tokens: float
    price_per_gpu_hour: float | None = None
    spare_nodes: int = 0


def run_cost(
    job: JobSpec, cluster: ClusterSpec, step_s: float, terms: RunTerms, goodput: Goodput | None = None
) -> RunCost:
    """Returns the cost of a run of steps of ``step_s`` seconds. Waiting GPUs draw as much power as those that train,
    spare ones none."""
    effective = 1.0 if goodput is None else goodput.effective
    steps = terms.tokens / job.global_batch_tokens
    seconds = steps * step_s / effective if effective > 0 else float("inf")
    paid = job.world_size + terms.spare_nodes * cluster.gpus_per_node
    gpu_hours = paid * seconds / HOUR_S
    price = terms.price_per_gpu_hour
    return RunCost(
        tokens=terms.tokens,
        seconds=seconds,
        gpu_hours=gpu_hours,
        price=None if price is None else price * gpu_hours,
        energy_kwh=job.world_size * seconds * cluster.gpu.power_w / KWH,
    )
