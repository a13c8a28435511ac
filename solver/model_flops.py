"""How well the GPUs are used: tokens per GPU per second, model-FLOP utilisation, and the FLOPs that frameworks log.

Model FLOPs are three times the forward of the model without any recomputation (PaLM, arXiv 2204.02311 App.
B): matrix products and the whole attention matrix, causal or not; the embedding look-up counts nothing, the
head counts. Of long sequences, whose attention would be more than a third of that, what a causal mask leaves
of the matrix counts instead: kernels pass over the rest, and counting it would put good kernels above 100 %.
Products in a lower precision than the job computes in count against the peak of theirs.

Frameworks' own logs count by other conventions: the whole of a causal attention matrix or half of it, with
what recomputation runs again or without (FrameworkPreset.log, each preset with its source). Padding of the
vocabulary, which some count, is left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ops.block import model_ops
from ops.layout import Layout
from ops.op import Attention, BatchedGemm, GroupedGemm
from ops.recompute import Recompute
from ops.roles import Module
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.units import TERA

MOST_WHOLE = 1.0 / 3.0
"""Of the model's FLOPs, attention's share up to which its whole matrix counts."""


def model_flops_per_sequence(model: ModelSpec, job: JobSpec) -> float:
    """FLOPs of one training sequence, forward and backward, with the whole attention matrix, counted on the unsplit
    model; a frozen weight has no gradient of its own."""
    return _flops(products(model, job))


def counts_whole_attention(model: ModelSpec, job: JobSpec) -> bool:
    """Returns whether the whole attention matrix counts, or what causal masks leave of it."""
    return _mostly_products(list(products(model, job)))


def _mostly_products(counted: Sequence[tuple["Product", int]]) -> bool:
    attention = _flops((op, count) for op, count in counted if is_halved(op))
    return attention <= MOST_WHOLE * _flops(counted)


def _flops(counted: Iterable[tuple["Product", int]]) -> float:
    return sum(flops_of(op) * count for op, count in counted)


def least_s_per_sequence(model: ModelSpec, job: JobSpec, cluster: ClusterSpec) -> float:
    """Seconds in which one GPU at its dense peak would do the model's FLOPs of a sequence; raises ConfigError for a GPU
    without a peak of the format that the job computes in."""
    dtype, peaks = job.precision.compute, cluster.gpu.peak_flops
    if dtype not in peaks:
        raise ConfigError(
            where=cluster.name,
            key=f"gpu.peak_flops.{dtype}",
            value=None,
            allowed=f"a figure for {dtype}; the sheet has {', '.join(peaks)}",
        )
    counted = list(products(model, job))
    whole = _mostly_products(counted)
    return sum(
        flops_of(op)
        * count
        * (1.0 if whole or not is_halved(op) else 0.5)
        / max(peaks[dtype], peaks.get(op.dtype, 0.0))
        for op, count in counted
    )


Product = BatchedGemm | GroupedGemm | Attention


def products(model: ModelSpec, job: JobSpec) -> Iterator[tuple[Product, int]]:
    """Returns the forward's products on the unsplit model, and how many blocks have each."""
    alone = Layout.of(1)
    unpadded = job.preset.changed(
        {"tensor_parallel.vocab_pad_multiple": 1, "tensor_parallel.vocab_pad_times_tp": False}
    )
    balanced = replace(job.with_preset(unpadded), moe_imbalance=1.0, moe_expert_spread=0.0)
    # Narrow formats pad experts' rows; what they pad with is no model FLOP.
    wide = replace(balanced, precision=replace(job.precision, linear=job.precision.activation))
    for asked, counted in zip(_forwards(model, balanced, alone), _forwards(model, wide, alone), strict=True):
        for op, plain in zip(asked[0], counted[0], strict=True):
            if isinstance(op, GroupedGemm) and isinstance(plain, GroupedGemm):
                yield replace(op, m=plain.m), asked[1]
            else:
                yield op, asked[1]


def _forwards(model: ModelSpec, job: JobSpec, layout: Layout) -> Iterator[tuple[list[Product], int]]:
    """The products of each kind of block and of the head, and how many there are of it."""
    ops = model_ops(model, job, layout, "mtp", Recompute.NONE)
    pieces = [*zip(ops.blocks, (run.count for run in model.blocks), strict=True), (ops.head, 1)]
    for piece, count in pieces:
        yield [op for op in piece.forward if isinstance(op, Product)], count


def flops_of(op: Product) -> float:
    """FLOPs of a product with its two gradients, or with one where its weight is frozen."""
    return float(op.flops[0]) * (2.0 if op.frozen.any() else 3.0)


def is_halved(op: Product) -> bool:
    """Returns whether a mask leaves half of a matrix."""
    return isinstance(op, Attention) and op.mask in ("causal", "varlen")


def tokens_per_gpu_per_s(job: JobSpec, step_s: FloatArray) -> FloatArray:
    """Tokens per GPU and second (TGS)."""
    return job.global_batch_tokens / (job.world_size * step_s)


def mfu(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, step_s: FloatArray) -> FloatArray:
    """Returns model-FLOP utilisation: the least time of a step's model FLOPs over its time; raises ConfigError as least_s_per_sequence."""
    least_s = least_s_per_sequence(model, job, cluster) * job.global_batch_tokens / job.seq_len
    return least_s / (job.world_size * step_s)


REPEATING = (Recompute.FULL, Recompute.BLOCK)


def logged_flops_per_sequence(model: ModelSpec, job: JobSpec, recompute: Recompute) -> float | None:
    """FLOPs of one training sequence as the framework's log counts them under ``recompute``; None where no
    source says.
    """
    if not job.preset.log.attention:
        return None
    half = 0.5 if job.preset.log.attention == "half" else 1.0
    return sum(
        (flops_of(op) + (float(op.flops[0]) if _repeats(op, job.preset.log.repeats, recompute) else 0.0))
        * (half if is_halved(op) else 1.0)
        * count
        for op, count in products(model, job)
    )


def logged_tflops(model: ModelSpec, job: JobSpec, recompute: Recompute, step_s: float) -> float | None:
    """Returns 10^12 FLOP/s of a GPU in the framework's log for a step of ``step_s`` seconds; None where no
    source says."""
    flops = logged_flops_per_sequence(model, job, recompute)
    return None if flops is None else flops * job.global_batch_sequences / (step_s * job.world_size) / TERA


def _repeats(op: Product, counted: str, recompute: Recompute) -> bool:
    """Whether the log counts a product's forward once more; of partly recomputed layers all count."""
    if recompute is Recompute.SELECTIVE:
        return counted == "all" and isinstance(op, Attention)
    return recompute in REPEATING and (
        counted == "all" or (counted == "layers" and op.module is not Module.HEAD)
    )
