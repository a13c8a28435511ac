"""Experts' products as training frameworks run them: one product for each expert, a few at a time.

Transformer Engine's grouped linear starts a cuBLAS product for every expert on four streams in turn
(transformer_engine/common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm; multi_stream.cpp,
nvte_get_num_compute_streams), so each product has its own tiles and its own last wave.
"""

import numpy as np

from ops.op import GroupedGemm
from profdb.curvebook import Book
from profdb.lookup.priced import Priced
from profdb.lookup.queries import LinearQuery
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.origin import Origin

STREAMS = 4
"""That grouped products start on in turn (nvte_get_num_compute_streams), each with a workspace of cuBLAS."""
# Assumption: output elements of one thread block either way, the usual cuBLAS tile of 16-bit products.
TILE = 128


def products_apart_s(book: Book, op: GroupedGemm, whole: Priced, num_sms: int) -> Priced:
    """Seconds of ``op`` for every shape: ``whole`` (the book's own grouped time) where it was measured,
    elsewhere one product of ``linear_s`` an expert, as many beside each other as multiprocessors and
    streams allow, and never faster than ``whole``.

    Arrays of the shapes' length. Origin DERIVED where the single product was measured. Raises
    MissingCurveError as ``book.linear_s`` does.
    """
    unknown = whole.origin >= int(Origin.MODELLED)
    if not unknown.any():
        return whole
    groups = np.maximum(op.groups, 1)
    rows = ceil_div(op.m, groups)
    turned = op.layout == "TN"
    m, k, n = (op.n, rows, op.k) if turned else (rows, op.k, op.n)
    one = book.linear_s(
        LinearQuery(m=m, k=k, n=n, layout=op.layout, dtype=op.dtype, scale_recipe=op.scale_recipe)
    )
    seconds = np.where(op.groups > 0, groups * one.seconds / _beside(groups, m, n, num_sms), 0.0)
    origin = np.where(one.origin < int(Origin.MODELLED), int(Origin.DERIVED), one.origin)
    return Priced(
        seconds=np.where(unknown, np.maximum(seconds, whole.seconds), whole.seconds),
        relative_std=np.where(unknown, np.maximum(one.relative_std, whole.relative_std), whole.relative_std),
        origin=np.where(unknown, origin, whole.origin),
    )


def _beside(groups: IntArray, m: IntArray, n: IntArray, num_sms: int) -> FloatArray:
    """How many products run at once: those whose tiles leave multiprocessors free share the GPU."""
    tiles = np.maximum(ceil_div(m, TILE) * ceil_div(n, TILE), 1)
    room = np.maximum(num_sms / tiles, 1.0)
    return np.asarray(np.minimum(room, np.minimum(groups, STREAMS)), dtype=np.float64)
