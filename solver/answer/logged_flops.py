"""The FLOPs that a framework's own log counts, which differ by convention: what its TFLOP/s are to be compared with.

Three times the forward's products, as solver.answer.mfu, with the whole of a causal attention matrix or half
of it, and with what recomputation runs again or without (FrameworkPreset.log, each preset with its source).
Padding of the vocabulary, which some count, is left out.
"""

from ops.op import Attention
from ops.recompute.layers import Recompute
from ops.roles import Module
from solver.answer.mfu import Product, flops_of, halved, products
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.units import TERA

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
        * (half if halved(op) else 1.0)
        * count
        for op, count in products(model, job)
    )


def logged_tflops(model: ModelSpec, job: JobSpec, recompute: Recompute, step_s: float) -> float | None:
    """10^12 FLOP/s of a GPU in the framework's log for a step of ``step_s`` seconds; None where no source says."""
    flops = logged_flops_per_sequence(model, job, recompute)
    return None if flops is None else flops * job.global_batch_sequences / (step_s * job.world_size) / TERA


def _repeats(op: Product, counted: str, recompute: Recompute) -> bool:
    """Whether the log counts a product's forward once more; of partly recomputed layers all count."""
    if recompute is Recompute.SELECTIVE:
        return counted == "all" and isinstance(op, Attention)
    return recompute in REPEATING and (
        counted == "all" or (counted == "layers" and op.module is not Module.HEAD)
    )
