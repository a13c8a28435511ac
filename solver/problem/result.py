"""The cost of a plan in plain numbers, for rankings, reports and files.

``Answer`` is one plan with its cost, and ``check_believable`` refuses impossible ones.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import hypot, isfinite, sqrt
from typing import Any

from solver.plans.plan_table import Plan
from solver.problem.interval import EIGHTY_PERCENT
from spec.errors import ProfileError


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestStage:
    """Stages ``first`` to ``last`` (from 1) of ``stages``, which are alike; ``layers`` decoder layers and
    ``predictions`` prediction blocks in each, and whether they hold the embedding or the head."""

    first: int
    last: int
    stages: int
    layers: int
    predictions: int
    embedding: bool
    head: bool

    def words(self) -> str:
        """Returns ``stage 16 of 16: 7 layers, head``."""
        if self.stages == 1:
            which = "the only stage"
        elif self.first == self.last:
            which = f"stage {self.first} of {self.stages}"
        else:
            which = f"stages {self.first} to {self.last} of {self.stages}, all alike"
        contents = [f"{self.layers} layer{'s' * (self.layers != 1)}"]
        contents += [f"{self.predictions} prediction block{'s' * (self.predictions > 1)}"] * bool(self.predictions)
        contents += ["embedding"] * self.embedding + ["head"] * self.head
        return f"{which}: {', '.join(contents)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One plan with its cost.

    Eight steps in ten lie between ``interval_low_s`` and ``interval_high_s`` (solver.problem.interval); ``scatter_s`` is
    the standard error by cause that one cluster's steps scatter by, in which "formulas" is each plan's own.
    ``parts_s`` sum to ``step_s`` and so do ``origins_s`` (by origin name); ``standard_error_s`` of the
    step; ``memory_bytes`` the named terms of the worst stage, which sum to ``allocated_bytes``;
    ``needed_bytes`` the least a device must have for it, ``host_bytes`` what its host holds instead; ``tgs``
    tokens per GPU per second; ``mfu`` a fraction; ``errors_s`` the standard error that each family of
    curves brings in, which two plans share. ``parts_s`` are of the ``slowest`` stage,
    ``mean_parts_s`` of all GPUs on average. ``also_zero_sizes`` and, one
    of each, ``also_zero_stages``: plans that differ in nothing else, of steps within 1 %.
    """

    plan: Plan
    step_s: float
    standard_error_s: float
    parts_s: dict[str, float]
    mean_parts_s: dict[str, float]
    origins_s: dict[str, float]
    memory_bytes: dict[str, float]
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    needed_bytes: float
    tgs: float
    mfu: float
    errors_s: dict[str, float]
    slowest: SlowestStage
    host_bytes: float = 0.0
    interval_low_s: float = 0.0
    interval_high_s: float = 0.0
    scatter_s: dict[str, float] = field(default_factory=dict)
    also_zero_sizes: tuple[int, ...] = ()
    also_zero_stages: tuple[int, ...] = ()

    def label(self) -> str:
        """Returns the plan's label with those of the similar plans that it represents."""
        shards = sorted(zip(self.also_zero_stages, self.also_zero_sizes, strict=True))
        also = ", ".join(self._sharded(stage, size) for stage, size in shards)
        return f"{self.plan.label()} (or {also})" if also else self.plan.label()

    def _sharded(self, stage: int, size: int) -> str:
        """Returns the label of a plan that differs in ZeRO size, and in ZeRO stage if that differs too."""
        if size == 1:
            return "no zero"
        return f"zero{size}" if stage == self.plan.zero_stage else f"zero{stage}/{size}"


SECONDS = ("step_s", "standard_error_s", "interval_low_s", "interval_high_s")
TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes", "tgs", "mfu")


def answer_values(answer: Answer) -> dict[str, Any]:
    """Returns Column -> value: the plan's keys as written and dp, seconds of the step and its parts, bytes by
    term and in all, tokens per GPU and second, MFU."""
    return {
        **asdict(answer.plan.settings),
        "dp": answer.plan.dp,
        **{name: getattr(answer, name) for name in SECONDS},
        **{f"{part}_s": value for part, value in answer.parts_s.items()},
        **{f"{term}_bytes": value for term, value in answer.memory_bytes.items()},
        **{total: getattr(answer, total) for total in TOTALS},
    }


def check_believable(answers: Iterable[Answer], source: str) -> None:
    """Raises ProfileError, which names the times' ``source``, for a step that takes no finite time, an interval
    that is not finite, or more than the GPUs' peak FLOP/s."""
    for answer in answers:
        finite = isfinite(answer.step_s) and isfinite(answer.interval_low_s) and isfinite(answer.interval_high_s)
        if not finite or answer.step_s <= 0.0:
            raise ProfileError(
                f"{source}: its times give {answer.plan.label()} a step of {answer.step_s:g} s, "
                f"{answer.interval_low_s:g} to {answer.interval_high_s:g}: no time that can be; "
                "look at it with python -m profdb show"
            )
        if answer.mfu > 1.0:
            raise ProfileError(
                f"{source}: its times give {answer.plan.label()} {100 * answer.mfu:.0f} % of the GPUs' peak FLOP/s, "
                "which no GPU reaches: they are of another GPU or damaged; look at it with python -m profdb show"
            )


RUN_STD = 0.005
"""Of the step of one plan from run to run: throughput varies by 1 to 2 % in a day (Llama 3, arXiv 2407.21783 section
3.3.4); a sine of 1.5 % from trough to peak has this standard deviation."""


def is_tie(answer: Answer, other: Answer) -> bool:
    """Returns whether the steps of two plans differ by less than the 80 % interval of the difference of two runs."""
    runs_s = RUN_STD * hypot(answer.step_s, other.step_s)
    return abs(other.step_s - answer.step_s) < EIGHTY_PERCENT * hypot(paired_error_s(answer, other), runs_s)


def paired_error_s(answer: Answer, other: Answer) -> float:
    """Returns the standard error of the difference of two plans in seconds. What lies off for the whole cluster cancels, and
    so does what both take from one cause; the formulas' own error is each plan's."""
    causes = answer.scatter_s.keys() | other.scatter_s.keys()
    own = {"formulas"}
    shared = sum((answer.scatter_s.get(one, 0.0) - other.scatter_s.get(one, 0.0)) ** 2 for one in causes - own)
    return sqrt(shared + sum(one.scatter_s.get("formulas", 0.0) ** 2 for one in (answer, other)))
