"""The orders of torch.distributed.pipelining as work of ours: its own generators, called without a process group."""

from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

from solver.plans.schedules import Task, TaskKind

KINDS = {
    "FORWARD": TaskKind.FORWARD,
    "FULL_BACKWARD": TaskKind.BACKWARD,
    "BACKWARD_INPUT": TaskKind.BACKWARD,
    "BACKWARD_WEIGHT": TaskKind.WEIGHT,
}


def orders_of(name: str, shape: tuple[int, int, int], *, turns: bool = False) -> list[list[Task]]:
    """What every stage of a pipeline of ``shape`` (pp, vpp, num_micro) runs under torch's schedule ``name``;
    with ``turns`` its chunks are stages s and 2 pp - 1 - s."""
    pp, vpp, num_micro = shape
    kind: Any = getattr(schedules, name)
    rounds = max(1, num_micro // pp)
    asked = SimpleNamespace(
        _n_microbatches=num_micro,
        _stages=[None] * vpp,
        n_local_stages=vpp,
        pp_group_size=pp,
        num_stages=pp * vpp,
        number_of_rounds=rounds,
        microbatches_per_round=num_micro // rounds,
    )
    orders = []
    for stage in range(pp):
        actions = kind._calculate_single_rank_operations(asked, stage)
        orders.append(
            [
                Task(KINDS[one.computation_type.name], _chunk(one.stage_index, pp, turns), one.microbatch_index)
                for one in actions
                if one is not None
            ]
        )
    return orders


def _chunk(virtual: int, pp: int, turns: bool) -> int:
    return int(virtual >= pp) if turns else virtual // pp
