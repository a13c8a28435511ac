"""What frameworks log of a step, and of memory: one pattern per form, with groups named by quantity and unit.

Groups: ``step`` (number; lines without one are counted), and one of ``ms``, ``seconds``, ``tgs`` (tokens per second and
GPU), ``tokens_per_s``, ``samples_per_s``, ``steps_per_s``, or of means since the start of the run: ``mean_s`` (seconds of a
step), ``mean_per_s``; ``batch`` (sequences of a step), ``consumed`` (tokens since the start), ``allocated_gib`` and the
like (UNITS).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spec.units import GIB, MIB

NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's colour codes; torchtitan's lines have them."""
LONGEST_LINE = 20_000
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9}
"""nanotron src/nanotron/logging/base.py, human_format: three digits and a power of 1000."""
UNITS = {"gib": GIB, "mib": MIB, "gb": 1e9}

StepLine = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """How a framework logs a step; every such line contains ``mark``. With ``indented`` the indented lines below belong to
    it; with ``whole_run`` it states the mean of all steps, the first ones included."""

    name: str
    mark: str
    step: re.Pattern[str]
    indented: bool = False
    whole_run: bool = False


FORMS: tuple[LogForm, ...] = (
    # Megatron-LM, megatron/training/training.py, training_log; Megatron-DeepSpeed's is the same up to what is read, and so
    # is that of Megatron-Bridge's last rank.
    LogForm(
        name="Megatron-LM log",
        mark="elapsed time per iteration (ms):",
        step=re.compile(
            rf"iteration +(?P<step>[0-9]+)/ *[0-9]+ \|.*? elapsed time per iteration \(ms\): (?P<ms>{NUMBER}) \|"
            r"(?:.*? global batch size: +(?P<batch>[0-9]+) \|)?"
        ),
    ),
    # Megatron-Bridge, src/megatron/bridge/training/utils/train_utils.py, training_log: what its first rank prints.
    LogForm(
        name="Megatron-Bridge log",
        mark="Step Time :",
        step=re.compile(rf"Step Time : (?P<seconds>{NUMBER})s GPU utilization:"),
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
    # DeepSpeed, deepspeed/utils/timer.py, ThroughputTimer.stop; a GB of it is 1024**3 bytes, a sample a sequence. Before
    # global_step= it said EPOCH/STEP, and before the current rate a mean alone.
    LogForm(
        name="DeepSpeed log",
        mark="SamplesPerSec=",
        step=re.compile(
            r"(?:global_step=|\b[0-9]+/)(?P<step>[0-9]+), (?:RunningAvgSamplesPerSec=\S+ Curr)?"
            rf"SamplesPerSec=(?P<samples_per_s>{NUMBER})(?:.*?MaxMemAllocated=(?P<allocated_gib>{NUMBER})GB)?"
        ),
    ),
    # nanotron, src/nanotron/trainer.py, train_step_logs; logging/base.py, LoggerWriter.
    LogForm(
        name="nanotron log",
        mark="time_per_iteration_ms:",
        step=re.compile(rf"iteration: (?P<step>[0-9]+) / [0-9]+ \|.*?time_per_iteration_ms: (?P<ms>{NUMBER}[KMB]?) \|"),
    ),
    # NeMo 2, nemo/lightning/pytorch/callbacks/progress_printer.py; NeMo 1's progress bar has = in place of a colon.
    LogForm(
        name="NeMo log",
        mark="train_step_timing in s",
        step=re.compile(
            r"(?:global_batch_size[:=] ?(?P<batch>[0-9]+).*?)?global_step[:=] ?(?P<step>[0-9]+).*?"
            rf"train_step_timing in s[:=] ?(?P<seconds>{NUMBER})"
        ),
    ),
    # NeMo AutoModel, nemo_automodel/recipes/llm/train_ft.py, log_train_metrics.
    LogForm(
        name="AutoModel log",
        mark="| tps ",
        step=re.compile(
            rf"\bstep (?P<step>[0-9]+) \| epoch .*? \| mem (?P<allocated_gib>{NUMBER}) GiB \| tps (?P<tokens_per_s>{NUMBER})\("
        ),
    ),
    # MaxText, src/MaxText/metric_logger.py, log_metrics.
    LogForm(
        name="MaxText log",
        mark="completed step:",
        step=re.compile(rf"completed step: (?P<step>[0-9]+), seconds: (?P<seconds>{NUMBER}), TFLOP/s/device"),
    ),
    # llm-foundry: composer/loggers/console_logger.py, log_to_console; callbacks/speed_monitor.py, a mean over a window.
    LogForm(
        name="llm-foundry log",
        mark="throughput/samples_per_sec:",
        step=re.compile(
            r"\[batch=(?P<step>[0-9]+)(?:/[0-9]+)?\]:.*?Train throughput/samples_per_sec: "
            rf"(?P<samples_per_s>{NUMBER})"
        ),
        indented=True,
    ),
    # OLMo-core, src/olmo_core/train/callbacks/console_logger.py, log_metrics; speed_monitor.py, post_step: batches per second.
    LogForm(
        name="OLMo-core log",
        mark="throughput/device/BPS=",
        step=re.compile(rf"\[step=(?P<step>[0-9]+)/.*?throughput/device/BPS=(?P<steps_per_s>{NUMBER})"),
        indented=True,
    ),
    # MS-Swift, swift/trainers/mixin.py, _maybe_log_save_evaluate; swift/megatron/trainers/utils, seconds in place of a rate.
    LogForm(
        name="MS-Swift log",
        mark="train_speed(",
        step=re.compile(
            r"(?=.*?[\"'](?:global_step/max_steps|iteration)[\"']: [\"'](?P<step>[0-9]+)/)"
            rf".*?train_speed\((?:iter/s\)[\"']: [\"']?(?P<mean_per_s>{NUMBER})|s/it\)[\"']: [\"']?(?P<mean_s>{NUMBER}))"
        ),
    ),
    # axolotl, src/axolotl/utils/callbacks/tokens_per_second.py, on_log: tokens that the loss counts.
    LogForm(
        name="axolotl log",
        mark="tokens/train_per_sec_per_gpu",
        step=re.compile(rf"'loss':.*?'tokens/train_per_sec_per_gpu': '?(?P<tgs>{NUMBER})"),
    ),
    # transformers, trainer_utils.py, speed_metrics, as Trainer prints it at the end: no step has a time of its own.
    LogForm(
        name="Hugging Face Trainer log (mean of all steps)",
        mark="train_samples_per_second",
        step=re.compile(rf"train_runtime.*?train_samples_per_second[\"']: [\"']?(?P<samples_per_s>{NUMBER})"),
        whole_run=True,
    ),
)

MEMORY: tuple[re.Pattern[str], ...] = (
    # megatron/training/utils/common_utils.py, report_memory; an MB of it is 1024**2 bytes
    re.compile(
        rf"memory \(MB\) \| allocated: {NUMBER} \| max allocated: (?P<allocated_mib>{NUMBER})"
        rf" \| reserved: {NUMBER} \| max reserved: (?P<reserved_mib>{NUMBER})"
    ),
    # Megatron-Bridge, train_utils.py, report_memory, in 10**9 bytes
    re.compile(
        rf"mem-max-allocated-gigabytes: (?P<allocated_gb>{NUMBER}).*?mem-max-reserved-gigabytes: (?P<reserved_gb>{NUMBER})"
    ),
    # nanotron, src/nanotron/logging/base.py, log_memory
    re.compile(rf"Peak allocated:? (?P<allocated_mib>{NUMBER})MiB\. Peak reserved: (?P<reserved_mib>{NUMBER})MiB"),
    # MS-Swift: max_memory_reserved
    re.compile(rf"[\"']memory\(GiB\)[\"']: [\"']?(?P<reserved_gib>{NUMBER})"),
    # axolotl, src/axolotl/core/trainers/base.py, log
    re.compile(
        rf"memory/max_allocated \(GiB\)': '?(?P<allocated_gib>{NUMBER})'?, 'memory/device_reserved \(GiB\)': "
        rf"'?(?P<reserved_gib>{NUMBER})"
    ),
    # composer/callbacks/memory_monitor.py, in 10**9 bytes
    re.compile(rf"Train memory/peak_allocated_mem: (?P<allocated_gb>{NUMBER})"),
    re.compile(rf"Train memory/peak_reserved_mem: (?P<reserved_gb>{NUMBER})"),
    # OLMo-core, src/olmo_core/train/callbacks/gpu_memory_monitor.py
    re.compile(rf"gpu_memory/GPU reserved mem \(GiB\)=(?P<reserved_gib>{NUMBER})"),
)
"""Memory that any line of a log may report, whatever the form of its steps."""

MEGATRON_DEGREES = re.compile(
    r"using world size: (?P<world_size>[0-9]+), .*?context-parallel size: (?P<cp>[0-9]+),? "
    r".*?tensor-model-parallel size: (?P<tp>[0-9]+), pipeline-model-parallel size: (?P<pp>[0-9]+)"
)
"""megatron/training/arguments.py, validate_args."""
