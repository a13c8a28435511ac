"""What a training run takes: the share of its time that it trains (Young 1974; Daly 2006), days, money and energy.

Interruptions of a job come at random, each GPU once in its MTBF, so a job of n GPUs once in MTBF / n.
"""

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
"""Hours of one GPU between two of them: 50,700, all causes counted on GPUs."""

PUBLISHED_STORAGE_BANDWIDTH = 2e12
"""Bytes/s that the same run's storage of 7,500 servers sustains, peaks of 7 TB/s aside (arXiv 2407.21783 sec.
3.3.1). Assumption: each GPU of another run has the same share of such a storage."""

PUBLISHED_RESTART_MINUTES = 10.0
"""Assumption: from a fault to training again, what MegaScale (arXiv 2402.15627 sec. 6.3) says that detecting
and diagnosing one takes it at most on average, on more than 10,000 GPUs; loading a checkpoint and starting
again come on top, and hang on the framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often GPUs fail and what it costs: ``mtbf_hours`` of one GPU; ``restart_s`` from an interruption
    until the job trains again from its checkpoint; ``checkpoint_s`` that training waits for each checkpoint,
    None: its bytes at ``storage_bandwidth`` bytes/s, None: the published bandwidth for as many GPUs. With
    ``spare_nodes`` None a spare is always at hand; else so many are, and a node comes back ``repair_hours``
    after it failed."""

    mtbf_hours: float = PUBLISHED_MTBF_HOURS
    restart_s: float = 60.0 * PUBLISHED_RESTART_MINUTES
    checkpoint_s: float | None = None
    storage_bandwidth: float | None = None
    spare_nodes: int | None = None
    repair_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """``mtbf_s`` of the job, bytes of a checkpoint and seconds it takes, the best ``interval_s`` of training
    between two, seconds from an interruption to training (``restart_s``, of which ``spare_wait_s`` for a
    node), and the share of all time that is ``effective``."""

    mtbf_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    interval_s: float
    restart_s: float
    spare_wait_s: float
    effective: float


def checkpoint_bytes(model: ModelSpec, job: JobSpec) -> float:
    """Bytes from which training goes on: parameters, the optimizer's own copy of them and its moments."""
    precision = job.precision
    moments = 2.0 if job.optimizer.startswith("adam") else 1.0
    of_each = dtype_bytes(precision.parameter) + precision.master_bytes + moments * dtype_bytes(precision.moments)
    counted = num_parameters(model)
    return of_each * (counted.total + counted.mtp)


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Seconds of training between checkpoints (Daly, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", FGCS 22, 2006, eq. 37; its first term is Young's, CACM 17, 1974)."""
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    share = checkpoint_s / (2.0 * mtbf_s)
    return sqrt(2.0 * checkpoint_s * mtbf_s) * (1.0 + sqrt(share) / 3.0 + share / 9.0) - checkpoint_s


def effective_share(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of all time that is training, where failures come at random also while a checkpoint is written or
    read (Daly 2006, eq. 20: M exp(R / M) (exp((tau + delta) / M) - 1) seconds for each tau of training)."""
    if (interval_s + checkpoint_s) / mtbf_s > MOST_EXPONENT or restart_s / mtbf_s > MOST_EXPONENT:
        return 0.0
    spent = exp(restart_s / mtbf_s) * expm1((interval_s + checkpoint_s) / mtbf_s)
    # A checkpoint that takes no time is taken all the time: the limit of a short interval.
    return interval_s / (mtbf_s * spent) if spent else exp(-restart_s / mtbf_s)


MOST_EXPONENT = 300.0
"""Beyond it nothing is ever finished."""


def spare_wait_s(spares: int, failing_per_s: float, repair_s: float) -> float:
    """Seconds that an interruption waits for a node on average: nodes in repair are Poisson distributed
    (M/G/infinity, each interruption takes one out for ``repair_s``), and where all spares are among them the
    first of them to come back is waited for."""
    load = failing_per_s * repair_s
    if load > MOST_EXPONENT:
        return repair_s / (spares + 1)
    fewer = sum(exp(-load) * load**nodes / factorial(nodes) for nodes in range(spares))
    return max(1.0 - fewer, 0.0) * repair_s / (spares + 1)


def goodput_of(model: ModelSpec, job: JobSpec, reliability: Reliability) -> Goodput:
    """Returns the goodput of a job, whose steps take no part in it: every plan of one world trains the same
    share of its time."""
    mtbf_s = HOUR_S * reliability.mtbf_hours / job.world_size
    size = checkpoint_bytes(model, job)
    share = job.world_size / PUBLISHED_GPUS
    bandwidth = reliability.storage_bandwidth or PUBLISHED_STORAGE_BANDWIDTH * share
    written_s = size / bandwidth if reliability.checkpoint_s is None else reliability.checkpoint_s
    wait_s = 0.0
    if reliability.spare_nodes is not None:
        wait_s = spare_wait_s(reliability.spare_nodes, 1.0 / mtbf_s, HOUR_S * reliability.repair_hours)
    interval_s = best_interval_s(written_s, mtbf_s)
    restart_s = reliability.restart_s + wait_s
    return Goodput(
        mtbf_s=mtbf_s,
        checkpoint_bytes=size,
        checkpoint_s=written_s,
        interval_s=interval_s,
        restart_s=restart_s,
        spare_wait_s=wait_s,
        effective=effective_share(interval_s, written_s, restart_s, mtbf_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Returns what ``tokens`` take: seconds of wall clock (with what interruptions take where goodput is asked for),
    hours of all GPUs held, spare ones included, their price where one was given, and the energy of the GPUs at their
    sheet's watts (0 where the sheet has none)."""

    tokens: float
    seconds: float
    gpu_hours: float
    price: float | None
    energy_kwh: float

    @property
    def days(self) -> float:
        """Days of wall clock."""
        return self.seconds / DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """``tokens`` to train on, the price of a GPU for an hour, and nodes held idle."""

    tokens: float
    price_per_gpu_hour: float | None = None
    spare_nodes: int = 0


def run_cost(
    job: JobSpec, cluster: ClusterSpec, step_s: float, terms: RunTerms, goodput: Goodput | None = None
) -> RunCost:
    """Returns a run of steps of ``step_s`` seconds; GPUs that wait draw as much as those that train, spare
    ones nothing."""
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
