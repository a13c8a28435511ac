"""The predicted memory of a row in the unit and meaning of its dataset's own figure."""

import numpy as np

from solver.estimate import estimate_memory
from solver.memory.device_memory import usable_bytes
from solver.plans.plan_table import PlanTable
from solver.question import Question
from solver.result import Answer
from spec.units import GIB

# What each dataset's figure is: max_memory_allocated (SimuMax's README; the zero-bubble paper's table 4, in GB of
# 10^9 bytes as printed; nanotron's logs of 2024-07 and fms-acceleration's), max_memory_reserved (torchtitan's metrics;
# nanotron's table of 2024-12, helpers.py create_table_log: logging.py log_memory resets the peak of what is allocated
# after the last micro-batch, so only its "Mem Res" holds activations), what
# nvidia-smi shows (bigscience; assumed of InternEvo's table). Out-of-memory verdicts: what the device must have.
ALLOCATED = frozenset({"simumax_a100", "simumax_b200", "fms_accel_full", "fms_accel_peft"})
ALLOCATED_DECIMAL = frozenset({"zero_bubble"})
# of the first pipeline stage, which rank 0 is on
ALLOCATED_FIRST = frozenset({"nanotron_old_bench"})
RESERVED_FIRST = frozenset({"nanotron_bench"})
RESERVED = frozenset({"torchtitan"})
SHOWN = frozenset({"bigscience", "internevo_mem"})
DECIMAL_GB = 1e9


def memory_gib(dataset: str, question: Question, answer: Answer) -> float:
    """GiB of the worst stage, or what else the dataset states."""
    if dataset in ALLOCATED:
        return answer.allocated_bytes / GIB
    if dataset in ALLOCATED_FIRST | RESERVED_FIRST:
        table = estimate_memory(question.model, question.job, PlanTable.of(answer.plan), question.cluster)
        cost = table.bytes.cost
        held = cost.allocated_bytes
        if dataset in RESERVED_FIRST:
            # Where it does not fit the allocator hands segments back (solver.memory.shortfall).
            retries = cost.device_bytes > usable_bytes(question.cluster)
            held = cost.reserved_bytes - np.where(retries, cost.segment_bytes, 0.0)
        return float(held[table.stages.starts[0]]) / GIB
    if dataset in ALLOCATED_DECIMAL:
        return answer.allocated_bytes / DECIMAL_GB
    if dataset in RESERVED:
        return answer.reserved_bytes / GIB
    if dataset in SHOWN and answer.device_bytes <= usable_bytes(question.cluster):
        return answer.device_bytes / GIB
    return answer.needed_bytes / GIB
