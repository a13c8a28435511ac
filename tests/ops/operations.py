"""Operations of one row for tests; a size that no test reads is 1."""

from typing import Any

from ops.op import Axis, BatchedGemm, Comm, GroupedGemm, MemoryBound, Op, Phase
from ops.roles import Module, Role
from solver.times.op_times import TimedOp
from spec.arrays import floats, ints
from spec.collectives import Collective

FORWARD = {"module": Module.MLP, "phase": Phase.FORWARD}


def comm(role: Role, collective: Collective, axis: Axis, size_bytes: int = 1, **more: Any) -> Comm:
    return Comm(
        **FORWARD | {"role": role, "collective": collective, "axis": axis, "size_bytes": ints(size_bytes)} | more
    )


def exchange(size_bytes: int = 1, role: Role = Role.DISPATCH, **more: Any) -> Comm:
    """Tokens on their way to experts."""
    return comm(role, Collective.ALL_TO_ALL, Axis.EP, size_bytes, module=Module.MOE, **more)


def memory_bound(kernel: str = "copy", rows: int = 1, width: int = 1, **more: Any) -> MemoryBound:
    sizes = {"kernel": kernel, "rows": ints(rows), "width": ints(width)}
    return MemoryBound(**FORWARD | {"role": Role.NORM} | sizes | more)


def product(m: int = 1, k: int = 1, n: int = 1, **more: Any) -> BatchedGemm:
    return BatchedGemm(**FORWARD | {"role": Role.UP, "m": ints(m), "k": ints(k), "n": ints(n)} | more)


def experts_product(groups: int, m: int, k: int, n: int, **more: Any) -> GroupedGemm:
    sizes = {"groups": ints(groups), "m": ints(m), "k": ints(k), "n": ints(n)}
    return GroupedGemm(**FORWARD | {"module": Module.MOE, "role": Role.UP} | sizes | more)


def timed(op: Op, part: str, *seconds: float) -> TimedOp:
    """The operation with its seconds, a row each, which are its relative error too."""
    value = floats(seconds)
    return TimedOp(op=op, part=part, family=part, seconds=value, relative_std=value, origin=ints([0] * len(seconds)))
