"""What a plan costs, in plain numbers: what searches rank, reports print and files hold.

``Answer`` is one plan with its cost, ``grouped`` puts those together that differ in nothing but how far ZeRO
shards, and ``check_believable`` refuses what no machine could give.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np

from ops.block import model_ops
from ops.layout import Layout
from ops.op import Attention, BatchedGemm, GroupedGemm
from ops.recompute import Recompute
from ops.roles import Module
from solver.estimate import StepTime
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import Plan
from solver.times.step_parts import CARRIED
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError, ProfileError
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.units import TERA


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestStage:
    """Stages ``first`` to ``last`` (from 1) of ``stages``, which are alike; ``layers`` decoder layers and
    ``predictions`` prediction blocks in each, and whether they hold the embedding or the head."""

    first: int
    last: int
    stages: int
    layers: int
    predictions: int
    embedding: bool
    head: bool

    def words(self) -> str:
        """Returns ``stage 16 of 16: 7 layers, head``."""
        if self.stages == 1:
            which = "the only stage"
        elif self.first == self.last:
            which = f"stage {self.first} of {self.stages}"
        else:
            which = f"stages {self.first} to {self.last} of {self.stages}, all alike"
        contents = [f"{self.layers} layer{'s' * (self.layers != 1)}"]
        contents += [f"{self.predictions} prediction block{'s' * (self.predictions > 1)}"] * bool(self.predictions)
        contents += ["embedding"] * self.embedding + ["head"] * self.head
        return f"{which}: {', '.join(contents)}"


def slowest_stage(model: ModelSpec, table: StageTable, row: int, stages: int) -> SlowestStage:
    """Returns row ``row`` of the stage table of a plan with ``stages`` pipeline stages."""
    kinds = len(model.blocks)
    predictions = sum(int(column[row]) for at, column in enumerate(table.layers) if model.blocks[at % kinds].block.mtp)
    first = int(table.position[row])
    return SlowestStage(
        first=first + 1,
        last=first + int(table.count[row]),
        stages=stages,
        layers=sum(int(column[row]) for column in table.layers) - predictions,
        predictions=predictions,
        embedding=bool(table.embedding[row]),
        head=bool(table.head[row]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One plan with its cost.

    Eight steps in ten lie between ``interval_low_s`` and ``interval_high_s`` (solver.problem.result).
    ``parts_s`` sum to ``step_s`` and so do ``origins_s`` (by origin name); ``standard_error_s`` of the
    step; ``memory_bytes`` the named terms of the worst stage, which sum to ``allocated_bytes``;
    ``needed_bytes`` the least a device must have for it, ``host_bytes`` what its host holds instead; ``tgs``
    tokens per GPU per second; ``mfu`` a fraction; ``errors_s`` the standard error that each family of
    curves brings in, which two plans share. ``parts_s`` are of the ``slowest`` stage. ``also_zero_sizes`` and, one
    of each, ``also_zero_stages``: plans of these that differ in nothing else take at most 1 % longer.
    """

    plan: Plan
    step_s: float
    standard_error_s: float
    parts_s: dict[str, float]
    origins_s: dict[str, float]
    memory_bytes: dict[str, float]
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    needed_bytes: float
    tgs: float
    mfu: float
    errors_s: dict[str, float]
    slowest: SlowestStage
    host_bytes: float = 0.0
    interval_low_s: float = 0.0
    interval_high_s: float = 0.0
    also_zero_sizes: tuple[int, ...] = ()
    also_zero_stages: tuple[int, ...] = ()

    def label(self) -> str:
        """Returns the plan's words, and those of the plans it stands for."""
        shards = sorted(zip(self.also_zero_stages, self.also_zero_sizes, strict=True))
        also = ", ".join(self._sharded(stage, size) for stage, size in shards)
        return f"{self.plan.label()} (or {also})" if also else self.plan.label()

    def _sharded(self, stage: int, size: int) -> str:
        """The words of a plan that differs in these, its stage where that differs too."""
        if size == 1:
            return "no zero"
        return f"zero{size}" if stage == self.plan.zero_stage else f"zero{stage}/{size}"


ABOUT_AS_FAST = 1.01
"""Far below what a prediction can tell apart (solver.problem.result)."""


@dataclass(slots=True, kw_only=True)
class Alike:
    """The fastest plan, its place in the ranking, and the others that it stands for."""

    place: int
    plan: Plan
    step_s: float
    others: list[Plan] = field(default_factory=list)


def group_alike(ranked: Iterable[tuple[int, float, Plan]], most: int) -> list[Alike]:
    """Returns the first ``most`` groups of plans in order of their step; ``ranked`` gives place, seconds and plan."""
    groups: list[Alike] = []
    newest: dict[Plan, Alike] = {}
    for place, step_s, plan in ranked:
        if len(groups) == most and step_s > ABOUT_AS_FAST * groups[-1].step_s:
            break
        leader = next((newest[key] for key in _keys(plan) if key in newest), None)
        if leader is not None and step_s <= ABOUT_AS_FAST * leader.step_s:
            leader.others.append(plan)
        elif len(groups) < most:
            groups.append(Alike(place=place, plan=plan, step_s=step_s))
            newest.update(dict.fromkeys(_keys(plan), groups[-1]))
    return groups


def _keys(plan: Plan) -> tuple[Plan, ...]:
    """The plan without its zero_size, as itself and as one that shards nothing, of whatever ZeRO stage."""
    alone = replace(plan, zero_size=1, zero_stage=0)
    return (replace(plan, zero_size=0), alone) if plan.zero_size > 1 else (alone,)


SECONDS = ("step_s", "standard_error_s", "interval_low_s", "interval_high_s")
TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes", "tgs", "mfu")


def answer_values(answer: Answer) -> dict[str, Any]:
    """Returns Column -> value: the plan's keys as written and dp, seconds of the step and its parts, bytes by
    term and in all, tokens per GPU and second, MFU."""
    return {
        **asdict(answer.plan.written),
        "dp": answer.plan.dp,
        **{name: getattr(answer, name) for name in SECONDS},
        **{f"{part}_s": value for part, value in answer.parts_s.items()},
        **{f"{term}_bytes": value for term, value in answer.memory_bytes.items()},
        **{total: getattr(answer, total) for total in TOTALS},
    }


def check_believable(answers: Iterable[Answer], source: str) -> None:
    """Raises ProfileError, which names the times' ``source``, for a step that takes no finite time, an interval
    that is not finite, or more than the GPUs' peak FLOP/s."""
    for answer in answers:
        finite = isfinite(answer.step_s) and isfinite(answer.interval_low_s) and isfinite(answer.interval_high_s)
        if not finite or answer.step_s <= 0.0:
            raise ProfileError(
                f"{source}: its times give {answer.plan.label()} a step of {answer.step_s:g} s, "
                f"{answer.interval_low_s:g} to {answer.interval_high_s:g}: no time that can be; "
                "look at it with python -m profdb show"
            )
        if answer.mfu > 1.0:
            raise ProfileError(
                f"{source}: its times give {answer.plan.label()} {100 * answer.mfu:.0f} % of the GPUs' peak FLOP/s, "
                "which no GPU reaches: they are of another GPU or damaged; look at it with python -m profdb show"
            )


ROOMY_SHARE = 0.85
"""Of the usable memory: engineers leave about so much to fragmentation, longer sequences and one more communicator."""


def roomiest_fast(front: Sequence[Answer], usable_bytes: float, share: float = ROOMY_SHARE) -> Answer | None:
    """Returns the fastest plan that needs at most ``share`` of the memory, of a whole Pareto ``front``: whatever is
    faster needs more, so it is on the front. None where every plan needs more."""
    fitting = [answer for answer in front if answer.needed_bytes <= share * usable_bytes]
    return min(fitting, key=lambda answer: answer.step_s, default=None)


def is_tie(answer: Answer, other: Answer) -> bool:
    """Returns whether the steps of two plans differ by less than the 80 % interval of their difference."""
    return abs(other.step_s - answer.step_s) < EIGHTY_PERCENT * paired_error_s(answer, other)


def paired_error_s(answer: Answer, other: Answer) -> float:
    """Standard error of the difference of two plans in seconds: what both take from one family of curves errs alike
    and cancels."""
    families = answer.errors_s.keys() | other.errors_s.keys()
    return sqrt(sum((answer.errors_s.get(f, 0.0) - other.errors_s.get(f, 0.0)) ** 2 for f in families))


# Half of an 80 % interval of a normal distribution, in standard deviations.
EIGHTY_PERCENT = 1.2816
# Fitted: to the steps of published runs, all datasets alike (benchmarks/interval_widths.py, which also
# chooses them without each dataset and scores it). curves: of the standard error that the curves state;
# formulas: of every step. carried is not chosen: a constant's stated error (profdb.modelled.slow_kernels)
# is that of all that rests on it.
WIDTHS: dict[str, float] = {
    "curves": 0.5,
    "carried": 1.0,
    "formulas": 0.04,
    "network": 0.3,
    "experts": 0.1,
    "narrow": 0.03,
    "host": 0.55,
    "attention": 0.3,
    "long_attention": 0.5,
    "waiting": 0.3,
}
# Fitted: to the same, log(measured / predicted) of the middle run of the middle dataset: what nobody prices.
UNPRICED = 0.045

# Tokens of the longest sequences of which flash kernels' rates were published
# (profdb.modelled.flash_generations) or, on a serving engine's GPUs, measured: longer ones are predicted by going
# on from there.
LONGEST_MEASURED = 16384

NETWORK = ("tp_comm", "cp_comm", "ep_comm", "wp_comm", "dp_comm", "pp_comm", "offload")
EXPERTS = ("grouped_gemm", "ep_comm")
PRODUCTS = ("gemm", "grouped_gemm")


CAUSES: dict[str, tuple[str, ...]] = {
    "network": NETWORK,
    "experts": EXPERTS,
    "host": ("host",),
    "waiting": ("bubble",),
}
"""Parts of a step by what may make them wrong together; products and attention by what they are of."""


def causes(
    parts: Mapping[str, FloatArray],
    error_s: FloatArray,
    carried_s: FloatArray,
    *,
    low_precision: bool,
    attended: int,
) -> dict[str, FloatArray]:
    """Shares of the step by cause, keys of WIDTHS, from its ``parts`` in seconds: what waits for a network, experts and
    their exchange, products of ``low_precision``, the host, attention to ``attended`` tokens, waiting in a pipeline;
    "curves" is the curves' own relative error, "carried" that of constants from another GPU or shape, which is part of
    the standard error ``error_s`` of the step."""
    longer = attended > LONGEST_MEASURED
    acting = CAUSES | {
        "narrow": PRODUCTS if low_precision else (),
        "attention": () if longer else ("attention",),
        "long_attention": ("attention",) if longer else (),
    }
    step_s = sum(parts.values(), start=np.zeros_like(error_s))
    seconds = {"curves": np.sqrt(np.maximum(error_s**2 - carried_s**2, 0.0)), "carried": carried_s}
    for cause, names in acting.items():
        seconds[cause] = sum((parts[name] for name in names), start=np.zeros_like(step_s))
    shares = {"formulas": np.ones_like(step_s)}
    for cause, cause_s in seconds.items():
        shares[cause] = np.divide(cause_s, step_s, out=np.zeros_like(step_s), where=step_s > 0)
    return shares


def causes_of(job: JobSpec, cost: StepTime) -> dict[str, FloatArray]:
    """Returns the shares of priced steps by cause."""
    carried_s = cost.std_s.get(CARRIED, np.zeros_like(cost.step_s))
    low_precision = job.precision.linear != job.precision.compute
    return causes(
        cost.parts,
        cost.standard_error_s,
        carried_s,
        low_precision=low_precision,
        attended=attended_tokens(job),
    )


def attended_tokens(job: JobSpec) -> int:
    """Tokens that attend to each other: a sequence's, or a document's where several are packed into one."""
    return min(job.seq_len, job.document_tokens or job.seq_len)


def relative_std(shares: Mapping[str, FloatArray], widths: Mapping[str, float] = WIDTHS) -> FloatArray:
    """Standard deviation of log(measured / predicted): ``widths`` times ``shares``, in quadrature."""
    variance = sum((widths[cause] * share) ** 2 for cause, share in shares.items())
    return np.sqrt(np.asarray(variance, dtype=np.float64))


def interval_of(step_s: FloatArray, std: FloatArray, unpriced: float = UNPRICED) -> tuple[FloatArray, FloatArray]:
    """Seconds below and above which one step in ten lies each, arrays of the steps' length; ``std`` of
    log(measured / predicted), of which the middle is ``unpriced``. The step itself lies inside."""
    reach = EIGHTY_PERCENT * std
    return step_s * np.exp(np.minimum(unpriced - reach, 0.0)), step_s * np.exp(unpriced + reach)


def calibrated_interval(step_s: FloatArray, residual_std: float) -> tuple[FloatArray, FloatArray]:
    """Returns the interval of a calibrated step: ``residual_std``, the spread of what the calibration left, holds
    all errors."""
    return interval_of(step_s, np.full_like(step_s, residual_std), unpriced=0.0)


MOST_WHOLE = 1.0 / 3.0
"""Of the model's FLOPs, attention's share up to which its whole matrix counts."""


Product = BatchedGemm | GroupedGemm | Attention


class ModelProduct(NamedTuple):
    """A product of the unsplit model: its FLOPs in all blocks that have it with those of its two gradients, or of one
    where its weight is frozen, the FLOPs of its forward alone, and whether a mask leaves half of its matrix."""

    op: Product
    flops: float
    forward_flops: float
    is_halved: bool


def products(model: ModelSpec, job: JobSpec) -> list[ModelProduct]:
    """Returns the model's products for one sequence. What low precision pads experts' rows with is no model FLOP, nor
    is padding of the vocabulary, nor what uneven experts wait for."""
    unpadded = replace(job.preset, tensor_parallel=replace(job.preset.tensor_parallel, vocab_pad_multiple=1))
    balanced = replace(job, preset=unpadded, moe_imbalance=1.0, moe_expert_spread=0.0)
    ops = plain = model_ops(model, balanced, Layout.of(1), "mtp", Recompute.NONE)
    if job.precision.linear != job.precision.activation:
        high_precision = replace(job.precision, linear=job.precision.activation)
        plain = model_ops(model, replace(balanced, precision=high_precision), Layout.of(1), "mtp", Recompute.NONE)
    counts = (*(run.count for run in model.blocks), 1)
    result: list[ModelProduct] = []
    pieces = zip(counts, (*ops.blocks, ops.head), (*plain.blocks, plain.head), strict=True)
    for count, piece, plain_piece in pieces:
        forward = tuple(op for op in piece.forward if isinstance(op, Product))
        plain_forward = tuple(op for op in plain_piece.forward if isinstance(op, Product))
        for op, without_padding in zip(forward, plain_forward, strict=True):
            forward_flops = count * float(without_padding.flops[0])
            flops = forward_flops * (2.0 if op.frozen.any() else 3.0)
            is_halved = isinstance(op, Attention) and op.mask in ("causal", "varlen")
            result.append(ModelProduct(op, flops, forward_flops, is_halved))
    return result


def counts_whole_attention(counted: Sequence[ModelProduct]) -> bool:
    """Returns whether the whole attention matrix counts, or what causal masks leave of it."""
    attention = sum(product.flops for product in counted if product.is_halved)
    return attention <= MOST_WHOLE * sum(product.flops for product in counted)


def least_s_per_sequence(model: ModelSpec, job: JobSpec, cluster: ClusterSpec) -> float:
    """Seconds in which one GPU at its dense peak would do the model's FLOPs of a sequence; raises ConfigError for a GPU
    without a peak of the format that the job computes in."""
    dtype, peaks = job.precision.compute, cluster.gpu.peak_flops
    if dtype not in peaks:
        raise ConfigError(
            where=cluster.name,
            key=f"gpu.peak_flops.{dtype}",
            value=None,
            allowed=f"a figure for {dtype}; the hardware spec has {', '.join(peaks)}",
        )
    counted = products(model, job)
    half = 1.0 if counts_whole_attention(counted) else 0.5
    return sum(
        product.flops * (half if product.is_halved else 1.0) / max(peaks[dtype], peaks.get(product.op.dtype, 0.0))
        for product in counted
    )


def tokens_per_gpu_per_s(job: JobSpec, step_s: FloatArray) -> FloatArray:
    """Tokens per GPU and second (TGS)."""
    return job.global_batch_tokens / (job.world_size * step_s)


def mfu(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, step_s: FloatArray) -> FloatArray:
    """Returns model-FLOP utilisation: the least time of a step's model FLOPs over its time; raises ConfigError as least_s_per_sequence."""
    least_s = least_s_per_sequence(model, job, cluster) * job.global_batch_tokens / job.seq_len
    return least_s / (job.world_size * step_s)


REPEATING = (Recompute.FULL, Recompute.BLOCK)


def logged_tflops(model: ModelSpec, job: JobSpec, recompute: Recompute, step_s: float) -> float | None:
    """Returns 10^12 FLOP/s of a GPU in the framework's log for a step of ``step_s`` seconds under ``recompute``; None
    where no source says."""
    log = job.preset.log
    if not log.attention:
        return None
    flops = 0.0
    for product in products(model, job):
        # What of a recomputed forward counts once more; of partly recomputed layers all of it.
        if recompute is Recompute.SELECTIVE:
            repeats = log.repeats == "all" and isinstance(product.op, Attention)
        else:
            of_layers = log.repeats == "layers" and product.op.module is not Module.HEAD
            repeats = recompute in REPEATING and (log.repeats == "all" or of_layers)
        half = 0.5 if log.attention == "half" and product.is_halved else 1.0
        flops += half * (product.flops + product.forward_flops * repeats)
    return flops * job.global_batch_sequences / (step_s * job.world_size) / TERA
