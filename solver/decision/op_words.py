"""An operation in words: its shape, the bytes it moves, and where its group of ranks lies."""

import numpy as np

from ops.groups import group_of
from ops.layout import Layout
from ops.op import (
    Attention,
    BatchedGemm,
    Comm,
    GroupedGemm,
    HostTransfer,
    HostUpdate,
    HostWork,
    MemoryBound,
    Op,
    Update,
)


def shape_words(op: Op, row: int = 0) -> str:
    """``m 8192 k 8192 n 2560 NT bf16``: the sizes of one launch, and how many launches where there are several."""

    def at(values: object) -> int:
        return round(number_at(values, row))

    match op:
        case BatchedGemm():
            several = f"{at(op.batch)} of " * (at(op.batch) > 1)
            words = f"{several}m {at(op.m)} k {at(op.k)} n {at(op.n)} {op.layout} {op.dtype}"
        case GroupedGemm():
            words = f"{at(op.groups)} groups, m {at(op.m)} k {at(op.k)} n {at(op.n)} {op.layout} {op.dtype}"
        case Attention():
            words = (
                f"batch {at(op.batch)} heads {at(op.heads)}/{at(op.kv_heads)} q {at(op.q_len)} kv {at(op.kv_len)} "
                f"dim {at(op.qk_dim)}/{at(op.v_dim)} {op.mask} {op.kernel}"
            )
        case MemoryBound():
            words = f"{op.kernel} {at(op.rows)} x {at(op.width)} {op.dtype}"
        case Comm():
            words = op.collective.value.replace("_", "-")
        case Update() | HostUpdate():
            words = f"{at(op.elements)} parameters"
        case HostWork():
            words = f"{at(op.launches)} launches"
        case _:
            words = ""
    times = number_at(op.repeat, row)
    return f"{times:g} x {words}" if times != 1 else words


def moved_bytes(op: Op, row: int = 0) -> float:
    """Bytes that a collective or a copy carries (the whole array on one rank), or that a kernel moves through
    memory; 0 of what computes."""
    if isinstance(op, Comm | HostTransfer):
        return number_at(op.size_bytes, row) * number_at(op.repeat, row)
    return number_at(op.bytes_moved, row) if isinstance(op, MemoryBound) else 0.0


def group_words(op: Op, layout: Layout, gpus_per_node: int) -> str:
    """``tp: 8 ranks on 1 node, stride 1``; "" of what runs on one rank."""
    if not isinstance(op, Comm):
        return ""
    group = group_of(op.axis, layout, gpus_per_node)
    ranks, nodes, stride = (int(one[0]) for one in (group.ranks, group.inter, group.stride))
    return f"{op.axis.value}: {ranks} ranks on {nodes} node{'s' * (nodes > 1)}, stride {stride}"


def number_at(values: object, row: int) -> float:
    """One row of a column, or the number that all rows share."""
    array = np.ravel(values)  # type: ignore[call-overload]
    return float(array[row if len(array) > 1 else 0])
