"""How well the GPUs are used: tokens per GPU per second, and model-FLOP utilisation.

Model FLOPs are three times the forward of the model without any recomputation (PaLM, arXiv
2204.02311 App. B): matrix products and the whole attention matrix, causal or not; the embedding
look-up counts nothing, the head counts.
"""

from dataclasses import replace

from ops.block import model_ops
from ops.layout import Layout
from ops.op import Attention, BatchedGemm, GroupedGemm, Piece
from ops.recompute.layers import Recompute
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.model import ModelSpec


def model_flops_per_sequence(model: ModelSpec, job: JobSpec) -> float:
    """FLOPs of one training sequence, forward and backward, counted on the unsplit model; a frozen weight has no
    gradient of its own."""
    alone = Layout.of(1)
    unpadded = job.preset.changed(
        {"tensor_parallel.vocab_pad_multiple": 1, "tensor_parallel.vocab_pad_times_tp": False}
    )
    balanced = replace(job.with_preset(unpadded), moe_imbalance=1.0)
    ops = model_ops(model, balanced, alone, "mtp", Recompute.NONE)
    layers = sum(run.count * _flops(piece) for run, piece in zip(model.blocks, ops.blocks, strict=True))
    return layers + _flops(ops.head)


def _flops(piece: Piece) -> float:
    """The forward's products, each with its two gradients, or with one where its weight is frozen."""
    return sum(
        float(op.flops[0]) * (2.0 if op.frozen.any() else 3.0)
        for op in piece.forward
        if isinstance(op, BatchedGemm | GroupedGemm | Attention)
    )


def tokens_per_gpu_per_s(job: JobSpec, step_s: FloatArray) -> FloatArray:
    """TGS."""
    return job.global_batch_tokens / (job.world_size * step_s)


def mfu(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, step_s: FloatArray) -> FloatArray:
    """Model FLOPs of a step over what the GPUs' dense peak would do in that time."""
    dtype = job.precision.compute
    peak = cluster.gpu.peak_flops.get(dtype)
    if peak is None:
        raise ConfigError(
            where=cluster.name,
            key=f"gpu.peak_flops.{dtype}",
            value=None,
            allowed=f"a figure for {dtype}; the sheet has {', '.join(cluster.gpu.peak_flops)}",
        )
    flops = model_flops_per_sequence(model, job) * job.global_batch_tokens / job.seq_len
    return flops / (job.world_size * peak * step_s)
