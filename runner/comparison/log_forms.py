"""What frameworks write of a step into their logs: one pattern a form, its groups named by what they hold and its unit.

Groups: ``step`` (number), and one of ``ms``, ``seconds``, ``tgs`` (tokens per second and GPU), ``samples_per_s``;
``batch`` (sequences of a step), ``consumed`` (tokens since the start), ``allocated_gib``, ``reserved_gib``.
"""

import re
from dataclasses import dataclass

NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""Of a terminal; torchtitan's lines have them."""
LONGEST_LINE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """A framework's line of a step; ``mark`` is in every such line."""

    name: str
    mark: str
    step: re.Pattern[str]


FORMS: tuple[LogForm, ...] = (
    # Megatron-LM, megatron/training/training.py, training_log; Megatron-DeepSpeed's is the same up to what is read.
    LogForm(
        name="Megatron-LM log",
        mark="elapsed time per iteration (ms):",
        step=re.compile(
            rf"iteration +(?P<step>[0-9]+)/ *[0-9]+ \|.*? elapsed time per iteration \(ms\): (?P<ms>{NUMBER}) \|"
            r"(?:.*? global batch size: +(?P<batch>[0-9]+) \|)?"
        ),
    ),
    # InternEvo, internlm/train/pipeline.py, record_current_batch_training_metrics; commas in earlier ones.
    LogForm(
        name="InternEvo log",
        mark="tgs (tokens/gpu/second)=",
        step=re.compile(
            rf"\bstep=(?P<step>[0-9]+)[ ,].*?tgs \(tokens/gpu/second\)=(?P<tgs>{NUMBER})"
            r"(?:.*?num_consumed_tokens=(?P<consumed>[0-9]+))?"
        ),
    ),
    # torchtitan, torchtitan/components/metrics.py, MetricsProcessor.log; its memory is max_reserved.
    LogForm(
        name="torchtitan log",
        mark="tps:",
        step=re.compile(
            rf"(?<!validate )step: *(?P<step>[0-9]+) .*?memory: *(?P<reserved_gib>{NUMBER})GiB\(.*?"
            r"tps: (?P<tgs>[0-9,]+)"
        ),
    ),
    # DeepSpeed, deepspeed/runtime/pipe/engine.py, train_batch.
    LogForm(
        name="DeepSpeed pipeline log",
        mark="iter time (s):",
        step=re.compile(rf"\bsteps: (?P<step>[0-9]+) loss: .*?iter time \(s\): (?P<seconds>{NUMBER}) "),
    ),
    # DeepSpeed, deepspeed/utils/timer.py, ThroughputTimer.stop; a GB of it is 1024**3 bytes, a sample a sequence.
    LogForm(
        name="DeepSpeed log",
        mark="CurrSamplesPerSec=",
        step=re.compile(
            rf"global_step=(?P<step>[0-9]+), RunningAvgSamplesPerSec=\S+ CurrSamplesPerSec=(?P<samples_per_s>{NUMBER})"
            rf"(?:.*?MaxMemAllocated=(?P<allocated_gib>{NUMBER})GB)?"
        ),
    ),
)

MEGATRON_MEMORY = re.compile(
    rf"memory \(MB\) \| allocated: {NUMBER} \| max allocated: (?P<allocated_mib>{NUMBER})"
    rf" \| reserved: {NUMBER} \| max reserved: (?P<reserved_mib>{NUMBER})"
)
"""megatron/training/utils/common_utils.py, report_memory; an MB of it is 1024**2 bytes."""
MEGATRON_DEGREES = re.compile(
    r"using world size: (?P<world_size>[0-9]+), .*?context-parallel size: (?P<cp>[0-9]+),? "
    r".*?tensor-model-parallel size: (?P<tp>[0-9]+), pipeline-model-parallel size: (?P<pp>[0-9]+)"
)
"""megatron/training/arguments.py, validate_args."""
