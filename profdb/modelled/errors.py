"""Errors of each family's model against measurements: relative standard errors, for collectives by where they run."""

from collections.abc import Mapping

import numpy as np

from profdb.cases import Family
from profdb.modelled import attention, gemm, memory_bound
from profdb.modelled.network import nccl
from profdb.modelled.network.links import CommGroup, outside_server
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec
from spec.units import MIB

HOST_STD = 0.5  # Assumption: hosts and frameworks differ by this much

MODEL_ERROR: dict[Family, float] = {
    Family.GEMM: gemm.RELATIVE_STD,
    Family.GROUPED_GEMM: gemm.RELATIVE_STD,
    Family.ATTENTION: attention.RELATIVE_STD,
    Family.MEMORY_BOUND: memory_bound.RELATIVE_STD,
    Family.OPTIMIZER: memory_bound.RELATIVE_STD,
    Family.COLLECTIVE: nccl.RELATIVE_STD,
    Family.HOST: HOST_STD,
}

# Fitted: root mean square of log(predicted / measured) over the sources of published runs between nodes
# (benchmarks/multinode_accuracy.py). Sources of unknown quality and those whose authors complain are included: a job may
# get a bad fabric too.
BETWEEN_NODES = 0.25
SHORT_BETWEEN_NODES = 0.30
SHORT_BYTES = MIB
# Fitted: error added (in squares) by every doubling of nodes beyond eight, same runs: 0.20 on 3 to 8 nodes,
# 0.26 on 17 to 64, 0.34 on more, where adaptive routing and other jobs decide.
PER_DOUBLING = 0.06
FEW_NODES = 8


def model_error(family: Family, columns: Mapping[str, IntArray]) -> FloatArray:
    """Returns the family's error for each row of ``columns``, or of shape () where all rows have the same.
    Collectives between domains have a larger one."""
    inside = MODEL_ERROR[family]
    if family is not Family.COLLECTIVE:
        return np.array(inside)
    outside = between_nodes_std(columns["size_bytes"].astype(np.float64), columns["inter"])
    return np.where(columns["inter"] > 1, np.maximum(outside, inside), inside)


def collective_std(cluster: ClusterSpec, size_bytes: FloatArray, group: CommGroup, inside: float) -> FloatArray:
    """Returns the relative error of a collective: ``inside`` within a server or scale-up domain, that between nodes
    elsewhere; arrays of one length."""
    outside = np.maximum(between_nodes_std(size_bytes, group.inter), inside)
    return np.where(outside_server(cluster, group), outside, inside)


def between_nodes_std(size_bytes: FloatArray, nodes: IntArray) -> FloatArray:
    """Returns the relative error of a collective between nodes: larger for short messages and on many nodes."""
    least = np.where(np.asarray(size_bytes) < SHORT_BYTES, SHORT_BETWEEN_NODES, BETWEEN_NODES)
    doublings = np.log2(np.maximum(nodes / FEW_NODES, 1.0))
    return np.asarray(np.hypot(least, PER_DOUBLING * doublings), dtype=np.float64)
