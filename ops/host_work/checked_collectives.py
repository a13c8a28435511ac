"""What the ranks of a collective do before it where PyTorch compares them (TORCH_DISTRIBUTED_DEBUG=DETAIL).

``torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp``, runCollectiveChecks: before every collective a
monitored barrier, in which the first rank hears from and answers one rank after another, and two all-gathers
of what each is about to run, each a ring, all over Gloo between the processors. The host waits for them, so
they cost it time in proportion to the group. Messages between two ranks are not compared.
"""

import numpy as np

from ops.groups import ranks_and_stride
from ops.layout import Layout
from ops.op import Comm
from spec.arrays import FloatArray, floats

# Fitted: to CPU seconds of one rank of 2, 3 and 4 for a collective compared less one that is not
# (benchmarks/checked_collectives.py: 45, 55 and 76 forwards of torch.nn.Linear in the mean of two runs).
CHECK_CALLS = 30.0
CHECK_CALLS_PER_RANK = 16.0


def check_calls(op: Comm, layout: Layout) -> FloatArray:
    """Python calls (forwards of ``torch.nn.Linear``) that comparing the ranks of one collective takes, per row; none
    in a group of one, nor for what does not go through PyTorch's process groups (pieces of Transformer Engine's)."""
    ranks, _ = ranks_and_stride(op.axis, layout)
    if op.pieces is not None:
        return np.zeros(len(layout))
    return floats(np.where(ranks > 1, CHECK_CALLS + CHECK_CALLS_PER_RANK * (ranks - 1.0), 0.0))
