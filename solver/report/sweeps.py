"""Sections about a sweep: a row a question, the fewest GPUs that fit, what to run as nodes come and go, a whole run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite

from solver.analysis.goodput import Goodput, RunCost
from solver.analysis.sweep import (
    SweepOutcome,
    SweepRow,
    efficiencies,
    fewest_gpus,
    plans_by_nodes,
    shared_values,
    tokens_per_s,
)
from solver.problem.problem import Problem
from solver.report.files import answer_record, question_record
from solver.report.plans import in_gib, in_ms, mfu_convention
from solver.report.sections import ReportSection, Table
from spec.units import DAY_S, bytes_to_gib

TITLES = {"world_size": "GPUs", "global_batch_tokens": "batch tokens", "micro_batch": "micro-batch"}


def sweep_sections(
    rows: Sequence[SweepRow], outcomes: Sequence[SweepOutcome], *, ranked_by: str | None = None, by_nodes: bool = False
) -> list[ReportSection]:
    """Returns the sections of a sweep: ``rows`` in the order of the questions, and as they are ranked (``judged``);
    with ``by_nodes`` also what to run on every number of nodes."""
    sources = [f"answered from {source}" for source in dict.fromkeys(row.inputs.source for row in rows)]
    models = {row.inputs.problem.model.name: row.inputs.problem for row in rows}
    facts_of = {name: _facts(one, rows[0].values) for name, one in models.items()}
    facts = [f"{name}: {'; '.join(words)}" for name, words in facts_of.items() if words]
    ranked = [f"ranked by {ranked_by}"] if ranked_by else []
    fewest = [fewest_words([one.row for one in outcomes])] if "world_size" in rows[0].values else []
    sections = [
        ReportSection(
            anchor="sweep",
            title=f"{len(rows)} questions about {', '.join(models)}",
            paragraphs=[*facts, *sources, *ranked, *fewest],
            tables=(sweep_table(outcomes),),
            record=lambda: sweep_record(outcomes),
        )
    ]
    if by_nodes:
        sections.append(
            ReportSection(
                anchor="nodes",
                title="What to run as nodes come and go",
                tables=(nodes_table(rows),),
                record=lambda: {"replanned": nodes_record(rows)},
            )
        )
    if outcomes[0].goodput is not None:
        words = f"{goodput_words(outcomes[0].goodput)} (of the first row)"
        sections.append(ReportSection(anchor="run", title="The run", facts=[("goodput", words)]))
    return sections


def _facts(problem: Problem, varied: Mapping[str, object]) -> list[str]:
    """Returns what all questions about a model share, where it is not varied, and what is assumed of the model."""
    facts = [] if "framework" in varied else [f"{problem.job.preset.name} preset"]
    facts += [] if "seq_len" in varied else [f"sequences of {problem.job.seq_len:,}"]
    return [*facts, *(f"assumed: {words}" for words in problem.model.assumptions)]


def sweep_table(rows: Sequence[SweepOutcome]) -> Table:
    """Returns the best plan of every question; where worlds are varied, with parallel efficiency against the
    fewest GPUs of its series."""
    axes = list(rows[0].row.values)
    scaled = "world_size" in axes
    goodput = any(one.goodput for one in rows)
    cost = any(one.cost for one in rows)
    price = any(one.cost is not None and one.cost.price is not None for one in rows)
    header = [*(TITLES.get(axis, axis) for axis in axes), "step ms", "tokens/s", "TGS"]
    header += [
        *["efficiency"] * scaled,
        f"MFU % ({mfu_convention(rows[0].row.inputs.problem)})",
        "GiB",
        *["goodput"] * goodput,
    ]
    header += ["days", "GPU-hours", *["price"] * price, "MWh"] if cost else []
    cells = []
    for one, efficiency in zip(rows, efficiencies(outcomes.row for outcomes in rows), strict=True):
        varied = [in_words(value) for value in one.row.values.values()]
        figures = _figures(one, [_share(efficiency)] * scaled, goodput=goodput, price=price)
        empty = [""] * (len(header) - len(varied) - len(figures))
        cells.append(
            [*varied, *figures, *empty, one.row.why_none if one.row.answer is None else one.row.answer.label()]
        )
    words = frozenset({*_of_words(axes, [one.row for one in rows]), len(header)})
    # What was requested last goes last; the values of the lists, the step and the plan stay.
    important = ("tokens/s", "GiB", "price", "goodput", "days", "GPU-hours", "MWh", "efficiency")
    drops = sorted(
        range(len(axes) + 1, len(header)),
        key=lambda at: important.index(header[at]) if header[at] in important else len(important),
        reverse=True,
    )
    return Table(
        caption="the best plan of every question", header=[*header, "plan"], rows=cells, words=words, drops=drops
    )


def in_words(value: object) -> str:
    """Returns a value as it is printed."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _share(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


def _of_words(axes: Sequence[str], rows: Sequence[SweepRow]) -> list[int]:
    """Returns which of the ``axes`` have words for values."""
    return [at for at, axis in enumerate(axes) if any(isinstance(row.values[axis], str) for row in rows)]


def _figures(one: SweepOutcome, efficiency: list[str], *, goodput: bool, price: bool) -> list[str]:
    """Returns what stands between the values of a row and its plan; nothing where there is none."""
    answer = one.row.answer
    if answer is None:
        return []
    figures = [in_ms(answer.step_s), f"{tokens_per_s(one.row):,.0f}", f"{answer.tgs:.0f}", *efficiency]
    figures += [f"{100 * answer.mfu:.1f}", in_gib(answer.needed_bytes)]
    if goodput:
        figures.append(_share(None if one.goodput is None else one.goodput.effective))
    if one.cost is not None:
        figures += [f"{one.cost.days:.1f}", f"{one.cost.gpu_hours:,.0f}"]
        figures += [f"{one.cost.price or 0.0:,.0f}"] * price
        figures.append(f"{one.cost.energy_kwh / 1e3:,.1f}" if one.cost.energy_kwh else "no watts specified")
    return figures


def fewest_words(rows: Sequence[SweepRow]) -> str:
    """Returns the fewest GPUs that fit, of each series where there are several."""
    fewest = fewest_gpus(rows)
    if all(world is None for _, world in fewest):
        return "no plan fits any of these"
    if len({world for _, world in fewest}) == 1:
        return f"fewest GPUs that fit, of these: {fewest[0][1]:,}{', in each series' * (len(fewest) > 1)}"
    series = [f"{row_name(values)}: {'none' if world is None else f'{world:,}'}" for values, world in fewest]
    return f"fewest GPUs that fit, of these: {'; '.join(series)}"


def row_name(values: Mapping[str, object]) -> str:
    """Returns what is varied, in words."""
    return ", ".join(f"{TITLES.get(axis, axis)} {in_words(value)}" for axis, value in values.items())


def nodes_table(rows: Sequence[SweepRow]) -> Table:
    """Returns for every number of nodes of each series the plan to run, which may leave some of them idle."""
    axes = list(shared_values(rows[0]))
    header = [*(TITLES.get(axis, axis) for axis in axes), "nodes", "GPUs", "idle nodes", "step ms", "tokens/s"]
    cells = []
    for row, best in plans_by_nodes(rows):
        cluster, world = row.inputs.problem.cluster, row.inputs.problem.job.world_size
        varied = [in_words(value) for value in shared_values(row).values()]
        varied += [f"{cluster.nodes_for(world)}", f"{world:,}"]
        if best is None or best.answer is None:
            cells.append([*varied, "", "", "", row.why_none])
            continue
        figures = [f"{_idle_nodes(row, best)}", in_ms(best.answer.step_s), f"{tokens_per_s(best):,.0f}"]
        cells.append([*varied, *figures, best.answer.label()])
    return Table(
        caption="what to run as nodes come and go",
        header=[*header, "plan"],
        rows=cells,
        words=frozenset({*_of_words(axes, rows), len(header)}),
        drops=(len(header) - 1, len(header) - 3),
    )


def nodes_record(rows: Sequence[SweepRow]) -> list[dict[str, object]]:
    """Returns the same as plain values."""
    return [
        {
            "values": row.values,
            "idle_nodes": None if best is None else _idle_nodes(row, best),
            "best": None if best is None or best.answer is None else answer_record(best.answer),
            "why_none": row.why_none if best is None else "",
        }
        for row, best in plans_by_nodes(rows)
    ]


def _idle_nodes(row: SweepRow, runs: SweepRow) -> int:
    cluster = row.inputs.problem.cluster
    used = runs.inputs.problem.job.world_size
    return cluster.nodes_for(row.inputs.problem.job.world_size) - cluster.nodes_for(used)


def run_sections(goodput: Goodput | None, cost: RunCost | None) -> list[ReportSection]:
    """Returns the goodput of one plan and what a run with it takes, where requested."""
    facts = [] if goodput is None else [("goodput", goodput_words(goodput))]
    facts += [] if cost is None else [("run", cost_words(cost))]
    results = {"goodput": goodput, "run": cost}

    def record() -> dict[str, object]:
        return {key: asdict(one) for key, one in results.items() if one is not None}

    return [ReportSection(anchor="run", title="The run", facts=facts, record=record)] if facts else []


def goodput_words(goodput: Goodput) -> str:
    """Returns how the goodput comes about."""
    waits = f" (of which {goodput.spare_wait_s / 60:.1f} for a node)" if goodput.spare_wait_s >= 3.0 else ""
    return (
        f"{100 * goodput.effective:.1f} % of the time trains: an interruption every {goodput.mtbf_s / 3600:.1f} h, "
        f"{goodput.restart_s / 60:.1f} min to train again{waits}, a checkpoint of "
        f"{bytes_to_gib(goodput.checkpoint_bytes):,.0f} GiB in {goodput.checkpoint_s:.1f} s every "
        f"{goodput.interval_s / 60:.1f} min"
    )


def cost_words(run: RunCost) -> str:
    """Returns what a run takes."""
    if not isfinite(run.seconds):
        return f"{run.tokens / 1e9:,.1f} G tokens: never ends, as an interruption comes before every checkpoint"
    cost = "" if run.price is None else f", cost: {run.price:,.0f}"
    energy = (
        f", {run.energy_kwh / 1e3:,.1f} MWh at the hardware spec's watts"
        if run.energy_kwh
        else ", the hardware spec has no watts"
    )
    return (
        f"{run.tokens / 1e9:,.1f} G tokens: {run.seconds / DAY_S:.1f} days, "
        f"{run.gpu_hours:,.0f} GPU-hours{cost}{energy}"
    )


def sweep_record(rows: Sequence[SweepOutcome]) -> dict[str, object]:
    """Returns a sweep as plain values."""
    return {
        "sweep": [
            {
                "values": one.row.values,
                "question": question_record(one.row.inputs.problem),
                "best": None if one.row.answer is None else answer_record(one.row.answer),
                "efficiency": efficiency,
                "why_none": one.row.why_none,
                "goodput": None if one.goodput is None else asdict(one.goodput),
                "run": None if one.cost is None else asdict(one.cost),
            }
            for one, efficiency in zip(rows, efficiencies(outcomes.row for outcomes in rows), strict=True)
        ]
    }
