"""Bytes of one layer, embedding or head: per distinct layer layout, not per plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ops.data_parallel.step import RankParameters
from ops.op import BatchedGemm, GroupedGemm, HostTransfer, Op, Owner, Piece, multiplies_narrow
from ops.roles import Role
from spec.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What one layer keeps until its backward, the most it holds for a moment, copies of weights it keeps from
    step to step (``copied`` elements of weights have one), what of it waits on the host (``host_bytes``), the elements
    of logits that it makes, of one trained weight of each shape (``shapes``), and those it trains and holds frozen."""

    saved_bytes: FloatArray
    transient_bytes: FloatArray
    cached_bytes: FloatArray
    copied: FloatArray
    host_bytes: FloatArray
    logits: FloatArray
    shapes: FloatArray
    parameters: RankParameters
    frozen: RankParameters

    @staticmethod
    def stacked(parts: Sequence["LayerBytes"]) -> "LayerBytes":
        """The rows of all parts, one part after another."""

        def held(chosen: list[RankParameters]) -> RankParameters:
            return RankParameters.by_owner(
                lambda owner: np.concatenate([one.of(owner) for one in chosen]),
                lambda owner: np.concatenate([one.narrow_of(owner) for one in chosen]),
            )

        return LayerBytes(
            parameters=held([one.parameters for one in parts]),
            frozen=held([one.frozen for one in parts]),
            **{name: np.concatenate([getattr(one, name) for one in parts]) for name in BYTES},
        )


BYTES = tuple(one.name for one in fields(LayerBytes) if one.type is FloatArray)


def layer_bytes(piece: Piece, rows: int) -> LayerBytes:
    """Sums over the operations of a piece; transients are held together while the piece runs."""
    forward = piece.forward

    def total(values: list[FloatArray | IntArray]) -> FloatArray:
        result = np.zeros(rows)
        for value in values:
            result = result + value
        return result

    def held(count: Callable[[Op], IntArray]) -> RankParameters:
        def of(owner: Owner, ops: Sequence[Op]) -> IntArray:
            return total([count(op) for op in ops if op.owner is owner]).astype(np.int64)

        narrow = [op for op in forward if multiplies_narrow(op)]
        return RankParameters.by_owner(lambda owner: of(owner, forward), lambda owner: of(owner, narrow))

    return LayerBytes(
        saved_bytes=total([op.saved_bytes for op in forward]),
        transient_bytes=total([op.transient_bytes for op in forward]),
        cached_bytes=total([op.cached_bytes for op in forward]),
        copied=total([(op.parameters + op.frozen) * (op.cached_bytes > 0) for op in forward]),
        host_bytes=total([op.size_bytes for op in forward if isinstance(op, HostTransfer)]),
        logits=total(
            [op.m * op.n for op in forward if isinstance(op, BatchedGemm) and op.role is Role.LOGITS]
        ),
        shapes=total(_one_of_each_shape(forward)),
        parameters=held(lambda op: op.parameters),
        frozen=held(lambda op: op.frozen),
    )


def _one_of_each_shape(forward: Sequence[Op]) -> list[FloatArray | IntArray]:
    """Elements of one trained weight of each shape that products of a forward have, per row: inputs x outputs."""
    trained = [op for op in forward if isinstance(op, BatchedGemm | GroupedGemm) and op.parameters.any()]
    elements: list[FloatArray | IntArray] = []
    for index, op in enumerate(trained):
        first = op.parameters > 0
        for earlier in trained[:index]:
            first = first & ~((earlier.parameters > 0) & (earlier.k == op.k) & (earlier.n == op.n))
        elements.append(op.k * op.n * first)
    return elements
