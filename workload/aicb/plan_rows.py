"""A plan as a general workload: the operations of one rank of a stage, in the order of its schedule.

The rows are those of the op list and the hops of the pipeline, nothing else, so their bytes are the bytes
priced. Initialisation as AICB's Megatron frame writes it, over groups of more than one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ops.op import Axis, Phase
from solver.plans.plan_table import Plan
from solver.plans.schedules import Task, TaskKind
from spec.collectives import Collective
from workload.aicb.csv_workload import COMPUTATION, EPOCH_END, GeneralItem
from workload.stage_work import StageWork, WorkItem

GROUP_NAMES: dict[Axis, str] = {
    Axis.TP: "tp_group",
    Axis.DP: "dp_group",
    Axis.DP_CP: "dp_group",
    Axis.ZERO_SHARD: "dp_group",
    Axis.ZERO_REPLICATE: "zero_replicate_group",
    Axis.WDP: "dp_group",
    Axis.SDP: "dp_group",
    Axis.SDP_SHARD: "dp_group",
    Axis.SDP_REPLICATE: "zero_replicate_group",
    Axis.EP: "ep_group",
    Axis.ETP: "ep_tp_group",
    Axis.EDP: "ep_dp_group",
    Axis.CP: "cp_group",
    Axis.WP: "wp_group",
    Axis.PP: "pp_group",
    Axis.EMBEDDING: "embedding_group",
}
COMM_NAMES: dict[Collective, str] = {
    Collective.ALL_REDUCE: "all_reduce",
    Collective.ALL_GATHER: "all_gather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.ALL_TO_ALL: "all_to_all",
    Collective.BROADCAST: "broadcast",
    Collective.P2P: "isend",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralOptions:
    """``epochs`` iterations; ``computation`` whether matrix products are rows; ``timed`` whether their
    seconds are known and written; ``everything`` whether attention and what is no product are rows as well, which
    AICB's files have no words for."""

    epochs: int = 1
    computation: bool = False
    timed: bool = False
    everything: bool = False


def general_items(plan: Plan, work: StageWork, options: GeneralOptions) -> Iterator[GeneralItem]:
    """All rows of the first rank of the stage class, one by one."""
    yield from _init(plan)
    yield GeneralItem(comm_type=EPOCH_END)
    for _ in range(options.epochs):
        for stage, item in step_items(plan, work):
            if isinstance(item, GeneralItem):
                yield item
            else:
                yield from _rows(item, stage, options)
        yield GeneralItem(comm_type=EPOCH_END)


def step_items(plan: Plan, work: StageWork) -> Iterator[tuple[str, WorkItem | GeneralItem]]:
    """Everything that the first rank of the stage class runs in a step, in the order of the schedule, behind forward,
    backward or step; hops of the pipeline as their rows."""
    order = plan.schedule.orders((plan.pp, plan.vpp, plan.num_micro))[work.position]
    chunks = _chunks(plan, work)
    for part in order:
        yield from _pass(plan, work, chunks[part.chunk], part)
    for item in work.step:
        yield "step", item


def _init(plan: Plan) -> Iterator[GeneralItem]:
    """AICB 2.1's start-up traffic (bytes as it writes them)."""

    def row(kind: str, group: str, ranks: int, size: int, src: int | None = None) -> GeneralItem:
        return GeneralItem(
            comm_type=kind, comm_group=group, comm_group_size=ranks, msg_size=size, stage="init", src=src
        )

    if plan.dp > 1:
        yield from [row("all_reduce", "dp_group", plan.dp, 8)] * 4
    if plan.pp > 1:
        yield from [row("all_reduce", "pp_group", plan.pp, 8)] * 3
    if plan.dp > 1:
        yield row("all_gather", "dp_group", plan.dp, 32)
    if plan.tp > 1:
        yield row("broadcast", "tp_group", plan.tp, 24, 0)
    if plan.dp > 1:
        yield row("all_gather", "dp_group", plan.dp, 64)


Passes = tuple[tuple[WorkItem, ...], tuple[WorkItem, ...]]


def _chunks(plan: Plan, work: StageWork) -> list[list[Passes]]:
    """For each virtual chunk its pieces as (forward, backward); the embedding stands in the first chunk and
    the head in the last."""
    pieces = {piece.name: (piece.forward, piece.backward) for piece in work.pieces}
    if work.chunk_layers:
        dealt = [
            [pieces[f"block{kind}"] for kind, count in enumerate(layers) for _ in range(count)]
            for layers in work.chunk_layers
        ]
    else:
        layers = [
            pieces[piece.name]
            for piece in work.pieces
            if piece.name not in ("embedding", "head")
            for _ in range(piece.repeat)
        ]
        bounds = [len(layers) * chunk // plan.vpp for chunk in range(plan.vpp + 1)]
        dealt = [layers[low:high] for low, high in pairwise(bounds)]
    if "embedding" in pieces:
        dealt[0].insert(0, pieces["embedding"])
    if "head" in pieces:
        dealt[-1].append(pieces["head"])
    return dealt


def _pass(
    plan: Plan, work: StageWork, pieces: list[tuple[tuple[WorkItem, ...], tuple[WorkItem, ...]]], part: Task
) -> Iterator[tuple[str, WorkItem | GeneralItem]]:
    """One chunk of one micro-batch with the hops before and after it."""
    split = plan.schedule.traits.splits_backward
    forward = part.kind is TaskKind.FORWARD
    stage = "forward" if forward else "backward"
    if part.kind is not TaskKind.WEIGHT:
        yield from ((stage, hop) for hop in _hop(plan, work, part, receives=True))
    runs = [piece[0] for piece in pieces] if forward else [piece[1] for piece in reversed(pieces)]
    for run in runs:
        for item in run:
            late = split and item.phase is Phase.WEIGHT_GRAD
            if forward or not split or late == (part.kind is TaskKind.WEIGHT):
                yield stage, item
    if part.kind is not TaskKind.WEIGHT:
        yield from ((stage, hop) for hop in _hop(plan, work, part, receives=False))


def _hop(plan: Plan, work: StageWork, part: Task, *, receives: bool) -> Iterator[GeneralItem]:
    """The message in front of a chunk's work, or after it; none at the ends of the model."""
    forward = part.kind is TaskKind.FORWARD
    # Chunk c of stage s is link s + c pp of one long chain.
    place = work.position + part.chunk * plan.pp
    other = place - 1 if receives == forward else place + 1
    if not 0 <= other < plan.pp * plan.vpp or plan.pp == 1:
        return
    ranks = plan.world_size // plan.pp
    peer = (other % plan.pp) * ranks
    side = "prev" if other < place else "next"
    yield GeneralItem(
        comm_type="irecv" if receives else "isend",
        comm_group="pp_group",
        comm_group_size=plan.pp,
        msg_size=work.p2p_bytes,
        stage="forward" if forward else "backward",
        dst=None if receives else peer,
        src=peer if receives else None,
        additional=f"{'recv' if receives else 'send'}_{side}",
    )


def _rows(item: WorkItem, stage: str, options: GeneralOptions) -> Iterator[GeneralItem]:
    """An operation as its row; nothing for groups of one."""
    name = item.name.removeprefix("step.")
    if item.collective is None:
        if options.computation and item.shape:
            batch, rows, inner, columns = item.shape
            yield GeneralItem(
                comm_type=COMPUTATION,
                shapes=((batch, rows, inner), (inner, columns)),
                stage=f"{stage}.{name}",
                elapsed_ms=item.seconds * 1e3 if options.timed else None,
                count=item.count,
            )
        elif options.everything and item.seconds > 0:
            yield _beyond_aicb(item, f"{stage}.{name}")
        return
    if item.size_bytes and item.axis is not None:
        yield GeneralItem(
            comm_type=COMM_NAMES[item.collective],
            comm_group=GROUP_NAMES[item.axis],
            comm_group_size=item.ranks,
            msg_size=item.size_bytes,
            stage=f"{stage}.{name}",
            src=0 if item.collective is Collective.BROADCAST else None,
            count=item.count,
        )


def _beyond_aicb(item: WorkItem, stage: str) -> GeneralItem:
    """An attention as the shapes (batch, heads, tokens, dim) of its queries and of its keys and values, with
    mask, direction, kernel and window beside them; other work as its nanoseconds alone, a number as in AICB's
    files with AIOB."""
    call = item.attention
    timed = GeneralItem(comm_type=COMPUTATION, stage=stage, elapsed_ms=item.seconds * 1e3, count=item.count)
    if call is None:
        return replace(timed, msg_size=round(item.seconds / item.count * 1e9))
    queries = (call.batch, call.heads, call.q_len, call.qk_dim)
    values = (call.batch, call.kv_heads, call.kv_len, call.v_dim)
    return replace(
        timed, shapes=(queries, values), additional=f"{call.mask} {call.direction} {call.kernel} {call.window}"
    )
