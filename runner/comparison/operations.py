"""Operation by operation: what a step of a rank was expected to launch beside what it launched, and what gaps
suggest.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runner.comparison.expected import Expected, expected_step, seconds_by_part
from runner.comparison.logged_run import REPLAY, TRACE, MeasuredRun
from runner.comparison.matching import Matching, Pair, Unmatched, match_launches
from runner.logs.log import Log, size_text
from runner.traces.launches import launches
from runner.traces.names import collective_named
from runner.traces.trace_file import (
    BACKWARD,
    FORWARD,
    Key,
    Launched,
    Part,
    Trace,
    collective_key,
    is_trace,
    product_key,
    read_trace,
)
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from solver.report.sections import table
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.units import MS, seconds_to_ms
from workload.aicb.csv_workload import COMPUTATION, GeneralItem

MOST_SHOWN = 8
FAR = 1.5
"""Measured over predicted, or the other way, from which a collective's gap is put into words."""
SMALL_BYTES = 2**20
"""Below this a collective is mostly latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationComparison:
    """``expected`` of one step and ``ran`` of all; ``idle_s`` of a step without a kernel, None where that is
    unknown.
    """

    source: str
    num_steps: int
    expected_s: Mapping[Part, float]
    ran_s: Mapping[Part, float]
    idle_s: float | None
    matched: Matching

    @property
    def collectives(self) -> list[Pair]:
        """One for each kind, group and size, the largest gap first."""
        same: dict[tuple[object, ...], list[Pair]] = {}
        for one in self.matched.pairs:
            if one.key.part is Part.COLLECTIVE:
                same.setdefault((one.key, one.axis, one.how), []).append(one)
        return sorted(map(_joined, same.values()), key=lambda one: -abs(one.ran_s - one.expected_s))

    @property
    def matched_share(self) -> float:
        """Share of the measured seconds that belong to a matched operation."""
        whole_s = sum(self.ran_s.values())
        lone_s = sum(one.seconds for one in self.matched.only_ran)
        return 1 - lone_s / whole_s if whole_s > 0 else 1.0


def compare_operations(
    source: str,
    expected: list[Expected],
    ran: Sequence[Launched],
    num_steps: int,
    idle_s: float | None = None,
) -> OperationComparison:
    """Match what ran in ``num_steps`` steps, as ``source`` says, to what was expected of one."""
    ran_s: dict[Part, float] = {}
    for one in ran:
        ran_s[one.key.part] = ran_s.get(one.key.part, 0.0) + one.seconds / num_steps
    return OperationComparison(
        source=source,
        num_steps=num_steps,
        expected_s=seconds_by_part(expected),
        ran_s=ran_s,
        idle_s=idle_s,
        matched=match_launches(expected, ran, num_steps),
    )


def _joined(pairs: Sequence[Pair]) -> Pair:
    """Pairs of one key as one."""
    first = pairs[0]
    labels = sorted({one.label for one in pairs})
    return replace(
        first,
        label=labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more",
        expected_count=sum(one.expected_count for one in pairs),
        expected_s=sum(one.expected_s for one in pairs),
        ran_count=sum(one.ran_count for one in pairs),
        ran_s=sum(one.ran_s for one in pairs),
        fastest_s=min(one.fastest_s for one in pairs),
    )


def lines(one: OperationComparison) -> list[str]:
    """The comparison in words."""
    parts = [part for part in Part if part in one.expected_s or part in one.ran_s]
    cells = [[part.value, *_both(one.expected_s.get(part, 0.0), one.ran_s.get(part, 0.0))] for part in parts]
    if one.idle_s is not None:
        cells.append(["no kernel runs", "", f"{seconds_to_ms(one.idle_s):.4g}", ""])
    said = [
        f"operations: {one.source}, {one.num_steps} steps, {100 * one.matched_share:.0f} % of their seconds matched",
        "",
        table(cells, ["ms of a step", "predicted", "measured", "ratio"]),
    ]
    if one.collectives:
        said += ["", table([_collective(pair) for pair in one.collectives], COLLECTIVE_TITLES)]
    shown = _others(one)
    if shown:
        said += ["", table([_operation(pair) for pair in shown], OPERATION_TITLES)]
    said += _lone("expected, and matched by nothing that ran", one.matched.only_expected)
    said += _lone("ran, and matches nothing expected", one.matched.only_ran)
    return [*said, *suggestions(one)]


TIMES = ["count", "ran", "predicted ms", "measured"]
COLLECTIVE_TITLES = ["collective", "over", "size", *TIMES, "fastest", "ratio"]
OPERATION_TITLES = ["operation", *TIMES, "ratio"]


def _both(predicted_s: float, measured_s: float) -> list[str]:
    ratio = f"{measured_s / predicted_s:.3f}" if predicted_s > 0 else ""
    return [f"{seconds_to_ms(predicted_s):.4g}", f"{seconds_to_ms(measured_s):.4g}", ratio]


def _collective(pair: Pair) -> list[str]:
    key = pair.key
    size = "mixed" if pair.how else size_text(key.size_bytes or 0)
    each = [pair.expected_s / pair.expected_count, pair.each_s, pair.fastest_s]
    return [
        key.what,
        f"{pair.axis} {key.ranks}",
        size,
        str(pair.expected_count),
        f"{pair.ran_count:g}",
        *(f"{seconds_to_ms(value):.4g}" for value in each),
        f"{pair.ratio:.3f}",
    ]


def _others(one: OperationComparison) -> list[Pair]:
    """The largest gaps of what is no collective."""
    pairs = [pair for pair in one.matched.pairs if pair.key.part is not Part.COLLECTIVE]
    return sorted(pairs, key=lambda pair: -abs(pair.ran_s - pair.expected_s))[:MOST_SHOWN]


def _operation(pair: Pair) -> list[str]:
    name = f"{pair.label} ({pair.how})" if pair.how else pair.label
    return [name, str(pair.expected_count), f"{pair.ran_count:g}", *_both(pair.expected_s, pair.ran_s)]


def _lone(title: str, lone: Sequence[Unmatched]) -> list[str]:
    if not lone:
        return []
    seconds = sum(one.seconds for one in lone)
    rows = [f"  {one.count:g} x {lone_name(one)}: {seconds_to_ms(one.seconds):.4g} ms" for one in lone[:MOST_SHOWN]]
    more = [f"  and {len(lone) - MOST_SHOWN} more"] if len(lone) > MOST_SHOWN else []
    return ["", f"{title}: {seconds_to_ms(seconds):.4g} ms of a step", *rows, *more]


def lone_name(one: Unmatched) -> str:
    """Name of unmatched launches: what they are, their size or shape, their group."""
    key = one.key
    words = [one.label] if one.label.endswith(key.what) else [one.label, key.what]
    if key.size_bytes is not None:
        words.append(size_text(key.size_bytes))
    if key.ranks is not None:
        words.append(f"over {key.ranks}")
    if key.shape is not None:
        words.append(" x ".join(map(str, key.shape)))
    return " ".join(words)


def suggestions(one: OperationComparison) -> list[str]:
    """Suggestions from the largest gaps of collectives and from the time without a kernel."""
    said = [words for pair in one.collectives[:3] if (words := _words(pair))]
    if one.idle_s is not None and one.idle_s > 0.1 * sum(one.ran_s.values()):
        said.append(
            f"no kernel runs for {seconds_to_ms(one.idle_s):.4g} ms of a step: the host issues too slowly, or waits"
        )
    return ["", *said] if said else []


def _words(pair: Pair) -> str:
    """A sentence on a collective that took far longer or shorter than predicted; empty otherwise."""
    key, each_s = pair.key, pair.expected_s / pair.expected_count
    name = f"{key.what} of {size_text(key.size_bytes or 0)} over {pair.axis} {key.ranks}"
    if key.what == Collective.P2P.value and pair.ratio > FAR:
        return f"{name}: {pair.ratio:.2f} x predicted: a receive holds the wait for the other stage"
    if pair.how and pair.ratio > FAR:
        return f"{name}, {pair.how}: {pair.ratio:.2f} x predicted; measure this group"
    if pair.ratio > FAR and pair.fastest_s < FAR * each_s:
        return (
            f"{name}: {pair.ratio:.2f} x predicted, its fastest {pair.fastest_s / each_s:.2f} x: ranks come late to it, "
            f"or share the links meanwhile"
        )
    if pair.ratio > FAR and (key.size_bytes or 0) < SMALL_BYTES:
        return f"{name}: {pair.ratio:.2f} x predicted, always: latency; measure this group's small sizes"
    if pair.ratio > FAR:
        return (
            f"{name}: {pair.ratio:.2f} x predicted, always: bandwidth; measure this group, look at where its ranks lie"
        )
    if pair.ratio < 1 / FAR:
        return f"{name}: {pair.ratio:.2f} x predicted: its curve is too slow; measure this group"
    return ""


def record(one: OperationComparison) -> dict[str, object]:
    """Everything as plain values with the unit in the name."""
    return {
        "source": one.source,
        "num_steps": one.num_steps,
        "matched_share": one.matched_share,
        "idle_s": one.idle_s,
        "parts": {
            part.value: {"predicted_s": one.expected_s.get(part, 0.0), "measured_s": one.ran_s.get(part, 0.0)}
            for part in Part
        },
        "collectives": [asdict(pair) | {"ratio": pair.ratio} for pair in one.collectives],
        "pairs": [asdict(pair) | {"ratio": pair.ratio} for pair in one.matched.pairs],
        "only_expected": [asdict(lone) for lone in one.matched.only_expected],
        "only_ran": [asdict(lone) for lone in one.matched.only_ran],
        "suggestions": suggestions(one),
    }


# A trace, or the log of a played workload, as a run and as the operations that it launched.

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
    """The operations of a file; None for one that holds none. Raises ConfigError or WorkloadError for a damaged one."""
    if is_trace(path):
        return LaunchFile(path=path, trace=read_trace(path))
    if path.name.endswith(LOG_ENDING):
        return LaunchFile(path=path, log=Log.load(path))
    return None


def measured(file: LaunchFile, warmup: int) -> MeasuredRun:
    """The steps of the file. Raises ConfigError where none is left after the warm-up."""
    seconds = [one.seconds for one in file.trace.steps] if file.trace else _epochs_s(file)
    if len(seconds) <= warmup:
        raise ConfigError(
            where=str(file.path),
            key="steps",
            value=len(seconds),
            allowed=f"one after {warmup} of warm-up (--warmup)",
        )
    form = TRACE if file.trace else REPLAY
    return MeasuredRun(source=str(file.path), form=form, steps_s=tuple(seconds[warmup:]), warmup=warmup)


def compare_launches(file: LaunchFile, problem: Problem, plan: Plan, warmup: int) -> OperationComparison:
    """The launches of the file beside the operations of the plan. Raises ConfigError for a rank that the plan does not have."""
    if file.trace is not None:
        result = launches(file.trace, warmup)
        rank = file.trace.rank or 0
        expected = expected_step(problem, plan, _checked(file.path, rank, plan))
        return compare_operations(f"rank {rank}", expected, result.ran, result.num_steps, result.idle_s)
    stage = STAGE.search(file.path.stem)
    rank = int(stage[1]) * (plan.world_size // plan.pp) if stage else 0
    expected = expected_step(problem, plan, _checked(file.path, rank, plan))
    ran = list(_replayed(file, warmup))
    ours = [one for one in expected if one.key.part not in (Part.KERNEL, Part.OPTIMIZER)]
    return compare_operations(f"rank {rank}", ours, ran, len(_epochs_s(file)) - warmup)


def _checked(path: Path, rank: int, plan: Plan) -> int:
    if rank >= plan.world_size:
        raise ConfigError(where=str(path), key="rank", value=rank, allowed=f"one of {plan.world_size}, as was asked")
    return rank


def _epochs_s(file: LaunchFile) -> list[float]:
    return [one * MS for one in file.log.epoch_times[1:]] if file.log is not None else []


def _replayed(file: LaunchFile, warmup: int) -> Iterator[Launched]:
    """Collectives, products and attentions of the iterations that ended, one after another."""
    epochs = file.log.comm_log_each_epoch if file.log is not None else []
    at_s = 0.0
    for epoch in epochs[1 + warmup : 1 + len(_epochs_s(file))]:
        for item in epoch:
            seconds = (item.elapsed_ms or 0.0) * MS
            key = _key(item)
            if key is not None:
                yield Launched(key=key, name=item.stage or item.comm_type, start_s=at_s, seconds=seconds)
            at_s += seconds


def _key(item: GeneralItem) -> Key | None:
    """Key of a row; None for computation that is neither product nor attention."""
    if item.comm_type != COMPUTATION:
        name = "p2p" if item.comm_type in MESSAGES else collective_named(item.comm_type) or item.comm_type
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
