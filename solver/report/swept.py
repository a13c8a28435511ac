"""A sweep as a person reads it: one row a question, the fewest GPUs that fit, and what a run takes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from solver.decision.goodput import Goodput
from solver.decision.ranking import Judged
from solver.decision.run_cost import RunCost
from solver.decision.sweep import SweepRow, efficiencies, replanned, tokens_per_s
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
    """The scaling table: the best plan of every question, with parallel efficiency against the fewest GPUs of its series."""
    axes = list(rows[0].row.values)
    goodput = any(one.goodput for one in rows)
    cost = any(one.cost for one in rows)
    header = [
        *(TITLES.get(axis, axis) for axis in axes),
        "step ms",
        "tokens/s",
        "TGS",
        "efficiency",
        "MFU %",
        "GiB",
    ]
    price = any(one.cost is not None and one.cost.price is not None for one in rows)
    money = ["days", "GPU-hours", *["price"] * price, "MWh"] if cost else []
    header += [*["goodput"] * goodput, *money, "plan"]
    cells = []
    for one, efficiency in zip(rows, efficiencies(judged.row for judged in rows), strict=True):
        said = [f"{value:,}" if isinstance(value, int) else str(value) for value in one.row.values.values()]
        found = _cells(one, efficiency, goodput=goodput, price=price)
        empty = [""] * (len(header) - len(axes) - len(found) - 1)
        plan = one.row.why_none if one.row.answer is None else one.row.answer.label()
        cells.append([*said, *found, *empty, plan])
    named = [at for at, axis in enumerate(axes) if any(isinstance(one.row.values[axis], str) for one in rows)]
    return Swept(header=header, cells=cells, words=frozenset({*named, len(header) - 1}))


def swept_lines(rows: Sequence[Judged]) -> list[str]:
    """The scaling table, and the fewest GPUs that fit."""
    found = swept_table(rows)
    lines = [table(found.cells, found.header)]
    fitting = [one.row.opened.question.job.world_size for one in rows if one.row.answer is not None]
    if "world_size" in rows[0].row.values:
        lines += [
            f"fewest GPUs that fit, of these: {min(fitting):,}" if fitting else "no plan fits any of these"
        ]
    return lines


def _cells(one: Judged, efficiency: float | None, *, goodput: bool, price: bool) -> list[str]:
    """What stands between the values of a row and its plan; nothing where there is none."""
    answer = one.row.answer
    if answer is None:
        return []
    found = [
        f"{seconds_to_ms(answer.step_s):.1f}",
        f"{tokens_per_s(one.row):,.0f}",
        f"{answer.tgs:.0f}",
        "" if efficiency is None else f"{100 * efficiency:.1f} %",
        f"{100 * answer.mfu:.1f}",
        f"{bytes_to_gib(answer.needed_bytes):.1f}",
    ]
    if goodput:
        found.append(f"{100 * one.goodput.effective:.1f} %" if one.goodput else "")
    if one.cost is not None:
        found += [f"{one.cost.days:.1f}", f"{one.cost.gpu_hours:,.0f}"]
        found += [f"{one.cost.price or 0.0:,.0f}"] * price
        found.append(f"{one.cost.energy_kwh / 1e3:,.1f}" if one.cost.energy_kwh else "not in the sheet")
    return found


def replanned_table(rows: Sequence[SweepRow]) -> Swept:
    """For every number of nodes the plan to run, which may leave some of them idle."""
    cells = []
    for row, best in replanned(rows):
        question = row.opened.question
        world = question.job.world_size
        said = [f"{question.cluster.nodes_for(world)}", f"{world:,}"]
        if best is None or best.answer is None:
            cells.append([*said, "", "", "", row.why_none])
            continue
        used = best.opened.question.job.world_size
        idle = f"{question.cluster.nodes_for(world) - question.cluster.nodes_for(used)}"
        cells.append(
            [
                *said,
                idle,
                f"{seconds_to_ms(best.answer.step_s):.1f}",
                f"{tokens_per_s(best):,.0f}",
                best.answer.label(),
            ]
        )
    header = ("nodes", "GPUs", "idle nodes", "step ms", "tokens/s", "plan")
    return Swept(header=header, cells=cells, words=frozenset({len(header) - 1}))


def goodput_line(found: Goodput) -> str:
    """How the goodput comes about."""
    waits = f" (of which {found.spare_wait_s / 60:.1f} for a node)" if found.spare_wait_s >= 0.05 else ""
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
                "why_none": one.row.why_none,
                "goodput": None if one.goodput is None else asdict(one.goodput),
                "run": None if one.cost is None else asdict(one.cost),
            }
            for one in rows
        ]
    }
