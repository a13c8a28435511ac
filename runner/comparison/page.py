"""The page of a comparison (--report): a run next to its prediction, operation by operation."""

from collections.abc import Iterator, Sequence

from runner.comparison.matching import Pair, Unmatched
from runner.comparison.operations import (
    COLLECTIVE_TITLES,
    OPERATION_TITLES,
    LaunchFile,
    OperationComparison,
    collective_cells,
    lone_name,
    operation_cells,
    part_cells,
    suggestions,
)
from runner.logs.page import log_sections, steps_section
from runner.logs.pictures import Measured, Piece, Predicted, bandwidth_picture, shares_picture, timeline_picture
from runner.traces.launches import step_launches
from runner.traces.trace_file import MeasuredLaunch, Part
from solver.problem.result import Answer
from solver.report.pictures import breakdown_picture
from solver.report.sections import ReportSection, Table
from spec.collectives import Collective, busbw_factor
from spec.units import GIGA, seconds_to_ms


def interval_ms(answer: Answer) -> tuple[float, float, float]:
    """Returns the low end of the 80 % interval, the predicted step, and the high end."""
    low, middle, high = map(seconds_to_ms, (answer.interval_low_s, answer.step_s, answer.interval_high_s))
    return low, middle, high


def run_sections(
    steps_s: Sequence[float], answer: Answer, file: LaunchFile | None, warmup: int, *, own: bool
) -> Iterator[ReportSection]:
    """Yields the measured steps next to the predicted one, a time line, and the predicted step's parts; ``own``: the file
    has the steps, else it accompanies them."""
    log = file.log if file is not None else None
    if log is not None and own:
        yield from (one for one in log_sections(log, interval_ms(answer)) if one.anchor != "bandwidth")
    else:
        yield steps_section([seconds_to_ms(one) for one in steps_s], "step", interval_ms(answer))
    if file is not None and file.trace is not None and len(file.trace.steps) > warmup:
        first = file.trace.steps[warmup]
        launches = step_launches(file.trace, warmup).launches
        inside = [_piece(one) for one in launches if first.start_s <= one.start_s < first.end_s]
        if inside:
            picture = timeline_picture(inside, f"step {warmup + 1} on rank {file.trace.rank or 0}")
            yield ReportSection(anchor="timeline", title="Time line", pictures=(picture,))
    yield ReportSection(anchor="breakdown", title="The predicted step", pictures=(breakdown_picture((answer,)),))


def _piece(one: MeasuredLaunch) -> Piece:
    key = one.key
    collective = key.part is Part.COLLECTIVE
    kind = f"{key.what} over {key.ranks}" if collective and key.ranks else key.what if collective else key.part.value
    row = kind if collective else "computation"
    return Piece(row=row, kind=kind, start_ms=seconds_to_ms(one.start_s), ms=seconds_to_ms(one.seconds))


def operation_sections(comparison: OperationComparison) -> Iterator[ReportSection]:
    """Yields tables of parts, collectives and operations, predicted and measured, and what has no counterpart."""
    parts = [part for part in Part if comparison.expected_s.get(part) or comparison.measured_s.get(part)]
    sides = (("predicted", comparison.expected_s), ("measured", comparison.measured_s))
    bars = [(word, {part.value: seconds_to_ms(side.get(part, 0.0)) for part in parts}) for word, side in sides]
    titles = ("part", "predicted ms", "measured ms", "ratio")
    yield ReportSection(
        anchor="parts",
        title="By part of the step",
        paragraphs=[
            f"{comparison.source}, {comparison.num_steps} steps; {100 * comparison.matched_share:.0f} % of their seconds match an "
            "expected operation. Predicted times are of an operation alone, measured ones include waiting for other ranks",
            *(f"likely cause: {words}" for words in suggestions(comparison)[1:]),
        ],
        pictures=(shares_picture("parts", bars, "ms of a step"),) if any(bars[0][1].values()) else (),
        tables=(Table(caption="parts of a step", header=titles, rows=part_cells(comparison)),),
    )
    if comparison.collectives:
        measured, predicted = bandwidths(comparison.collectives)
        table = Table(
            caption="collectives, predicted and measured",
            header=[title if title != "measured" else "measured ms" for title in COLLECTIVE_TITLES],
            rows=[collective_cells(pair) for pair in comparison.collectives],
            words=frozenset({0, 1}),
        )
        picture = (bandwidth_picture(measured, predicted, "GB/s"),) if measured else ()
        yield ReportSection(anchor="bandwidth", title="By collective and group", pictures=picture, tables=(table,))
    pairs = [pair for pair in comparison.matched.pairs if pair.key.part is not Part.COLLECTIVE]
    lone = {
        "expected but not measured": comparison.matched.only_expected,
        "measured but not expected": comparison.matched.only_measured,
    }
    tables = [_lone_table(caption, found) for caption, found in lone.items() if found]
    if pairs:
        ordered = sorted(pairs, key=lambda pair: -abs(pair.measured_s - pair.expected_s))
        rows = [operation_cells(pair) for pair in ordered]
        tables.insert(0, Table(caption="operations, the largest gap first", header=OPERATION_TITLES, rows=rows))
    yield ReportSection(anchor="operations", title="By operation", tables=tables)


def _lone_table(caption: str, lone: Sequence[Unmatched]) -> Table:
    rows = [[lone_name(one), f"{one.count:g}", f"{seconds_to_ms(one.seconds):.4g}"] for one in lone]
    return Table(caption=caption, header=("operation", "count", "ms of a step"), rows=rows)


def bandwidths(pairs: Sequence[Pair]) -> tuple[Measured, Predicted]:
    """Returns bus bandwidths in GB/s by nccl-tests' factors, measured (mean and fastest launch) and predicted, of
    collectives whose size and group are known."""
    measured: dict[str, list[tuple[int, float, float, float]]] = {}
    predicted: dict[str, list[tuple[int, float]]] = {}
    for pair in pairs:
        key = pair.key
        if key.size_bytes and key.ranks and pair.each_s > 0 and pair.expected_s > 0 and not pair.how:
            moved = key.size_bytes * float(busbw_factor(Collective(key.what), key.ranks)) / GIGA
            name = f"{key.what} {pair.axis} {key.ranks}"
            measured.setdefault(name, []).append(
                (key.size_bytes, moved / pair.each_s, moved / pair.each_s, moved / pair.fastest_s)
            )
            predicted.setdefault(name, []).append((key.size_bytes, moved * pair.expected_count / pair.expected_s))
    return measured, predicted
