"""A plan as a SimAI workload: one representative rank of its slowest stage.

The simulator runs forwards from the first row to the last, and backwards from the last row to the first. So the rows of
the step's end come first, and the operations of a backward from the last row up. What the format cannot express goes,
with bytes and seconds, into a file beside it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ops.op import Axis, Lane, Phase
from ops.roles import Role
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.collectives import Collective
from spec.errors import ExportError
from spec.files import atomic_file
from workload.simai.format import PREFIXES, SimaiGroup, SimaiHeader, SimaiPass, SimaiRow, SimaiWorkload, write_token
from workload.simai.writer import nanoseconds, split_row, write_simai
from workload.stage_work import PieceWork, StageWork, WorkItem, slowest, stage_works

COLLECTIVES = set(PREFIXES.values())
OVER_DATA = (SimaiGroup.DP, SimaiGroup.DP_EP)
OF_EXPERTS = write_token(Collective.ALL_TO_ALL, SimaiGroup.EP, SimaiPass.FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """Traffic or time that the format cannot express, summed over a step of the exported rank."""

    what: str
    collective: str
    axis: str
    count: int
    total_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiExport:
    """The files of an export, what they leave out, and a line for each collective that they have over another group."""

    paths: tuple[Path, ...]
    rows: int
    beyond: tuple[Beyond, ...]
    resized: tuple[str, ...]

    def beyond_lines(self, launches_s: float = 0.0) -> list[str]:
        """Returns one line for each entry that the file leaves out or has over another group; ``launches_s`` are the
        step's seconds of kernel launches."""
        return [
            *self.resized,
            *(
                f"not in the SimAI file: {one.what} ({one.collective} over {one.axis}): {one.count} x, "
                f"{one.total_bytes:,} bytes, {one.seconds * 1e3:.3f} ms"
                for one in self.beyond
            ),
            *([f"not in the SimAI file: kernel launches: {launches_s * 1e3:.3f} ms"] if launches_s else ()),
        ]


SLOWEST = "slowest"
ALL = "all"


def select_stages(works: tuple[StageWork, ...], stage: str) -> tuple[StageWork, ...]:
    """Returns the stage classes of ``stage``: "slowest", "all" (one of each class) or the number of a stage;
    ExportError for a stage that does not exist."""
    if stage == SLOWEST:
        return (slowest(works),)
    if stage == ALL:
        return works
    last = works[-1].position + works[-1].count - 1
    number = int(stage) if stage.isdecimal() else -1
    for work in works:
        if work.position <= number < work.position + work.count:
            return (work,)
    raise ExportError(f"stage {stage!r}: {SLOWEST}, {ALL} or a number from 0 to {last}")


def export_simai(problem: Problem, plan: Plan, path: Path, *, strict: bool, stage: str = SLOWEST) -> SimaiExport:
    """Writes ``plan`` to ``path`` and what the format cannot express to ``path``.beyond.json; with several stages one
    file each, named after the stage. Raises ExportError when a rule of the format cannot be met, and with ``strict``
    when the format cannot express something."""
    return export_works(plan, select_stages(stage_works(problem, plan), stage), path, strict=strict)


def export_works(plan: Plan, works: tuple[StageWork, ...], path: Path, *, strict: bool) -> SimaiExport:
    """Returns the same for stages already built."""
    parts = []
    for work in works:
        target = path if len(works) == 1 else path.with_stem(f"{path.stem}-stage{work.position}")
        parts.append(_export_work(plan, work, target, strict=strict))
    return SimaiExport(
        paths=tuple(each for part in parts for each in part.paths),
        rows=sum(part.rows for part in parts),
        beyond=tuple(each for part in parts for each in part.beyond),
        resized=tuple(each for part in parts for each in part.resized),
    )


def _export_work(plan: Plan, work: StageWork, path: Path, *, strict: bool) -> SimaiExport:
    header = header_of(plan, work)
    beyond = tuple(beyond_of(work, header, plan))
    if strict and beyond:
        raise ExportError(f"{path}: a SimAI workload has no word for {', '.join(sorted({one.what for one in beyond}))}")
    rows = write_simai(path, SimaiWorkload(header=header, rows=rows_of(work, header, plan)))
    paths = [path]
    if beyond:
        side = path.with_name(f"{path.name}.beyond.json")
        with atomic_file(side) as handle:
            json.dump([asdict(one) for one in beyond], handle, indent=2)
            handle.write("\n")
        paths.append(side)
    return SimaiExport(paths=tuple(paths), rows=rows, beyond=beyond, resized=tuple(_resized(work, header, plan)))


def header_of(plan: Plan, work: StageWork) -> SimaiHeader:
    """Returns line 1 of the file."""
    return SimaiHeader(
        **{degree: getattr(plan, degree) for degree in ("tp", "ep", "pp", "vpp")},
        ga=plan.num_micro,
        all_gpus=plan.world_size,
        pp_comm_bytes=work.p2p_bytes,
    )


def group_of_item(item: WorkItem, header: SimaiHeader, plan: Plan) -> SimaiGroup:
    """Returns the group that SimAI would time the item's collective with; NONE when it has none of that size. Experts
    that fewer tensor-parallel ranks cut have another number of replicas: their group is one of another size, in which
    ``cell_bytes`` move."""
    groups = {
        Axis.TP: (SimaiGroup.TP,),
        Axis.EP: (SimaiGroup.EP,),
        Axis.ETP: (SimaiGroup.TP,),
        Axis.DP_CP: (SimaiGroup.DP,),
        Axis.ZERO_SHARD: (SimaiGroup.DP,),
        Axis.WDP: (SimaiGroup.DP,),
        Axis.EDP: (SimaiGroup.DP_EP, SimaiGroup.DP),
    }
    candidates = groups.get(item.axis, ()) if item.axis and item.collective in COLLECTIVES else ()
    ranks = {group: header.group_ranks(group) for group in candidates}
    others = [group for group in ranks if item.axis is Axis.EDP and ranks[group] > 1]
    return next((group for group in ranks if ranks[group] == item.ranks), (*others, SimaiGroup.NONE)[0])


def cell_bytes(item: WorkItem, header: SimaiHeader, plan: Plan) -> int:
    """Returns the array (bytes) of the item's collective, or where the group has another number of ranks the array of
    which each of them sends as many bytes in a ring, (n - 1) / n of it."""
    ranks = header.group_ranks(group_of_item(item, header, plan))
    if ranks == item.ranks:
        return item.total_bytes
    return round(item.total_bytes * (item.ranks - 1) / item.ranks * ranks / (ranks - 1))


def fits_format(item: WorkItem, header: SimaiHeader, plan: Plan) -> bool:
    """Returns whether the item's collective can be a cell: the format has its word and its group in its pass."""
    group = group_of_item(item, header, plan)
    over_data = group in OVER_DATA
    if over_data and (item.phase is Phase.WEIGHT_GRAD or item.collective is Collective.ALL_GATHER):
        # The simulator does not wait for this pass within a micro-batch; gathers of sharded weights go there too.
        return True
    # A prefetch or an exchange beside another micro-batch would be exposed in the file.
    if item.lane in (Lane.PREFETCH, Lane.ACROSS) or group is SimaiGroup.NONE:
        return False
    return (item.phase is Phase.STEP) == over_data


def _resized(work: StageWork, header: SimaiHeader, plan: Plan) -> Iterator[str]:
    """Yields a line for each collective of the step's end whose group in the file has another number of ranks."""
    for item in work.step:
        group = group_of_item(item, header, plan)
        if group is not SimaiGroup.NONE and (ranks := header.group_ranks(group)) != item.ranks:
            yield (
                f"over {group.value} of {ranks} ranks in the SimAI file: {item.name} ({item.collective} over {item.axis} of "
                f"{item.ranks}), as many bytes from each rank"
            )


def beyond_of(work: StageWork, header: SimaiHeader, plan: Plan) -> Iterator[Beyond]:
    """Yields everything of the step that no row has, summed by name, collective and axis."""
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for times, item in work.per_step():
        if item.host_bytes:
            key = (item.name, "copy", "the host link")
        elif item.collective is None or not item.size_bytes or fits_format(item, header, plan):
            continue
        else:
            key = (item.name, item.collective.value, str(item.axis))
        count, size, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = (
            count + times * item.count,
            size + times * (item.total_bytes + item.host_bytes * item.count),
            seconds + times * item.seconds,
        )
    for (what, collective, axis), (count, size, seconds) in sums.items():
        yield Beyond(what=what, collective=collective, axis=axis, count=count, total_bytes=size, seconds=seconds)
    if work.p2p_messages:
        count = work.p2p_messages * work.num_micro
        yield Beyond(
            what="pipeline transfers",
            collective="p2p",
            axis="pp",
            count=count,
            total_bytes=count * work.p2p_bytes,
            seconds=count * work.p2p_s,
        )


def rows_of(work: StageWork, header: SimaiHeader, plan: Plan) -> Iterator[SimaiRow]:
    """Yields all rows: those of the step's end, then those of every micro-batch."""
    for row in _step_rows(work, header, plan):
        yield from split_row(row)
    micro_batch = [
        part
        for piece in work.pieces
        for row in list(_piece_rows(piece, header, plan)) * piece.repeat
        for part in split_row(row)
    ]
    for _ in range(work.num_micro):
        yield from micro_batch


def _step_rows(work: StageWork, header: SimaiHeader, plan: Plan) -> list[SimaiRow]:
    """Returns the rows of the step's end: gather of parameters, update, reduction of gradients. In this order, because
    the backward runs rows from last to first; the update is weight-grad compute of a row of its own."""
    comms = [
        one for item in work.step if item.collective and fits_format(item, header, plan) for one in _launches(item)
    ]
    update_s = sum(item.seconds for item in work.step if item.collective is None and not item.host_bytes)
    gathers = [item for item in comms if item.role is Role.PARAMETER_GATHER]
    reductions = [item for item in comms if item.role is not Role.PARAMETER_GATHER]
    rows = [_comm_row(item, SimaiPass.WEIGHT_GRAD, header, plan) for item in reversed(gathers)]
    rows.append(SimaiRow(name="optimizer", weight_grad_ns=nanoseconds(update_s, what="optimizer")))
    return rows + [_comm_row(item, SimaiPass.WEIGHT_GRAD, header, plan) for item in reversed(reductions)]


def _comm_row(item: WorkItem, column: SimaiPass, header: SimaiHeader, plan: Plan) -> SimaiRow:
    return SimaiRow(name=item.name.replace(" ", "_")).with_pass(
        column, compute_ns=0, comm=_token(item, column, header, plan), size_bytes=cell_bytes(item, header, plan)
    )


def _token(item: WorkItem, column: SimaiPass, header: SimaiHeader, plan: Plan) -> str:
    if item.collective is None:
        raise ExportError(f"{item.name}: no collective to write")
    return write_token(item.collective, group_of_item(item, header, plan), column)


def _launches(item: WorkItem) -> list[WorkItem]:
    """Returns each launch of an item as an item of its own."""
    return [replace(item, count=1, seconds=item.seconds / item.count)] * item.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Compute up to and including one collective (or to the end of the pass)."""

    name: str
    main_s: float
    weight_s: float
    comm: WorkItem | None


def _segments(items: tuple[WorkItem, ...], header: SimaiHeader, plan: Plan) -> list[_Segment]:
    """Returns a pass cut after every collective that the format has."""
    segments: list[_Segment] = []
    main_s = weight_s = 0.0
    name = ""
    for item in items:
        # Copies to the host are beyond the format.
        if item.host_bytes:
            continue
        if item.collective is None:
            name = item.name
            if item.phase is Phase.WEIGHT_GRAD:
                weight_s += item.seconds
            else:
                main_s += item.seconds
        elif item.size_bytes and fits_format(item, header, plan):
            # Several launches are several rows: one large one would take another time.
            for one in _launches(item):
                segments.append(_Segment(name=item.name, main_s=main_s, weight_s=weight_s, comm=one))
                main_s = weight_s = 0.0
    if main_s or weight_s:
        segments.append(_Segment(name=name, main_s=main_s, weight_s=weight_s, comm=None))
    return segments


def _groups(segment: _Segment, header: SimaiHeader, plan: Plan) -> SimaiGroup:
    """Returns the group of a segment's collective."""
    return group_of_item(segment.comm, header, plan) if segment.comm else SimaiGroup.NONE


def _side_by_side(
    forward: list[_Segment], backward: list[_Segment], header: SimaiHeader, plan: Plan
) -> Iterator[tuple[_Segment, _Segment]]:
    """Yields a forward and a backward segment for each row, both in file order. SimAI books both collectives of a row
    under the group of the forward's, and a row has one collective over data: what would be booked wrongly or meet
    another there gets a row of its own."""
    empty = _Segment(name="", main_s=0.0, weight_s=0.0, comm=None)
    ahead, back = list(forward), list(backward)
    while ahead or back:
        groups = [_groups(each[0], header, plan) if each else SimaiGroup.NONE for each in (ahead, back)]
        experts = {group is SimaiGroup.EP for group in groups if group not in (SimaiGroup.NONE, *OVER_DATA)}
        if ahead and back and (len(experts) > 1 or all(group in OVER_DATA for group in groups)):
            yield ahead.pop(0), empty
        else:
            yield ahead.pop(0) if ahead else empty, back.pop(0) if back else empty


def _piece_rows(piece: PieceWork, header: SimaiHeader, plan: Plan) -> Iterator[SimaiRow]:
    """Yields the rows of a piece: forward segments from the first row on, backward segments from the last row up."""
    forward = _segments(piece.forward, header, plan)
    backward = _segments(piece.backward, header, plan)[::-1]
    for ahead, back in _side_by_side(forward, backward, header, plan):
        # The simulator leaves a row of this name out of the pipeline bubble.
        name = "embedding_layer" if piece.name == "embedding" else ahead.name or piece.name
        row = SimaiRow(
            name=name,
            forward_ns=nanoseconds(ahead.main_s, what=name),
            input_grad_ns=nanoseconds(back.main_s, what=name),
            weight_grad_ns=nanoseconds(back.weight_s, what=name),
        )
        if _groups(back, header, plan) is SimaiGroup.EP:
            row = row.with_pass(SimaiPass.FORWARD, compute_ns=row.forward_ns, comm=OF_EXPERTS, size_bytes=0)
        for pass_column, segment in ((SimaiPass.FORWARD, ahead), (SimaiPass.INPUT_GRAD, back)):
            if segment.comm is not None:
                over_data = group_of_item(segment.comm, header, plan) in OVER_DATA
                column = SimaiPass.WEIGHT_GRAD if over_data else pass_column
                row = row.with_pass(
                    column,
                    compute_ns=row.compute_ns(column),
                    comm=_token(segment.comm, column, header, plan),
                    size_bytes=cell_bytes(segment.comm, header, plan),
                )
        yield row
