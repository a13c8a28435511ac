"""The operations that one rank is expected to launch in a step, in the order of its schedule, with predicted seconds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from ops.op import Axis, Phase
from ops.roles import Module, Role
from profdb.cases import AttentionCase
from runner.traces.names import heads_pairs
from runner.traces.trace_file import BACKWARD, FORWARD, Key, Part, collective_key, product_key
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.collectives import Collective
from workload.aicb.csv_workload import GeneralItem
from workload.aicb.plan_rows import step_items
from workload.stage_work import StageWork, WorkItem, stage_works

ROUTED_ROLES = (Role.DISPATCH, Role.COMBINE, Role.GATE, Role.UP, Role.DOWN)
"""Roles in the MoE module whose sizes the router decides: the exchanges of tokens and the experts' products."""
BACKWARD_PHASES = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD, Phase.RECOMPUTE)
"""Phases that run in the backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """An operation that is launched ``count`` times in a row; ``seconds`` of one launch, without overlap.

    ``label`` is phase and name, ``axis`` the parallel axis of a collective, ``place`` its position in the step, ``pairs``
    the pairs of queries and keys of an attention over all heads. ``routed``: the router decides the size; a routed
    product has in ``weight`` the sides of one expert's matrix.
    """

    key: Key
    label: str
    axis: str
    seconds: float
    count: int
    place: int = 0
    pairs: float | None = None
    routed: bool = False
    weight: tuple[int, int] | None = None


def expected_step(problem: Problem, plan: Plan, rank: int) -> list[Expected]:
    """The operations of ``rank`` in a step. Raises ExportError for a schedule that runs two chunks of a stage at once."""
    stage = rank // (plan.world_size // plan.pp)
    works = stage_works(problem, plan)
    work = next(operation for operation in works if operation.position <= stage < operation.position + operation.count)
    return [replace(operation, place=place) for place, operation in enumerate(_step(plan, work))]


def _step(plan: Plan, work: StageWork) -> Iterator[Expected]:
    for stage, item in step_items(plan, work):
        if isinstance(item, GeneralItem):
            yield Expected(
                key=collective_key(Collective.P2P.value, item.msg_size, plan.pp),
                label=f"{stage} {item.additional}",
                axis=Axis.PP.value,
                seconds=work.p2p_s,
                count=1,
            )
        elif item.seconds > 0 and not item.host_bytes and (item.collective is None or item.size_bytes):
            yield Expected(
                key=_key(stage, item),
                label=f"{item.phase.value} {item.name}",
                axis=item.axis.value if item.axis is not None else "",
                seconds=item.seconds / item.count,
                count=item.count,
                pairs=_pairs(item.attention) if item.attention is not None else None,
                routed=_is_routed(item),
                weight=(item.shape[2], item.shape[3]) if item.shape and _is_routed(item) else None,
            )


def _key(stage: str, item: WorkItem) -> Key:
    if item.collective is not None:
        return collective_key(item.collective.value, item.size_bytes, item.ranks)
    if item.shape:
        batch, m, k, n = item.shape
        return product_key(batch, m, k, n, BACKWARD if item.phase in BACKWARD_PHASES else FORWARD)
    if item.attention is not None:
        call = item.attention
        return Key(part=Part.ATTENTION, what="attention", direction=call.direction, shape=(_first_operand(call),))
    part = Part.OPTIMIZER if stage == "step" else Part.KERNEL
    return Key(part=part, what=part.value)


def _is_routed(item: WorkItem) -> bool:
    return item.module is Module.MOE and item.role in ROUTED_ROLES and item.serves is None


def _pairs(call: AttentionCase) -> float:
    return heads_pairs(call.batch * call.heads, call.q_len, call.kv_len, mask=call.mask, window=call.window)


def _first_operand(call: AttentionCase) -> int:
    """Elements of the queries, or in the backward of the outputs' gradient."""
    width = call.qk_dim if call.direction == FORWARD else call.v_dim
    return prod((call.batch, call.q_len, call.heads, width))


def seconds_by_part(expected: list[Expected]) -> Mapping[Part, float]:
    """Seconds of each part of a step, without overlap."""
    total: dict[Part, float] = {}
    for one in expected:
        total[one.key.part] = total.get(one.key.part, 0.0) + one.seconds * one.count
    return total
