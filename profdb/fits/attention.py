"""Attention kernels: time over batch, lengths, heads and widths for one mask, direction and kernel."""

import numpy as np

from ops.op import AttentionCall, flag_names, label_names
from profdb.fits.prediction import Arrays, Prediction
from profdb.fits.surface import Shapes, fit_surface, log_points, predict_surface
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes

VERSION = 5
CURVE_LABELS: tuple[str, ...] = label_names(AttentionCall)
CURVE_FLAGS: tuple[str, ...] = flag_names(AttentionCall)

BACKWARD_PRODUCTS = 2.5
"""Backward / forward matrix work: five products against two (FlashAttention-2, 2307.08691, sec. 4.1)."""


def attended_pairs(columns: dict[str, IntArray], mask: str) -> FloatArray:
    """Query-key pairs a kernel with this mask must touch, per head and sequence.

    full: q kv. causal (aligned at the end, q <= kv): q kv - q (q - 1) / 2, the triangle with its
    diagonal. window w: each query sees at most w keys, the first ones fewer. varlen counts as causal.
    """
    q, kv = columns["q_len"].astype(np.float64), columns["kv_len"].astype(np.float64)
    if mask == "full":
        return np.asarray(q * kv)
    visible_first = np.maximum(kv - q, 0.0)
    rows = np.minimum(q, kv)
    causal = rows * visible_first + rows * (rows + 1.0) / 2.0
    if mask != "window":
        return np.asarray(causal)
    window = np.clip(columns["window"].astype(np.float64), 1.0, kv)
    growing = np.clip(window - visible_first, 0.0, rows)
    ramp = growing * visible_first + growing * (growing + 1.0) / 2.0
    return np.asarray(ramp + (rows - growing) * window)


def shapes_of(columns: dict[str, IntArray], labels: dict[str, str]) -> Shapes:
    """FLOPs 2 (qk_dim + v_dim) per attended pair and head (backward 2.5 times); bytes of q, k, v and
    the output once (backward: those, their gradients and the output gradient)."""
    sizes = {name: column.astype(np.float64) for name, column in columns.items()}
    batch, q, kv = sizes["batch"], sizes["q_len"], sizes["kv_len"]
    heads, kv_heads, qk_dim, v_dim = (sizes[name] for name in ("heads", "kv_heads", "qk_dim", "v_dim"))
    width = dtype_bytes(labels["dtype"])
    flops = 2.0 * batch * heads * attended_pairs(columns, labels["mask"]) * (qk_dim + v_dim)
    inputs = batch * (q * heads * qk_dim + kv * kv_heads * (qk_dim + v_dim))
    outputs = batch * q * heads * v_dim
    windowed = labels["mask"] == "window"
    unseen = kv / np.clip(sizes["window"], 1.0, kv) if windowed else np.ones_like(kv)
    backward = labels["direction"] == "backward"
    moved = 2.0 * (inputs + outputs) if backward else inputs + outputs
    return Shapes(
        points=log_points([batch, q, kv / q, heads, heads / kv_heads, qk_dim, v_dim / qk_dim, unseen]),
        flops=flops * (BACKWARD_PRODUCTS if backward else 1.0),
        size_bytes=width * moved,
    )


def fit(columns: dict[str, IntArray], labels: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """Fit one curve to samples (sizes by name, median seconds, relative noise)."""
    return fit_surface(shapes_of(columns, labels), seconds, noise)


def predict(arrays: Arrays, columns: dict[str, IntArray], labels: dict[str, str]) -> Prediction:
    """Seconds of attention calls with all sizes >= 1."""
    return predict_surface(arrays, shapes_of(columns, labels))
