"""From the options of ``train`` to what is trained: the config, the job, the plan, the sheet of the device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from profdb.modelled.kept_book import KeptBook
from profiler.device import Device
from profiler.machine import matching_sheet
from runner.groups.typed_plan import PLAN, check_dp, plan_and_dp
from runner.training.refusals import check_model, check_plan
from runner.training.trainer import Training
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.request import Request, read_request
from solver.times.op_times import Pricer
from solver.typed_plan import check_order, plan_of
from spec.errors import ConfigError
from spec.job import Wide, precision_of
from spec.readers.read_config import read_config
from spec.settings.plan import WrittenPlan

TORCH_FORMATS: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What was typed; None means not given. ``micro_batches`` of a step on each rank stand for the tokens of the
    batch; ``job`` are values of spec.settings.job by key."""

    root: Path
    config: Path
    assume: str | None = None
    plan: str | None = None
    global_batch_tokens: int | None = None
    micro_batches: int | None = None
    seq_len: int | None = None
    framework: str | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    dtype: Wide | None = None
    cluster: str | None = None
    compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is trained, the question to which its step time is an answer, and the settings of the job that
    were typed.
    """

    training: Training
    question: Question
    config: Path
    dtype: str
    job: Mapping[str, object] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.training.plan


def ask(typed: Typed, device: Device, world_size: int) -> Asked:
    """Read what was typed, for so many ranks.

    Raises ConfigError with one clear line for what does not fit together, and for what torch's APIs do not run.
    """
    written, dp = written_plan(typed)
    request = Request(
        root=typed.root,
        config=typed.config,
        assume=typed.assume,
        world_size=world_size,
        global_batch_tokens=_tokens(typed, written, world_size),
        seq_len=typed.seq_len,
        cluster=typed.cluster or sheet_of(device, typed.root),
        framework=typed.framework,
        job=typed.job,
        missing="modelled",
    )
    read = read_request(request)
    job = read.job
    if typed.dtype is not None:
        job = replace(job, precision=precision_of(job.preset, typed.dtype))
    question = Question(
        model=read.config.model,
        job=job,
        cluster=read.cluster,
        pricer=Pricer.on(read.cluster, KeptBook(read.cluster, None)),
    )
    plan = plan_of(written, question, PLAN if typed.plan else str(typed.config))
    check_dp(plan, dp)
    check_order(plan, question, PLAN)
    precision = job.precision
    if precision.linear not in TORCH_FORMATS:
        raise ConfigError(
            where="train", key="precision.linear", value=precision.linear, allowed="bf16 or fp32 (--dtype)"
        )
    check_model(question.model, str(typed.config))
    training = Training(
        model=question.model,
        plan=plan,
        seq_len=job.seq_len,
        compute=TORCH_FORMATS[precision.linear],
        reduce=TORCH_FORMATS.get(precision.reduce, torch.float32),
        context_parallel=job.context_parallel,
        compiled=typed.compiled,
    )
    check_plan(training, job)
    return Asked(
        training=training, question=question, config=typed.config, dtype=precision.linear, job=typed.job
    )


def written_plan(typed: Typed) -> tuple[WrittenPlan, int | None]:
    """The plan as typed, else the config's, and the dp that was typed with it."""
    if typed.plan is None:
        return read_config(typed.config, assume=typed.assume).plan or WrittenPlan(), None
    return plan_and_dp(typed.plan)


def sheet_of(device: Device, root: Path) -> str:
    """The sheet of the device by its name; raises ConfigError where there is none."""
    sheet = matching_sheet(device.name, device.kind, root)
    if sheet is None:
        raise ConfigError(
            where="command line",
            key="--cluster",
            value=None,
            allowed=f"a sheet of configs/clusters: none is of {device.name}",
        )
    return sheet.stem


def _tokens(typed: Typed, written: WrittenPlan, world_size: int) -> int | None:
    """Tokens of a step as typed."""
    if typed.micro_batches is None:
        return typed.global_batch_tokens
    seq_len = typed.seq_len or read_config(typed.config, assume=typed.assume).seq_len or 0
    dp = max(1, world_size // ((written.tp or 1) * (written.pp or 1) * written.cp))
    return dp * (written.micro_batch or 1) * typed.micro_batches * seq_len
