"""The page of a log (--report): iterations, where their time goes, a time line, bandwidths, outliers, slow ranks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from runner.logs.analysis import SlowRank, SummaryRow, TimeSpread, drift, drift_lines, rows_by_size, slow_operations
from runner.logs.log import Log, size_text
from runner.logs.pictures import (
    Piece,
    bandwidth_picture,
    counts_picture,
    shares_picture,
    steps_picture,
    timeline_picture,
)
from solver.report.html import write_page
from solver.report.sections import KeyFigure, Page, ReportSection, Table
from workload.aicb.csv_workload import COMPUTATION, GeneralItem

AICB_UNIT = "GiB/s as AICB counts it"
MEASURED = "Times are measured."
MOST_OPEN = 20
"""Rows of a table of outliers that is open when the page is."""
WORDS = frozenset({0, 1})


def log_page(name: str, log: Log, slow: Sequence[SlowRank]) -> Page:
    """Returns the page of a log of at least one operation, or of a workload before its run."""
    if log.unrun:
        return _unrun_page(name, log)
    sections = [*log_sections(log), *_outliers(log, slow), *_tables(log)]
    finished = len(log.epoch_times[1:])
    words = [f"{finished} iteration{'s' * (finished != 1)} of {len(log.comm_logs):,} operations in all"]
    if log.incomplete:
        words.append(f"the log ends inside epoch {len(log.epoch_times)}")
    return Page(title=name, lead=words, tiles=tuple(_tiles(log, slow)), sections=sections, numbers=MEASURED)


def write_log_page(name: str, log: Log, slow: Sequence[SlowRank], folder: Path) -> list[str]:
    """Returns a line on the page of --report once it is written."""
    return [f"wrote {write_page(log_page(name, log, slow), folder)}"]


def _unrun_page(name: str, log: Log) -> Page:
    counts: dict[str, dict[int, int]] = {}
    for item in log.comm_logs:
        if item.comm_group and item.msg_size:
            sizes = counts.setdefault(kind_of(item), {})
            sizes[item.msg_size] = sizes.get(item.msg_size, 0) + 1
    rows = [
        [*_named(row), str(row.spread.count), size_text(row.size_bytes * row.spread.count)]
        for row in rows_by_size(log.comm_logs)
    ]
    header = ("operation", "over", "ranks", "size", "count", "in all")
    section = ReportSection(
        anchor="operations",
        title="By operation, group and size",
        pictures=(counts_picture(counts),) if counts else (),
        tables=(Table(caption="operations", header=header, rows=rows, words=WORDS),),
    )
    lead = (f"a workload of {len(log.comm_logs):,} operations that was not run",)
    return Page(title=name, lead=lead, tiles=(), sections=(section,), numbers="Nothing was measured.")


def log_sections(log: Log, predicted_ms: tuple[float, float, float] | None = None) -> Iterator[ReportSection]:
    """Yields iterations, shares, time line and bandwidth, those that the log has."""
    times = log.epoch_times[1:]
    epochs = log.comm_log_each_epoch[1 : 1 + len(times)]
    if times:
        yield steps_section(times, "iteration", predicted_ms)
        order = np.argsort(times)
        chosen = {"fastest": int(order[0]), "middle": int(order[len(times) // 2]), "slowest": int(order[-1])}
        bars = [
            (f"{word} iteration ({place + 1}): {times[place]:,.4g} ms", kinds)
            for word, place in chosen.items()
            if (kinds := milliseconds_by_kind(epochs[place]))
        ]
        if bars:
            yield ReportSection(
                anchor="shares", title="Where the time goes", pictures=(shares_picture("shares", bars, "ms"),)
            )
            middle = chosen["middle"]
            picture = timeline_picture(
                list(pieces_of(epochs[middle])), f"iteration {middle + 1}, the one in the middle"
            )
            yield ReportSection(anchor="timeline", title="Time line", pictures=(picture,))
    points = bandwidths([item for epoch in log.comm_log_each_epoch[1:] for item in epoch])
    if points:
        picture = bandwidth_picture(points, {}, AICB_UNIT)
        yield ReportSection(anchor="bandwidth", title="Bandwidth", pictures=(picture,))


def steps_section(
    times_ms: Sequence[float], what: str, predicted_ms: tuple[float, float, float] | None = None
) -> ReportSection:
    """Returns the times of steps or iterations, and their drift where there is one."""
    spread = TimeSpread.of(times_ms)
    facts = (
        ("mean", f"{spread.mean_ms:,.4g} ms, standard deviation {spread.std_ms:,.4g}"),
        ("range", f"{spread.min_ms:,.4g} to {spread.max_ms:,.4g} ms, 90 % below {spread.p90_ms:,.4g}"),
    )
    return ReportSection(
        anchor="steps",
        title=f"{what}s".capitalize(),
        paragraphs=drift_lines(times_ms, f"{what}s"),
        facts=facts,
        pictures=(steps_picture(times_ms, what, predicted_ms),),
    )


def kind_of(item: GeneralItem) -> str:
    """Returns ``all_reduce tp``, or ``forward computation``."""
    if item.comm_type == COMPUTATION:
        phase = item.stage.partition(".")[0]
        return f"{phase} {COMPUTATION}".strip()
    return f"{item.comm_type} {item.comm_group.removesuffix('_group')}".strip()


def bandwidths(items: Sequence[GeneralItem]) -> dict[str, list[tuple[int, float, float, float]]]:
    """Returns the bus bandwidths of collectives by kind and group, the middle 80 % of each size and their median."""
    rates: dict[tuple[str, int], list[float]] = {}
    for item in items:
        if item.busbw and item.msg_size:
            rates.setdefault((kind_of(item), item.msg_size), []).append(item.busbw)
    result: dict[str, list[tuple[int, float, float, float]]] = {}
    for (kind, size), values in rates.items():
        low, middle, high = (float(one) for one in np.percentile(values, (10, 50, 90)))
        result.setdefault(kind, []).append((size, low, middle, high))
    return result


def milliseconds_by_kind(items: Sequence[GeneralItem]) -> dict[str, float]:
    """Returns the milliseconds of each kind of operation, those of the longest first."""
    result: dict[str, float] = {}
    for item in items:
        result[kind_of(item)] = result.get(kind_of(item), 0.0) + (item.elapsed_ms or 0.0)
    return dict(sorted(((kind, ms) for kind, ms in result.items() if ms > 0), key=lambda one: -one[1]))


def pieces_of(items: Sequence[GeneralItem]) -> Iterator[Piece]:
    """Yields the operations of an iteration, which ran one after another."""
    at_ms = 0.0
    for item in items:
        row = item.comm_group.removesuffix("_group") or item.comm_type
        yield Piece(row=row, kind=kind_of(item), start_ms=at_ms, ms=item.elapsed_ms or 0.0)
        at_ms += item.elapsed_ms or 0.0


def _tiles(log: Log, slow: Sequence[SlowRank]) -> Iterator[KeyFigure]:
    times = log.epoch_times[1:]
    items = [item for epoch in log.comm_log_each_epoch[1:] for item in epoch]
    if times:
        spread = TimeSpread.of(times)
        note = f"median; jitter {100 * spread.jitter:.1f} % of the mean"
        yield KeyFigure(label="iteration", value=f"{float(np.median(times)):,.4g} ms", note=note)
    whole_ms = sum(item.elapsed_ms or 0.0 for item in items)
    if whole_ms:
        apart_ms = sum(item.elapsed_ms or 0.0 for item in items if item.comm_type != COMPUTATION)
        share = f"{100 * apart_ms / whole_ms:.1f} %"
        yield KeyFigure(label="communication", value=share, note="of the operations' time, waiting included")
    change = drift(times)
    value = f"{100 * change:+.1f} %" if change else "none"
    yield KeyFigure(label="drift", value=value, note="last third of the iterations against the first")
    yield KeyFigure(label="outliers", value=f"{len(slow_operations(log)):,}", note="operations far above their like")
    if slow:
        yield KeyFigure(label="slow ranks", value=f"{len(slow)}", note=f"rank {slow[0].rank} most")


def _outliers(log: Log, slow: Sequence[SlowRank]) -> Iterator[ReportSection]:
    rows = [
        [
            f"{one.item.comm_type} {one.item.stage}".strip(),
            one.item.comm_group.removesuffix("_group"),
            str(one.iteration),
            str(one.place),
            f"{one.item.elapsed_ms or 0.0:,.4g}",
            f"{one.median_ms:,.4g}",
            f"{(one.item.elapsed_ms or 0.0) / one.median_ms:.2f}",
        ]
        for one in slow_operations(log)
    ]
    if slow or rows:
        header = ("operation", "over", "iteration", "place", "ms", "median ms", "ratio")
        table = Table(
            caption="operations far above their like",
            header=header,
            rows=rows,
            words=WORDS,
            folded=len(rows) > MOST_OPEN,
        )
        yield ReportSection(
            anchor="outliers",
            title="Slow ranks and operations",
            paragraphs=[one.line() for one in slow],
            tables=(table,) if rows else (),
        )


def _tables(log: Log) -> Iterator[ReportSection]:
    stages = (("iterations", log.comm_log_each_epoch[1:]), ("initialisation", log.comm_log_each_epoch[:1]))
    tables = [
        Table(
            caption=f"operations of {stage}, ms",
            header=(
                "operation",
                "over",
                "ranks",
                "size",
                "count",
                "mean",
                "std",
                "min",
                "max",
                "p90",
                "in all",
                "busbw",
            ),
            rows=[_cells(row) for row in rows],
            words=WORDS,
            folded=stage == "initialisation",
        )
        for stage, epochs in stages
        if (rows := rows_by_size([item for epoch in epochs for item in epoch]))
    ]
    if tables:
        yield ReportSection(
            anchor="operations",
            title="By operation, group and size",
            paragraphs=(f"busbw in {AICB_UNIT}; a collective's time includes waiting for late ranks",),
            tables=tables,
        )


def _cells(row: SummaryRow) -> list[str]:
    spread = row.spread
    computation = row.kind == COMPUTATION
    times = (spread.mean_ms, spread.std_ms, spread.min_ms, spread.max_ms, spread.p90_ms, spread.count * spread.mean_ms)
    return [
        *_named(row),
        str(spread.count),
        *(f"{value:,.4g}" for value in times),
        "" if computation else f"{row.busbw:.3g}",
    ]


def _named(row: SummaryRow) -> list[str]:
    """Kind, group, ranks and size of a row; computation has none but the first."""
    if row.kind == COMPUTATION:
        return [row.kind, "", "", ""]
    return [row.kind, row.group.removesuffix("_group"), str(row.ranks), size_text(row.size_bytes)]
