"""The answer for one plan in plain numbers: what reports print and files hold."""

from dataclasses import dataclass, fields

from solver.memory import MemoryCost
from solver.plans import Plan
from solver.price import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One plan with its cost.

    ``parts_s`` sum to ``step_s`` and so do ``origins_s`` (by origin name); ``standard_error_s`` of the
    step; ``memory_bytes`` the named terms of the worst stage, which sum to ``allocated_bytes``; ``tgs``
    tokens per GPU per second; ``mfu`` a fraction; ``errors_s`` the standard error that each family of
    curves brings in, which two plans share.
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
    tgs: float
    mfu: float
    errors_s: dict[str, float]


def answer_of(plan: Plan, cost: StepCost, memory: MemoryCost, *, tgs: float, mfu: float) -> Answer:
    """The answer of a one-row cost and memory."""
    return Answer(
        plan=plan,
        step_s=float(cost.step_s[0]),
        standard_error_s=float(cost.standard_error_s[0]),
        parts_s={part: float(value[0]) for part, value in cost.parts.items()},
        origins_s={origin.name.lower(): float(value[0]) for origin, value in cost.origins.items()},
        memory_bytes={
            field.name.removesuffix("_bytes"): float(getattr(memory, field.name)[0])
            for field in fields(MemoryCost)
        },
        allocated_bytes=float(memory.allocated_bytes[0]),
        reserved_bytes=float(memory.reserved_bytes[0]),
        device_bytes=float(memory.device_bytes[0]),
        tgs=tgs,
        mfu=mfu,
        errors_s={family: float(value[0]) for family, value in cost.std_s.items()},
    )
