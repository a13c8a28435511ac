"""AICB's flags that say nothing of a workload written here: accepted, and told why.

Source: AICB 2.1, utils/utils.py (every argparse option) and scripts/ (what the shells take besides).
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A flag's name, why it changes nothing, and whether a value follows it."""

    name: str
    why: str
    takes_value: bool = False


SAME_BYTES = "an activation moves the same bytes whichever it is; --swiglu adds a gate"
LAUNCH = "nothing is launched here"
OTHERS = (
    Other(name="workload_only", why="a workload is only written here, never run"),
    Other(name="enable_visual", why="pictures are drawn by the verbs traffic and topology (--picture)"),
    Other(name="overlap_grad_reduce", why="a file says what is sent, not what hides it"),
    Other(name="overlap_version", why="a file says what is sent, not what hides it"),
    Other(name="activation_func", why=SAME_BYTES, takes_value=True),
    Other(name="squared_relu", why=SAME_BYTES),
    Other(name="openai_gelu", why=SAME_BYTES),
    Other(name="onnx_safe", why=SAME_BYTES),
    Other(name="bias_gelu_fusion", why="kernels are fused as the framework's preset fuses them"),
    Other(name="amp_enabled", why="DeepSpeed runs no apex amp with ZeRO; --dtype float16 is its own"),
    Other(name="contiguous_gradients", why="DeepSpeed's default: one buffer, the same traffic"),
    Other(name="node_rank", why=LAUNCH, takes_value=True),
    Other(name="master_addr", why=LAUNCH, takes_value=True),
    Other(name="master_port", why=LAUNCH, takes_value=True),
)
# What only a general workload has rows for.
GENERAL_ONLY = ("epoch_num", "computation_enable")
# The same, of one kind of ZeRO stage.
STAGES_1_2 = ("allgather_bucket_size", "use_multi_rank_bucket_allreduce", "round_robin_gradients")
STAGE_3 = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
)
# What a communication test takes.
OF_TESTS = (
    "verb",
    "frame",
    "format",
    "output",
    "world_size",
    "nnodes",
    "nproc_per_node",
    "tensor_model_parallel_size",
    "pipeline_model_parallel",
    "test_comm",
    "begin_size",
    "end_size",
    "iter_num",
    "epoch_num",
    "multi_all_reduce_enable",
)
OF_TESTS_ALONE = ("begin_size", "end_size", "iter_num", "multi_all_reduce_enable")


def notes_on(options: argparse.Namespace, defaults: argparse.Namespace, *, test: bool) -> Iterator[str]:
    """One line for every flag that was typed and changes nothing in what is asked for; ``defaults`` are the options
    of a command without flags, ``test`` says that a communication test is asked for."""
    typed = [name for name, value in vars(options).items() if value != getattr(defaults, name, None)]
    reasons = _reasons_in_a_test(typed) if test else _reasons_in_a_workload(options)
    reasons |= {other.name: other.why for other in OTHERS}
    for name in typed:
        if name in reasons:
            yield f"--{name} changes nothing: {reasons[name]}"


def _reasons_in_a_test(typed: list[str]) -> dict[str, str]:
    return {name: "a test has no model" for name in typed if name not in OF_TESTS}


def _reasons_in_a_workload(options: argparse.Namespace) -> dict[str, str]:
    reasons = dict.fromkeys(OF_TESTS_ALONE, "it is of a communication test (--test_comm)")
    if options.format != "general":
        alone = "it acts in a general workload alone (--format general)"
        return reasons | dict.fromkeys((*GENERAL_ONLY, *STAGES_1_2, *STAGE_3), alone)
    if str(options.zero_stage or options.stage or 3) == "3":
        return reasons | dict.fromkeys(STAGES_1_2, "it acts with ZeRO stages 1 and 2")
    return reasons | dict.fromkeys(STAGE_3, "it acts with ZeRO stage 3")
