"""A sweep as a person reads it: one row a question, the fewest GPUs that fit, and what a run takes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from solver.analysis.goodput import Goodput, RunCost
from solver.analysis.sweep import (
    Judged,
    SweepRow,
    efficiencies,
    fewest_gpus,
    replanned,
    shared_values,
    tokens_per_s,
)
from solver.report.result_files import answer_record, question_record
from solver.report.tables import table
from spec.units import DAY_S, bytes_to_gib, seconds_to_ms

TITLES = {"world_size": "GPUs", "global_batch_tokens": "batch tokens", "micro_batch": "micro-batch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A table of a sweep: its ``header``, the ``cells`` of its rows, and which columns are ``words``."""

    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    words: frozenset[int]


def swept_table(rows: Sequence[Judged]) -> Swept:
    """The best plan of every question; where worlds are varied, with parallel efficiency against the fewest
    GPUs of its series.
    """
    axes = list(rows[0].row.values)
    scaled = "world_size" in axes
    goodput = any(one.goodput for one in rows)
    cost = any(one.cost for one in rows)
    header = [
        *(TITLES.get(axis, axis) for axis in axes),
        "step ms",
        "tokens/s",
        "TGS",
        *["efficiency"] * scaled,
        "MFU %",
        "GiB",
    ]
    price = any(one.cost is not None and one.cost.price is not None for one in rows)
    money = ["days", "GPU-hours", *["price"] * price, "MWh"] if cost else []
    header += [*["goodput"] * goodput, *money, "plan"]
    cells = []
    for one, efficiency in zip(rows, efficiencies(judged.row for judged in rows), strict=True):
        said = [_said(value) for value in one.row.values.values()]
        found = _cells(one, [_share(efficiency)] * scaled, goodput=goodput, price=price)
        empty = [""] * (len(header) - len(axes) - len(found) - 1)
        plan = one.row.why_none if one.row.answer is None else one.row.answer.label()
        cells.append([*said, *found, *empty, plan])
    named = _of_words(axes, [one.row for one in rows])
    return Swept(header=header, cells=cells, words=frozenset({*named, len(header) - 1}))


def _said(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _share(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


def _of_words(axes: Sequence[str], rows: Sequence[SweepRow]) -> list[int]:
    """Which of the ``axes`` hold words."""
    return [at for at, axis in enumerate(axes) if any(isinstance(row.values[axis], str) for row in rows)]


def swept_lines(rows: Sequence[Judged]) -> list[str]:
    """The table, and the fewest GPUs that fit."""
    found = swept_table(rows)
    lines = [table(found.cells, found.header)]
    if "world_size" in rows[0].row.values:
        lines.append(fewest_line([one.row for one in rows]))
    return lines


def fewest_line(rows: Sequence[SweepRow]) -> str:
    """The fewest GPUs that fit, of each series where there are several."""
    fewest = fewest_gpus(rows)
    if all(world is None for _, world in fewest):
        return "no plan fits any of these"
    if len({world for _, world in fewest}) == 1:
        return f"fewest GPUs that fit, of these: {fewest[0][1]:,}{', in each series' * (len(fewest) > 1)}"
    said = [f"{row_name(values)}: {'none' if world is None else f'{world:,}'}" for values, world in fewest]
    return f"fewest GPUs that fit, of these: {'; '.join(said)}"


def row_name(values: Mapping[str, object]) -> str:
    """What is varied, in words."""
    return ", ".join(f"{TITLES.get(axis, axis)} {_said(value)}" for axis, value in values.items())


def _cells(one: Judged, efficiency: list[str], *, goodput: bool, price: bool) -> list[str]:
    """What stands between the values of a row and its plan; nothing where there is none."""
    answer = one.row.answer
    if answer is None:
        return []
    found = [
        f"{seconds_to_ms(answer.step_s):.1f}",
        f"{tokens_per_s(one.row):,.0f}",
        f"{answer.tgs:.0f}",
        *efficiency,
        f"{100 * answer.mfu:.1f}",
        f"{bytes_to_gib(answer.needed_bytes):.1f}",
    ]
    if goodput:
        found.append(_share(None if one.goodput is None else one.goodput.effective))
    if one.cost is not None:
        found += [f"{one.cost.days:.1f}", f"{one.cost.gpu_hours:,.0f}"]
        found += [f"{one.cost.price or 0.0:,.0f}"] * price
        found.append(f"{one.cost.energy_kwh / 1e3:,.1f}" if one.cost.energy_kwh else "not in the sheet")
    return found


def replanned_table(rows: Sequence[SweepRow]) -> Swept:
    """For every number of nodes of each series the plan to run, which may leave some of them idle."""
    axes = list(shared_values(rows[0]))
    header = (
        *(TITLES.get(axis, axis) for axis in axes),
        "nodes",
        "GPUs",
        "idle nodes",
        "step ms",
        "tokens/s",
        "plan",
    )
    cells = []
    for row, best in replanned(rows):
        question = row.opened.question
        world = question.job.world_size
        said = [_said(value) for value in shared_values(row).values()]
        said += [f"{question.cluster.nodes_for(world)}", f"{world:,}"]
        if best is None or best.answer is None:
            cells.append([*said, "", "", "", row.why_none])
            continue
        cells.append(
            [
                *said,
                f"{_idle_nodes(row, best)}",
                f"{seconds_to_ms(best.answer.step_s):.1f}",
                f"{tokens_per_s(best):,.0f}",
                best.answer.label(),
            ]
        )
    return Swept(header=header, cells=cells, words=frozenset({*_of_words(axes, rows), len(header) - 1}))


def replanned_record(rows: Sequence[SweepRow]) -> list[dict[str, object]]:
    """The same as plain values."""
    return [
        {
            "values": row.values,
            "idle_nodes": None if best is None else _idle_nodes(row, best),
            "best": None if best is None or best.answer is None else answer_record(best.answer),
            "why_none": row.why_none if best is None else "",
        }
        for row, best in replanned(rows)
    ]


def _idle_nodes(row: SweepRow, runs: SweepRow) -> int:
    cluster = row.opened.question.cluster
    used = runs.opened.question.job.world_size
    return cluster.nodes_for(row.opened.question.job.world_size) - cluster.nodes_for(used)


def goodput_line(found: Goodput) -> str:
    """How the goodput comes about."""
    waits = f" (of which {found.spare_wait_s / 60:.1f} for a node)" if found.spare_wait_s >= 3.0 else ""
    return (
        f"goodput  {100 * found.effective:.1f} % of the time trains: an interruption every {found.mtbf_s / 3600:.1f} h, "
        f"{found.restart_s / 60:.1f} min to train again{waits}, a checkpoint of {bytes_to_gib(found.checkpoint_bytes):,.0f} GiB "
        f"in {found.checkpoint_s:.1f} s every {found.interval_s / 60:.1f} min"
    )


def cost_line(found: RunCost) -> str:
    """What a run takes."""
    price = "" if found.price is None else f", {found.price:,.0f} in the price's currency"
    energy = (
        f", {found.energy_kwh / 1e3:,.1f} MWh at the sheet's watts"
        if found.energy_kwh
        else ", the sheet has no watts"
    )
    return (
        f"run      {found.tokens / 1e9:,.1f} G tokens: {found.seconds / DAY_S:.1f} days, "
        f"{found.gpu_hours:,.0f} GPU-hours{price}{energy}"
    )


def swept_record(rows: Sequence[Judged]) -> dict[str, object]:
    """A sweep as plain values."""
    return {
        "sweep": [
            {
                "values": one.row.values,
                "question": question_record(one.row.opened.question),
                "best": None if one.row.answer is None else answer_record(one.row.answer),
                "efficiency": efficiency,
                "why_none": one.row.why_none,
                "goodput": None if one.goodput is None else asdict(one.goodput),
                "run": None if one.cost is None else asdict(one.cost),
            }
            for one, efficiency in zip(rows, efficiencies(judged.row for judged in rows), strict=True)
        ]
    }
