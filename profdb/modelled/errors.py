"""How far each family's model is from measurements: relative standard errors beside the models."""

from collections.abc import Mapping

import numpy as np

from profdb.cases import Family
from profdb.modelled import attention, gemm, host, memory_bound, optimizer
from profdb.modelled.network import algorithms, spread
from spec.arrays import FloatArray, IntArray

MODEL_ERROR: dict[Family, float] = {
    Family.GEMM: gemm.RELATIVE_STD,
    Family.GROUPED_GEMM: gemm.RELATIVE_STD,
    Family.ATTENTION: attention.RELATIVE_STD,
    Family.MEMORY_BOUND: memory_bound.RELATIVE_STD,
    Family.OPTIMIZER: optimizer.RELATIVE_STD,
    Family.COLLECTIVE: algorithms.RELATIVE_STD,
    Family.HOST: host.RELATIVE_STD,
}


def model_error(family: Family, columns: Mapping[str, IntArray]) -> FloatArray:
    """The family's error for each row of ``columns``, or of shape () where every row has the same; collectives
    between domains are known less well."""
    inside = MODEL_ERROR[family]
    if family is not Family.COLLECTIVE:
        return np.array(inside)
    outside = spread.between_nodes_std(columns["size_bytes"].astype(np.float64), columns["inter"])
    return np.where(columns["inter"] > 1, np.maximum(outside, inside), inside)
