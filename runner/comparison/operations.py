"""Comparison operation by operation: what a step of a rank was expected to launch, what it launched, and what the gaps
suggest. Launches come from a trace or from the log of a replayed workload."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner.comparison.expected import Expected, expected_step, seconds_by_part
from runner.comparison.logged_run import REPLAY, TRACE, MeasuredRun
from runner.comparison.matching import IN_TOTAL, Matching, Pair, Unmatched, grouped, match_launches
from runner.logs.log import Log, size_text
from runner.traces.launches import step_launches
from runner.traces.names import collective_by_name
from runner.traces.trace_file import (
    BACKWARD,
    FORWARD,
    Key,
    MeasuredLaunch,
    Part,
    Trace,
    collective_key,
    is_trace,
    product_key,
    read_trace,
)
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from solver.report.terminal import table
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.units import MS, seconds_to_ms
from workload.aicb.csv_workload import COMPUTATION, GeneralItem

MOST_DISPLAYED = 8
FAR = 1.5
"""Ratio of measured and predicted, either way, from which a collective gets a suggestion."""
SMALL_BYTES = 2**20
"""Below this a collective is mostly latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationComparison:
    """Seconds of each part, expected and measured, of a step; the matching of launches; ``idle_s`` of a step in which no
    kernel runs, None if unknown."""

    source: str
    num_steps: int
    expected_s: Mapping[Part, float]
    measured_s: Mapping[Part, float]
    idle_s: float | None
    matched: Matching

    @property
    def collectives(self) -> list[Pair]:
        """One pair for each kind, group and size of collective, the largest gap first."""
        collectives = (one for one in self.matched.pairs if one.key.part is Part.COLLECTIVE)
        same = grouped(collectives, lambda one: (one.key, one.axis, one.how))
        return sorted(map(_merged, same.values()), key=lambda one: -abs(one.measured_s - one.expected_s))

    @property
    def matched_share(self) -> float:
        """Share of the measured seconds that match an expected operation."""
        whole_s = sum(self.measured_s.values())
        lone_s = sum(one.seconds for one in self.matched.only_measured)
        return 1 - lone_s / whole_s if whole_s > 0 else 1.0


def compare_operations(
    source: str,
    expected: list[Expected],
    launches: Sequence[MeasuredLaunch],
    num_steps: int,
    idle_s: float | None = None,
) -> OperationComparison:
    """The comparison of the launches of ``num_steps`` steps, from ``source``, with the operations expected of one."""
    measured_s: dict[Part, float] = {}
    for one in launches:
        measured_s[one.key.part] = measured_s.get(one.key.part, 0.0) + one.seconds / num_steps
    return OperationComparison(
        source=source,
        num_steps=num_steps,
        expected_s=seconds_by_part(expected),
        measured_s=measured_s,
        idle_s=idle_s,
        matched=match_launches(expected, launches, num_steps),
    )


def _merged(pairs: Sequence[Pair]) -> Pair:
    """Pairs of one key, merged into one."""
    first = pairs[0]
    labels = sorted({one.label for one in pairs})
    return replace(
        first,
        label=labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more",
        expected_count=sum(one.expected_count for one in pairs),
        expected_s=sum(one.expected_s for one in pairs),
        measured_count=sum(one.measured_count for one in pairs),
        measured_s=sum(one.measured_s for one in pairs),
        fastest_s=min(one.fastest_s for one in pairs),
    )


def lines(comparison: OperationComparison) -> list[str]:
    """The comparison as text."""
    result = [
        f"operations: {comparison.source}, {comparison.num_steps} steps, {100 * comparison.matched_share:.0f} % of their seconds matched",
        "",
        table(part_cells(comparison), ["ms of a step", "predicted", "measured", "ratio"]),
    ]
    if comparison.collectives:
        result += ["", table([collective_cells(pair) for pair in comparison.collectives], COLLECTIVE_TITLES)]
    displayed = _largest_gaps(comparison)
    if displayed:
        result += ["", table([operation_cells(pair) for pair in displayed], OPERATION_TITLES)]
    result += _lone("expected but not measured", comparison.matched.only_expected)
    result += _lone("measured but not expected", comparison.matched.only_measured)
    return [*result, *suggestions(comparison)]


def part_cells(comparison: OperationComparison) -> list[list[str]]:
    """A row of predicted and measured ms and their ratio for each part of a step, and the time without a kernel."""
    parts = [part for part in Part if part in comparison.expected_s or part in comparison.measured_s]
    cells = [
        [part.value, *_both(comparison.expected_s.get(part, 0.0), comparison.measured_s.get(part, 0.0))]
        for part in parts
    ]
    if comparison.idle_s is not None:
        cells.append(["no kernel runs", "", f"{seconds_to_ms(comparison.idle_s):.4g}", ""])
    return cells


TIMES = ["expected", "launched", "predicted ms", "measured"]
COLLECTIVE_TITLES = ["collective", "over", "size", *TIMES, "fastest", "ratio"]
OPERATION_TITLES = ["operation", *TIMES, "ratio"]


def _both(predicted_s: float, measured_s: float) -> list[str]:
    ratio = f"{measured_s / predicted_s:.3f}" if predicted_s > 0 else ""
    return [f"{seconds_to_ms(predicted_s):.4g}", f"{seconds_to_ms(measured_s):.4g}", ratio]


def collective_cells(pair: Pair) -> list[str]:
    """A row of COLLECTIVE_TITLES."""
    key = pair.key
    size = "mixed" if pair.how else size_text(key.size_bytes or 0)
    each = [pair.expected_s / pair.expected_count, pair.each_s, pair.fastest_s]
    return [
        key.what,
        f"{pair.axis} {key.ranks}",
        size,
        str(pair.expected_count),
        f"{pair.measured_count:g}",
        *(f"{seconds_to_ms(value):.4g}" for value in each),
        f"{pair.ratio:.3f}",
    ]


def _largest_gaps(comparison: OperationComparison) -> list[Pair]:
    """The operations other than collectives with the largest gaps."""
    pairs = [pair for pair in comparison.matched.pairs if pair.key.part is not Part.COLLECTIVE]
    return sorted(pairs, key=lambda pair: -abs(pair.measured_s - pair.expected_s))[:MOST_DISPLAYED]


def operation_cells(pair: Pair) -> list[str]:
    """A row of OPERATION_TITLES."""
    name = f"{pair.label} ({pair.how})" if pair.how else pair.label
    return [name, str(pair.expected_count), f"{pair.measured_count:g}", *_both(pair.expected_s, pair.measured_s)]


def _lone(title: str, lone: Sequence[Unmatched]) -> list[str]:
    if not lone:
        return []
    seconds = sum(one.seconds for one in lone)
    rows = [f"  {one.count:g} x {lone_name(one)}: {seconds_to_ms(one.seconds):.4g} ms" for one in lone[:MOST_DISPLAYED]]
    more = [f"  and {len(lone) - MOST_DISPLAYED} more"] if len(lone) > MOST_DISPLAYED else []
    return ["", f"{title}: {seconds_to_ms(seconds):.4g} ms of a step", *rows, *more]


def lone_name(unmatched: Unmatched) -> str:
    """Name of unmatched launches: what they are, their size or shape, their group."""
    key = unmatched.key
    words = [unmatched.label] if unmatched.label.endswith(key.what) else [unmatched.label, key.what]
    if key.size_bytes is not None:
        words.append(size_text(key.size_bytes))
    if key.ranks is not None:
        words.append(f"over {key.ranks}")
    if key.shape is not None:
        words.append(" x ".join(map(str, key.shape)))
    return " ".join(words)


def suggestions(comparison: OperationComparison) -> list[str]:
    """Suggestions from the three largest gaps of collectives and from the time without a kernel."""
    result = [words for pair in comparison.collectives[:3] if (words := _words(pair))]
    if comparison.idle_s is not None and comparison.idle_s > 0.1 * sum(comparison.measured_s.values()):
        result.append(
            f"no kernel runs for {seconds_to_ms(comparison.idle_s):.4g} ms of a step: the host launches too slowly, or waits"
        )
    return ["", *result] if result else []


def _words(pair: Pair) -> str:
    """The likely cause of a collective's large gap, in words; empty for a small gap."""
    key, each_s = pair.key, pair.expected_s / pair.expected_count
    name = f"{key.what} of {size_text(key.size_bytes or 0)} over {pair.axis} {key.ranks}"
    if key.what == Collective.P2P.value and pair.ratio > FAR:
        return f"{name}: {pair.ratio:.2f} x predicted: a receive includes the wait for the other stage"
    if pair.how and pair.ratio > FAR:
        return f"{name}, {pair.how}: {pair.ratio:.2f} x predicted; measure this group"
    if pair.ratio > FAR and pair.fastest_s < FAR * each_s:
        return (
            f"{name}: {pair.ratio:.2f} x predicted, its fastest {pair.fastest_s / each_s:.2f} x: ranks arrive late, "
            f"or other traffic shares the links"
        )
    if pair.ratio > FAR and (key.size_bytes or 0) < SMALL_BYTES:
        return f"{name}: {pair.ratio:.2f} x predicted, always: latency; measure this group's small sizes"
    if pair.ratio > FAR:
        return f"{name}: {pair.ratio:.2f} x predicted, always: bandwidth; measure this group, check where its ranks are"
    if pair.ratio < 1 / FAR:
        return f"{name}: {pair.ratio:.2f} x predicted: its curve is too slow; measure this group"
    return ""


def record(comparison: OperationComparison) -> dict[str, object]:
    """Everything as plain values with the unit in the name."""
    return {
        "source": comparison.source,
        "num_steps": comparison.num_steps,
        "matched_share": comparison.matched_share,
        "idle_s": comparison.idle_s,
        "parts": {
            part.value: {
                "predicted_s": comparison.expected_s.get(part, 0.0),
                "measured_s": comparison.measured_s.get(part, 0.0),
            }
            for part in Part
        },
        "collectives": [asdict(pair) | {"ratio": pair.ratio} for pair in comparison.collectives],
        "pairs": [asdict(pair) | {"ratio": pair.ratio} for pair in comparison.matched.pairs],
        "only_expected": [asdict(lone) for lone in comparison.matched.only_expected],
        "only_measured": [asdict(lone) for lone in comparison.matched.only_measured],
        "suggestions": suggestions(comparison),
    }


# A trace, or the log of a replayed workload: its steps, and the operations that it launched.

STAGE = re.compile(r"-stage(\d{1,6})_log$")
LOG_ENDING = "_log.csv"
MESSAGES = ("isend", "irecv")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """A file of a rank's launches: the ``log`` of a replayed workload, or a ``trace``."""

    path: Path
    trace: Trace | None = None
    log: Log | None = None

    @property
    def world_size(self) -> int | None:
        """Ranks, where the file says how many."""
        return self.trace.world_size if self.trace is not None else None


def read_launch_file(path: Path) -> LaunchFile | None:
    """The trace or log of a file; None for a file of another kind. Raises ConfigError or WorkloadError for a damaged one."""
    if is_trace(path):
        return LaunchFile(path=path, trace=read_trace(path))
    if path.name.endswith(LOG_ENDING):
        return LaunchFile(path=path, log=Log.load(path))
    return None


def measured(file: LaunchFile, warmup: int) -> MeasuredRun:
    """The steps of the file. Raises ConfigError if none is left after the warm-up."""
    seconds = [one.seconds for one in file.trace.steps] if file.trace else _epochs_s(file)
    if len(seconds) <= warmup:
        raise ConfigError(
            where=str(file.path), key="steps", value=len(seconds), allowed=f"one after {warmup} of warm-up (--warmup)"
        )
    form = TRACE if file.trace else REPLAY
    return MeasuredRun(source=str(file.path), form=form, steps_s=tuple(seconds[warmup:]), warmup=warmup)


def compare_launches(file: LaunchFile, problem: Problem, plan: Plan, warmup: int) -> OperationComparison:
    """The comparison of the file's launches with the plan's operations. Raises ConfigError for a rank that the plan does
    not have."""
    if file.trace is not None:
        traced = step_launches(file.trace, warmup)
        rank = file.trace.rank or 0
        expected = expected_step(problem, plan, _checked_rank(file.path, rank, plan))
        return compare_operations(f"rank {rank}", expected, traced.launches, traced.num_steps, traced.idle_s)
    stage = STAGE.search(file.path.stem)
    # A log is written by the first rank of its stage.
    rank = int(stage[1]) * (plan.world_size // plan.pp) if stage else 0
    expected = expected_step(problem, plan, _checked_rank(file.path, rank, plan))
    replayed = list(_replayed_launches(file, warmup))
    # A replayed workload has no memory-bound kernels and no optimizer.
    ours = [one for one in expected if one.key.part not in (Part.KERNEL, Part.OPTIMIZER)]
    return compare_operations(f"rank {rank}", ours, replayed, len(_epochs_s(file)) - warmup)


def check_matched(path: Path, comparison: OperationComparison) -> None:
    """Raises ConfigError where no product, attention or collective is one that the plan expects."""
    if all(pair.key.part in IN_TOTAL for pair in comparison.matched.pairs):
        allowed = "launches of this model and plan: none is one that is expected; check config, plan, seq_len and world"
        raise ConfigError(where="compare", key="operations", value=str(path), allowed=allowed)


def _checked_rank(path: Path, rank: int, plan: Plan) -> int:
    if rank >= plan.world_size:
        raise ConfigError(where=str(path), key="rank", value=rank, allowed=f"one of {plan.world_size}, as requested")
    return rank


def _epochs_s(file: LaunchFile) -> list[float]:
    return [one * MS for one in file.log.epoch_times[1:]] if file.log is not None else []


def _replayed_launches(file: LaunchFile, warmup: int) -> Iterator[MeasuredLaunch]:
    """Collectives, products and attentions of the finished iterations after the warm-up, one after another."""
    epochs = file.log.comm_log_each_epoch if file.log is not None else []
    at_s = 0.0
    # Epoch 0 is initialisation; an epoch without a time was interrupted.
    for epoch in epochs[1 + warmup : 1 + len(_epochs_s(file))]:
        for item in epoch:
            seconds = (item.elapsed_ms or 0.0) * MS
            key = _key(item)
            if key is not None:
                yield MeasuredLaunch(key=key, name=item.stage or item.comm_type, start_s=at_s, seconds=seconds)
            at_s += seconds


def _key(item: GeneralItem) -> Key | None:
    """The key of a row; None for computation that is neither product nor attention."""
    if item.comm_type != COMPUTATION:
        name = "p2p" if item.comm_type in MESSAGES else collective_by_name(item.comm_type) or item.comm_type
        return collective_key(name, item.msg_size, item.comm_group_size or None)
    if item.shapes is None:
        return None
    left, right = item.shapes
    backward = item.stage.startswith(BACKWARD)
    if len(left) == 4:
        batch, heads, tokens, width = left
        direction = BACKWARD if f" {BACKWARD} " in f" {item.additional} " else FORWARD
        width = right[-1] if direction == BACKWARD else width
        shape = (batch * heads * tokens * width,)
        return Key(part=Part.ATTENTION, what="attention", direction=direction, shape=shape)
    batch, m, k = (1, *left) if len(left) == 2 else left
    return product_key(batch, m, k, right[-1], BACKWARD if backward else FORWARD)
