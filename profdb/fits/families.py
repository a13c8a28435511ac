"""One row per family: how its times depend on its sizes.

Kernels are surfaces (profdb.fits.surface) over the sizes, with the FLOPs and bytes that ``shapes_of`` counts; collectives are
curves of group shapes (profdb.fits.collective); a host cost is one number for each kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ops.memory_bound import KERNELS, WHOLE_SHARD, bytes_moved_per_element
from ops.op import AttentionCall, GroupedProductCall, KernelCall, ProductCall, flag_names, label_names
from profdb.cases import Family
from profdb.fits import collective
from profdb.fits.lines import Arrays, CurvePrediction
from profdb.fits.surface import KernelShapes, fit_surface, predict_surface
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes

Columns = dict[str, IntArray]
Labels = dict[str, str]

SURFACE_VERSION = 5
KERNEL_VERSION = 6
FLAT_WIDTH = 4096
"""Longest rows of a flat array, as most samples have them (profiler/cases/kernel_cases.py)."""
BACKWARD_PRODUCTS = 2.5
"""Backward / forward matrix work: five products against two (FlashAttention-2, 2307.08691, sec. 4.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitter:
    """How the curves of one family are fitted and read. ``labels`` and ``flags`` name the case fields that split the
    samples into curves. A new ``version`` makes stored fits invalid; raise it when the method changes."""

    version: int
    labels: tuple[str, ...]
    flags: tuple[str, ...] = ()
    fit: Callable[[Columns, Labels, FloatArray, float], Arrays]
    predict: Callable[[Arrays, Columns, Labels], CurvePrediction]


def surface_fitter(
    shapes_of: Callable[[Columns, Labels], KernelShapes], labels: tuple[str, ...], flags: tuple[str, ...] = ()
) -> Fitter:
    """Returns the fitter of a family of kernels, all of whose sizes are 1 or more."""

    def fit(columns: Columns, labels: Labels, seconds: FloatArray, noise: float) -> Arrays:
        return fit_surface(shapes_of(columns, labels), seconds, noise)

    def predict(arrays: Arrays, columns: Columns, labels: Labels) -> CurvePrediction:
        return predict_surface(arrays, shapes_of(columns, labels))

    return Fitter(version=SURFACE_VERSION, labels=labels, flags=flags, fit=fit, predict=predict)


def product_shapes(columns: Columns, labels: Labels) -> KernelShapes:
    """Returns the counts of matrix products: FLOPs 2 b m k n; bytes of A, B and C once each (C in 16 bits for 8-bit
    inputs)."""
    batch, m, k, n = (columns[name].astype(np.float64) for name in ("batch", "m", "k", "n"))
    in_bytes = dtype_bytes(labels["dtype_in"])
    out_bytes = max(in_bytes, 2.0)
    return KernelShapes(
        sizes=[batch, m, k, n],
        flops=2.0 * batch * m * k * n,
        size_bytes=batch * (in_bytes * (m * k + k * n) + out_bytes * m * n),
    )


def grouped_product_shapes(columns: Columns, labels: Labels) -> KernelShapes:
    """Returns the counts of grouped products: FLOPs 2 m k n; bytes of the rows in and out once and of every group's
    weights once.

    m is always the total number of rows. In layout TN each group reduces over its rows and writes its own k x n: the
    same FLOPs, and the same arrays with input and output exchanged.
    """
    groups, m, k, n = (columns[name].astype(np.float64) for name in ("groups", "m", "k", "n"))
    in_bytes = dtype_bytes(labels["dtype_in"])
    out_bytes = max(in_bytes, 2.0)
    return KernelShapes(
        sizes=[groups, m, k, n],
        flops=2.0 * m * k * n,
        size_bytes=in_bytes * (m * k + groups * k * n) + out_bytes * m * n,
    )


def attended_pairs(columns: dict[str, IntArray], mask: str) -> FloatArray:
    """Returns the number of query-key pairs that a kernel with this mask must touch, per head and sequence.

    full: q kv. causal (aligned at the end, q <= kv): q kv - q (q - 1) / 2, the triangle with its diagonal. window w:
    each query sees at most w keys, the first ones fewer. varlen counts as causal.
    """
    q, kv = columns["q_len"].astype(np.float64), columns["kv_len"].astype(np.float64)
    if mask == "full":
        return np.asarray(q * kv)
    # The mask is aligned at the end: the first query sees kv - q keys before its own, each later one sees one key
    # more. With fewer keys than queries only the last kv queries see any.
    visible_first = np.maximum(kv - q, 0.0)
    rows = np.minimum(q, kv)
    causal = rows * visible_first + rows * (rows + 1.0) / 2.0
    if mask != "window":
        return np.asarray(causal)
    window = np.clip(columns["window"].astype(np.float64), 1.0, kv)
    # The first ``growing`` queries see all their keys, because the window is longer than what precedes them; the rest
    # see ``window`` keys each.
    growing = np.clip(window - visible_first, 0.0, rows)
    ramp = growing * visible_first + growing * (growing + 1.0) / 2.0
    return np.asarray(ramp + (rows - growing) * window)


def attention_shapes(columns: Columns, labels: Labels) -> KernelShapes:
    """Returns the counts of attention calls: FLOPs 2 (qk_dim + v_dim) per attended pair and head (backward 2.5
    times); bytes of q, k, v and the output once (backward: those, their gradients and the output gradient)."""
    batch, q, kv = (columns[name].astype(np.float64) for name in ("batch", "q_len", "kv_len"))
    heads, kv_heads = columns["heads"].astype(np.float64), columns["kv_heads"].astype(np.float64)
    qk_dim, v_dim = columns["qk_dim"].astype(np.float64), columns["v_dim"].astype(np.float64)
    width = dtype_bytes(labels["dtype"])
    flops = 2.0 * batch * heads * attended_pairs(columns, labels["mask"]) * (qk_dim + v_dim)
    # Elements, not yet bytes: ``width`` below is bytes per element.
    inputs = batch * (q * heads * qk_dim + kv * kv_heads * (qk_dim + v_dim))
    outputs = batch * q * heads * v_dim
    windowed = labels["mask"] == "window"
    unseen = kv / np.clip(columns["window"].astype(np.float64), 1.0, kv) if windowed else np.ones_like(kv)
    backward = labels["direction"] == "backward"
    moved = 2.0 * (inputs + outputs) if backward else inputs + outputs
    return KernelShapes(
        # Ratios rather than sizes: efficiency depends on kv / q, on queries per key head and on the share that a
        # window hides, not on the numbers themselves.
        sizes=[batch, q, kv / q, heads, heads / kv_heads, qk_dim, v_dim / qk_dim, unseen],
        flops=flops * (BACKWARD_PRODUCTS if backward else 1.0),
        size_bytes=width * moved,
    )


def bytes_per_element(kernel: str, direction: str, dtype: str) -> float:
    """Returns the bytes moved for one element as ops.memory_bound counts them; an unknown kernel counts as a copy."""
    name = kernel if kernel in KERNELS else "copy"
    return bytes_moved_per_element(name, backward=direction == "backward", dtype=dtype)


def kernel_shapes(columns: Columns, labels: Labels) -> KernelShapes:
    """Returns the counts of memory-bound kernels: no FLOPs that matter; bytes by ``bytes_per_element``."""
    rows, width = columns["rows"].astype(np.float64), columns["width"].astype(np.float64)
    if labels["kernel"] not in WHOLE_SHARD:
        # A flat array of a kernel that is measured by rows: rows of a width that divides it.
        folded = np.where(width == 1, np.gcd(columns["rows"], FLAT_WIDTH), 1)
        rows, width = rows / folded, width * folded
    per_element = bytes_per_element(labels["kernel"], labels["direction"], labels["dtype"])
    return KernelShapes(sizes=[rows, width], flops=np.zeros_like(rows), size_bytes=per_element * rows * width)


def optimizer_shapes(columns: Columns, labels: Labels) -> KernelShapes:
    """Returns the counts of optimizer steps. AdamW reads parameter, gradient and two fp32 moments and writes all but
    the gradient (Loshchilov and Hutter, 1711.05101, algorithm 2): 2 p + g + 16 bytes per element."""
    elements = columns["elements"].astype(np.float64)
    tensors = columns["tensors"].astype(np.float64)
    per_element = 2.0 * dtype_bytes(labels["parameter_dtype"]) + dtype_bytes(labels["gradient_dtype"]) + 16.0
    return KernelShapes(sizes=[elements, tensors], flops=np.zeros_like(elements), size_bytes=per_element * elements)


def fit_host(columns: Columns, labels: Labels, seconds: FloatArray, noise: float) -> Arrays:
    """Returns the fit of one kind of host cost: the median over its samples, seconds."""
    return {"seconds": np.asarray([float(np.median(seconds))]), "noise": np.asarray([noise]), "cv_error": np.zeros(0)}


def predict_host(arrays: Arrays, columns: Columns, labels: Labels) -> CurvePrediction:
    """Returns the stored cost, an array of length 1."""
    return CurvePrediction(
        seconds=arrays["seconds"].copy(), relative_std=arrays["noise"].copy(), inside=np.ones(1, dtype=np.bool_)
    )


FITTERS: dict[Family, Fitter] = {
    Family.GEMM: surface_fitter(product_shapes, (*label_names(ProductCall), "dtype_in"), flag_names(ProductCall)),
    Family.GROUPED_GEMM: surface_fitter(
        grouped_product_shapes, (*label_names(GroupedProductCall), "dtype_in"), flag_names(GroupedProductCall)
    ),
    Family.ATTENTION: surface_fitter(attention_shapes, label_names(AttentionCall), flag_names(AttentionCall)),
    Family.MEMORY_BOUND: replace(
        surface_fitter(kernel_shapes, (*label_names(KernelCall), "direction"), flag_names(KernelCall)),
        version=KERNEL_VERSION,
    ),
    Family.OPTIMIZER: surface_fitter(optimizer_shapes, ("kernel", "parameter_dtype", "gradient_dtype")),
    Family.COLLECTIVE: Fitter(version=6, labels=("collective",), fit=collective.fit, predict=collective.predict),
    Family.HOST: Fitter(version=2, labels=("kind",), fit=fit_host, predict=predict_host),
}
