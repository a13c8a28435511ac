"""The answer for one plan in plain numbers: what reports print and files hold."""

from dataclasses import dataclass

from solver.answer.slowest_stage import SlowestStage
from solver.estimate import StepTime
from solver.memory.memory_cost import TERMS, MemoryCost
from solver.plans.plan_table import Plan
from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One plan with its cost.

    Eight steps in ten lie between ``interval_low_s`` and ``interval_high_s`` (solver.answer.interval).
    ``parts_s`` sum to ``step_s`` and so do ``origins_s`` (by origin name); ``standard_error_s`` of the
    step; ``memory_bytes`` the named terms of the worst stage, which sum to ``allocated_bytes``;
    ``needed_bytes`` the least a device must have for it, ``host_bytes`` what its host holds instead; ``tgs``
    tokens per GPU per second; ``mfu`` a fraction; ``errors_s`` the standard error that each family of
    curves brings in, which two plans share. ``parts_s`` are of the ``slowest`` stage. ``also_zero_sizes`` and, one
    of each, ``also_zero_stages``: plans of these that differ in nothing else take at most 1 % longer.
    """

    plan: Plan
    step_s: float
    standard_error_s: float
    parts_s: dict[str, float]
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
    also_zero_sizes: tuple[int, ...] = ()
    also_zero_stages: tuple[int, ...] = ()

    def label(self) -> str:
        """The plan's words, and those of the plans it stands for."""
        shards = sorted(zip(self.also_zero_stages, self.also_zero_sizes, strict=True))
        also = ", ".join(self._sharded(stage, size) for stage, size in shards)
        return f"{self.plan.label()} (or {also})" if also else self.plan.label()

    def _sharded(self, stage: int, size: int) -> str:
        """The words of a plan that differs in these, its stage where that differs too."""
        if size == 1:
            return "no zero"
        return f"zero{size}" if stage == self.plan.zero_stage else f"zero{stage}/{size}"


def answer_of(
    plan: Plan,
    cost: StepTime,
    memory: MemoryCost,
    *,
    used: tuple[float, float],
    slowest: SlowestStage,
    interval_s: tuple[FloatArray, FloatArray],
) -> Answer:
    """The answer of a one-row cost and memory; ``used`` are tgs and mfu, ``interval_s`` as
    solver.answer.interval tells it."""
    tgs, mfu = used
    low_s, high_s = interval_s
    return Answer(
        plan=plan,
        step_s=float(cost.step_s[0]),
        standard_error_s=float(cost.standard_error_s[0]),
        parts_s={part: float(value[0]) for part, value in cost.parts.items()},
        origins_s={origin.name.lower(): float(value[0]) for origin, value in cost.origins.items()},
        memory_bytes={name.removesuffix("_bytes"): float(getattr(memory, name)[0]) for name in TERMS},
        allocated_bytes=float(memory.allocated_bytes[0]),
        reserved_bytes=float(memory.reserved_bytes[0]),
        device_bytes=float(memory.device_bytes[0]),
        needed_bytes=float(memory.needed_bytes[0]),
        host_bytes=float(memory.host_bytes[0]),
        tgs=tgs,
        mfu=mfu,
        errors_s={family: float(value[0]) for family, value in cost.std_s.items()},
        slowest=slowest,
        interval_low_s=float(low_s[0]),
        interval_high_s=float(high_s[0]),
    )
