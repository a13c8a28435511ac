"""How far a collective told from a sheet may be off: relative standard errors by where it runs."""

import numpy as np

from profdb.modelled.network.links import Shape, outside_server
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec
from spec.units import MIB

# Fitted: root mean square of log(told / measured) over the sources of published runs between nodes, those of unknown
# quality and those whose author complains included: nobody says which kind of fabric a job gets
# (benchmarks/multinode_accuracy.py).
BETWEEN_NODES = 0.25
SHORT_BETWEEN_NODES = 0.30
SHORT_BYTES = MIB
# Fitted: what every doubling of nodes beyond eight adds (in squares), the same runs: 0.20 on 3 to 8 nodes,
# 0.26 on 17 to 64, 0.34 on more, where adaptive routing and other jobs decide.
PER_DOUBLING = 0.06
FEW_NODES = 8


def relative_std(cluster: ClusterSpec, size_bytes: FloatArray, shape: Shape, inside: float) -> FloatArray:
    """``inside`` a server or scale-up domain, that between nodes elsewhere; arrays of one length."""
    outside = np.maximum(between_nodes_std(size_bytes, shape.inter), inside)
    return np.where(outside_server(cluster, shape), outside, inside)


def between_nodes_std(size_bytes: FloatArray, nodes: IntArray) -> FloatArray:
    """More for short messages and on many nodes."""
    least = np.where(np.asarray(size_bytes) < SHORT_BYTES, SHORT_BETWEEN_NODES, BETWEEN_NODES)
    doublings = np.log2(np.maximum(nodes / FEW_NODES, 1.0))
    return np.asarray(np.hypot(least, PER_DOUBLING * doublings), dtype=np.float64)
