"""The model's FLOPs: what utilisation counts (MFU, arXiv 2204.02311 app. B), and what a framework's log does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

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
    # Low precision pads the rows of experts' products: shapes come from the same model in high precision, of which the
    # operations are the same ones in the same order; their formats, which the peak depends on, from the job's own.
    ops = plain = model_ops(model, balanced, Layout.of(1), "mtp", Recompute.NONE)
    if job.precision.linear != job.precision.activation:
        high_precision = replace(job.precision, linear=job.precision.activation)
        plain = model_ops(model, replace(balanced, precision=high_precision), Layout.of(1), "mtp", Recompute.NONE)
    # images are seen before the embedding, which has no product of its own
    counts = (*(run.count for run in model.blocks), 1, 1)
    result: list[ModelProduct] = []
    pieces = zip(
        counts, (*ops.blocks, ops.embedding, ops.head), (*plain.blocks, plain.embedding, plain.head), strict=True
    )
    for count, piece, plain_piece in pieces:
        forward = tuple(op for op in piece.forward if isinstance(op, Product))
        plain_forward = tuple(op for op in plain_piece.forward if isinstance(op, Product))
        for op, without_padding in zip(forward, plain_forward, strict=True):
            forward_flops = count * float(without_padding.flops[0])
            # The backward has a product for the input's gradient and one for the weight's, if that is trained.
            flops = forward_flops * (2.0 if op.frozen.any() else 3.0)
            is_halved = isinstance(op, Attention) and op.mask in ("causal", "varlen")
            result.append(ModelProduct(op, flops, forward_flops, is_halved))
    return result


def attention_counted(counted: Sequence[ModelProduct], convention: str = "") -> str:
    """Returns the part of causal attention matrices that counts, "full" or "causal": the job's ``convention``, or by
    attention's share."""
    if convention:
        return convention
    attention = sum(product.flops for product in counted if product.is_halved)
    return "full" if attention <= MOST_WHOLE * sum(product.flops for product in counted) else "causal"


def tokens_per_gpu_per_s(job: JobSpec, step_s: FloatArray) -> FloatArray:
    """Tokens per GPU and second (TGS)."""
    return job.global_batch_tokens / (job.world_size * step_s)


def mfu(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, step_s: FloatArray) -> FloatArray:
    """Returns model-FLOP utilisation: the seconds that the model's FLOPs of a step would take at the dense peak, of the
    format that each product computes in, over those of the step.

    Raises ConfigError for a GPU without a peak of the format that the job computes in.
    """
    dtype, peaks = job.precision.compute, cluster.gpu.peak_flops
    if dtype not in peaks:
        allowed = f"a figure for {dtype}; the hardware spec has {', '.join(peaks)}"
        raise ConfigError(where=cluster.name, key=f"gpu.peak_flops.{dtype}", value=None, allowed=allowed)
    counted = products(model, job)
    half = 1.0 if attention_counted(counted, job.mfu) == "full" else 0.5
    sequence_s = sum(
        product.flops * (half if product.is_halved else 1.0) / max(peaks[dtype], peaks.get(product.op.dtype, 0.0))
        for product in counted
    )
    return sequence_s * (job.global_batch_tokens / job.seq_len) / (job.world_size * step_s)


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
