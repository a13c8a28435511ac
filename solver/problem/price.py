"""The answers of given plans: step time and memory of every row of a table, whether it fits or not."""

from collections.abc import Mapping, Sequence

import numpy as np

from solver.estimate import Estimate, StepTime, estimate_memory
from solver.memory.terms import TERM_NAMES, MemoryEstimate
from solver.plans.plan_table import PlanTable
from solver.problem.interval import NEW_SOURCES, Evidence, interval_of, measured_share, standard_errors_s
from solver.problem.model_flops import mfu, tokens_per_gpu_per_s
from solver.problem.problem import Problem, cost_under
from solver.problem.result import Answer, SlowestStage
from spec.arrays import FloatArray


def price_plan(problem: Problem, plans: PlanTable) -> tuple[Answer, ...]:
    """Returns answers for the rows of a table, whether they fit or not."""
    table = estimate_memory(problem.model, problem.job, plans, problem.cluster)
    return answers_of(problem, table, range(len(plans)), cost_under(problem, table), table.memory)


def answers_of(
    problem: Problem, table: Estimate, rows: Sequence[int], cost: StepTime, memory: MemoryEstimate
) -> tuple[Answer, ...]:
    """Returns the answers of the ``rows`` of a table, one after another in ``cost`` and ``memory``."""
    utilisation = mfu(problem.model, problem.job, problem.cluster, cost.step_s)
    tgs = tokens_per_gpu_per_s(problem.job, cost.step_s)
    scatter_s = standard_errors_s(problem.job, cost.parts, cost.std_s)
    low_s, high_s = interval_s(problem, cost, scatter_s)
    stages, kinds = table.stages, problem.model.blocks
    answers: list[Answer] = []
    for place, row in enumerate(rows):
        plan, stage = table.plans.plan(row), int(cost.stage[place])
        # The columns of a stage's layers are the model's kinds of blocks, chunk after chunk.
        predictions = sum(
            int(count[stage]) for at, count in enumerate(stages.layers) if kinds[at % len(kinds)].block.mtp
        )
        first = int(stages.position[stage])
        answers.append(
            Answer(
                plan=plan,
                step_s=float(cost.step_s[place]),
                standard_error_s=float(cost.standard_error_s[place]),
                parts_s={part: float(value[place]) for part, value in cost.parts.items()},
                mean_parts_s={part: float(value[place]) for part, value in cost.mean_parts.items()},
                origins_s={origin.name.lower(): float(value[place]) for origin, value in cost.origins.items()},
                memory_bytes={name.removesuffix("_bytes"): float(getattr(memory, name)[place]) for name in TERM_NAMES},
                allocated_bytes=float(memory.allocated_bytes[place]),
                reserved_bytes=float(memory.reserved_bytes[place]),
                device_bytes=float(memory.device_bytes[place]),
                needed_bytes=float(memory.needed_bytes[place]),
                host_bytes=float(memory.host_bytes[place]),
                tgs=float(tgs[place]),
                mfu=float(utilisation[place]),
                errors_s={family: float(value[place]) for family, value in cost.std_s.items()},
                slowest=SlowestStage(
                    first=first + 1,
                    last=first + int(stages.count[stage]),
                    stages=plan.pp,
                    layers=sum(int(count[stage]) for count in stages.layers) - predictions,
                    predictions=predictions,
                    embedding=bool(stages.embedding[stage]),
                    head=bool(stages.head[stage]),
                ),
                interval_low_s=float(low_s[place]),
                interval_high_s=float(high_s[place]),
                scatter_s={cause: float(error[place]) for cause, error in scatter_s.items()},
            )
        )
    return tuple(answers)


def interval_s(problem: Problem, cost: StepTime, scatter_s: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Returns the 80 % interval of the steps (solver.problem.interval), which scatter by ``scatter_s``."""
    own = np.sqrt(np.sum(np.square(list(scatter_s.values())), axis=0)) / cost.step_s
    if problem.calibration:
        return interval_of(cost.step_s, problem.calibration.interval_std(own), unpriced=0.0)
    measured = measured_share(cost.origins) if problem.evidence is Evidence.PROFILE else np.zeros_like(own)
    return interval_of(cost.step_s, NEW_SOURCES.interval_std(own, measured))
