"""The gather that a pass begins with and the reduction that it ends with: nothing runs beside them.

Weights are gathered ahead of the layer that needs them and gradients reduced behind the one that made them
(solver.times.overlap), but the first layer of a stage's chunk has no layer before it: its forward waits for
its weights, and the step for its gradients. Weights that travel one by one (isp) make it wait for the first
of them alone. FSDP's outermost unit, embedding and head, is gathered before anything else and reduced last
(PyTorch torch/distributed/fsdp/_runtime_utils.py, _root_pre_forward and _post_backward_final_callback;
fully_shard alike).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ops.op import Lane, Op, Ops, Piece
from ops.roles import Role
from spec.arrays import IntArray, ints


def as_first(piece: Piece) -> Piece:
    """``piece`` where it is the first of its stage; itself where nothing of it comes ahead."""
    gathers = _ahead(piece.forward, Role.PARAMETER_GATHER) or _ahead(piece.forward, Role.WEIGHT_GATHER)[:1]
    reductions = _ahead(piece.backward, Role.GRADIENT_REDUCTION)
    if any(op.serves for op in reductions):
        reductions = reductions[-1:]
    if not gathers and not reductions:
        return piece
    return Piece(
        forward=_waited_for(piece.forward, gathers), backward=_waited_for(piece.backward, reductions)
    )


def _ahead(ops: Ops, role: Role) -> list[Op]:
    return [op for op in ops if op.lane is Lane.PREFETCH and op.role is role]


def _waited_for(ops: Ops, chosen: Sequence[Op]) -> Ops:
    waited = {id(op) for op in chosen}
    return tuple(replace(op, lane=Lane.MAIN) if id(op) in waited else op for op in ops)


def first_layers(layers: Sequence[IntArray]) -> tuple[IntArray, ...]:
    """Of layers by run, for every row one of the first run that it has any of."""
    found = np.zeros(len(layers[0]), dtype=np.bool_)
    firsts = []
    for count in layers:
        first = (count > 0) & ~found
        found = found | first
        firsts.append(ints(first))
    return tuple(firsts)
