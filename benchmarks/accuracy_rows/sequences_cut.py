"""How the ranks of a context-parallel group get each other's keys and values."""

import re

from benchmarks.accuracy_rows.frameworks import framework_of, runs_modules_of_hugging_face
from benchmarks.accuracy_rows.row import Row

# Words of Transformer Engine (cp_comm_type), torch (context_parallel_rotate_method, whose all-to-all passes
# keys on as a ring does) and of people; the first that occurs wins.
STATED: tuple[tuple[str, str], ...] = (
    (r"cp_comm_type\W{0,3}all_?gather|rotate_method\W{0,3}allgather", "all_gather"),
    (r"simumax|ulysses|cp_comm_type\W{0,3}a2a(?!\+)|\ba2a[ -]cp\b|\bcp[ -]a2a\b", "all_to_all"),
    (r"cp_comm_type\W{0,3}p2p|rotate_method\W{0,3}alltoall|\bring[ -]attention\b|\bcp[ -]p2p\b", "ring"),
)
# DeepSpeed cuts sequences by Ulysses alone (deepspeed/sequence/layer.py).
BY_ULYSSES = frozenset({"deepspeed", "deepspeed-bf16", "xtuner"})


def context_parallel_of(row: Row) -> str:
    """How context parallelism exchanges: as dataset, framework or notes say; else by Ulysses over DeepSpeed,
    torchtitan's and accelerate's all-gather (job_config.py, context_parallel_rotate_method;
    utils/dataclasses.py, TorchContextParallelConfig) or Megatron-Core's ring."""
    said = f"{row.dataset} {row.text('framework')} {row.notes}".lower()
    for pattern, kind in STATED:
        if re.search(pattern, said):
            return kind
    if row.dataset == "megascale_moe" or framework_of(row)[0] in BY_ULYSSES:
        return "all_to_all"
    gathers = "torchtitan" in row.text("framework") or runs_modules_of_hugging_face(row)
    return "all_gather" if gathers else "ring"
