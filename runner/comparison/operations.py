"""A trace, or the log of a played workload, as a run and as the operations that it launched."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.comparison.beside import Beside, beside
from runner.comparison.expected import expected_step
from runner.comparison.measured_run import REPLAY, TRACE, MeasuredRun
from runner.logs.log import Log
from runner.traces.launches import launches
from runner.traces.names import collective_named
from runner.traces.ran import BACKWARD, FORWARD, Key, Part, Ran, collective_key, product_key
from runner.traces.trace_file import Trace, is_trace, read_trace
from solver.plans.plan_table import Plan
from solver.question import Question
from spec.errors import ConfigError
from spec.units import MS
from workload.aicb.csv_workload import COMPUTATION, GeneralItem

STAGE = re.compile(r"-stage(\d{1,6})_log$")
LOG_ENDING = "_log.csv"
MESSAGES = ("isend", "irecv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a file says of a rank's steps; ``log`` where it is one of a played workload, else ``trace``."""

    path: Path
    trace: Trace | None = None
    log: Log | None = None

    @property
    def world_size(self) -> int | None:
        """Ranks, where the file says how many."""
        return self.trace.world_size if self.trace is not None else None


def read_launched(path: Path) -> Launched | None:
    """The operations of a file; None for one that holds none. Raises ConfigError or WorkloadError for a damaged one."""
    if is_trace(path):
        return Launched(path=path, trace=read_trace(path))
    if path.name.endswith(LOG_ENDING):
        return Launched(path=path, log=Log.load(path))
    return None


def measured(told: Launched, warmup: int) -> MeasuredRun:
    """Its steps. Raises ConfigError where none is left after the warm-up."""
    seconds = [one.seconds for one in told.trace.steps] if told.trace else _epochs_s(told)
    if len(seconds) <= warmup:
        raise ConfigError(
            where=str(told.path),
            key="steps",
            value=len(seconds),
            allowed=f"one after {warmup} of warm-up (--warmup)",
        )
    form = TRACE if told.trace else REPLAY
    return MeasuredRun(source=str(told.path), form=form, steps_s=tuple(seconds[warmup:]), warmup=warmup)


def apart(told: Launched, question: Question, plan: Plan, warmup: int) -> Beside:
    """Its operations beside those of the plan. Raises ConfigError for a rank that the plan does not have."""
    if told.trace is not None:
        found = launches(told.trace, warmup)
        rank = told.trace.rank or 0
        expected = expected_step(question, plan, _checked(told.path, rank, plan))
        return beside(f"rank {rank}", expected, found.ran, found.num_steps, found.idle_s)
    stage = STAGE.search(told.path.stem)
    rank = int(stage[1]) * (plan.world_size // plan.pp) if stage else 0
    expected = expected_step(question, plan, _checked(told.path, rank, plan))
    ran = list(_replayed(told, warmup))
    ours = [one for one in expected if one.key.part not in (Part.KERNEL, Part.OPTIMIZER)]
    return beside(f"rank {rank}", ours, ran, len(_epochs_s(told)) - warmup)


def _checked(path: Path, rank: int, plan: Plan) -> int:
    if rank >= plan.world_size:
        raise ConfigError(
            where=str(path), key="rank", value=rank, allowed=f"one of {plan.world_size}, as was asked"
        )
    return rank


def _epochs_s(told: Launched) -> list[float]:
    return [one * MS for one in told.log.epoch_times[1:]] if told.log is not None else []


def _replayed(told: Launched, warmup: int) -> Iterator[Ran]:
    """Collectives, products and attentions of the iterations that ended, one after another."""
    epochs = told.log.comm_log_each_epoch if told.log is not None else []
    at_s = 0.0
    for epoch in epochs[1 + warmup : 1 + len(_epochs_s(told))]:
        for item in epoch:
            seconds = (item.elapsed_ms or 0.0) * MS
            key = _key(item)
            if key is not None:
                yield Ran(key=key, name=item.stage or item.comm_type, start_s=at_s, seconds=seconds)
            at_s += seconds


def _key(item: GeneralItem) -> Key | None:
    """Of a row; None for computation that is neither product nor attention."""
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
