"""From the options of ``train`` to a training task (config, job, plan, hardware spec), and what ``train`` refuses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ops.recompute import CORE_ATTENTION, Recompute
from profdb.modelled.cost_model import ModelledCostModel
from profiler.device import Device
from profiler.machine import find_hardware_spec
from runner.groups.degrees import PLAN, check_dp, plan_and_dp
from runner.reference.kernels import settings_of
from runner.reference.layers import ACTIVATIONS
from runner.training.pipeline import TORCH_SCHEDULES
from runner.training.trainer import TrainingConfig
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.problem.problem import Problem
from solver.problem.request import Request, read_request
from solver.problem.requested_plan import check_order, plan_of
from solver.times.op_times import OpTimer
from spec.errors import ConfigError
from spec.job import HighPrecision, JobSpec, precision_of
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights
from spec.model import BlockSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from spec.readers.read_config import read_config
from spec.settings.plan import PlanSettings

TORCH_FORMATS: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """Options of ``train``; None means not given. ``micro_batches`` of a step on each rank replace the batch in tokens;
    ``job`` are values of spec.settings.job by key."""

    root: Path
    config: Path
    assume: str | None = None
    plan: str | None = None
    global_batch_tokens: int | None = None
    micro_batches: int | None = None
    seq_len: int | None = None
    framework: str | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    dtype: HighPrecision | None = None
    cluster: str | None = None
    compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTask:
    """A training run, the problem that predicts its step time, and the settings by which its job differs from the
    framework's preset: how the reference transformer runs, and what was requested."""

    training: TrainingConfig
    problem: Problem
    config: Path
    dtype: str
    job: Mapping[str, object] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.training.plan


def read_task(options: TrainRequest, device: Device, world_size: int) -> TrainTask:
    """The task of the options on ``world_size`` ranks.

    Raises ConfigError for options that contradict each other, and for what torch's APIs do not run.
    """
    parsed, dp = requested_plan(options)
    settings = dict(settings_of(compiled=options.compiled)) | dict(options.job)
    request = Request(
        root=options.root,
        config=options.config,
        assume=options.assume,
        world_size=world_size,
        global_batch_tokens=_tokens(options, parsed, world_size),
        seq_len=options.seq_len,
        cluster=options.cluster or hardware_spec_of(device, options.root),
        framework=options.framework,
        job=settings,
        missing="modelled",
    )
    question = read_request(request)
    job = question.job
    if options.dtype is not None:
        job = replace(job, precision=precision_of(job.preset, options.dtype))
    problem = Problem(
        model=question.config.model,
        job=job,
        cluster=question.cluster,
        op_timer=OpTimer.on(question.cluster, ModelledCostModel(cluster=question.cluster)),
    )
    plan = plan_of(parsed, problem, PLAN if options.plan else str(options.config))
    check_dp(plan, dp)
    check_order(plan, problem, PLAN)
    precision = job.precision
    if precision.linear not in TORCH_FORMATS:
        raise ConfigError(
            where="train", key="precision.linear", value=precision.linear, allowed="bf16 or fp32 (--dtype)"
        )
    check_model(problem.model, str(options.config))
    training = TrainingConfig(
        model=problem.model,
        plan=plan,
        seq_len=job.seq_len,
        compute=TORCH_FORMATS[precision.linear],
        reduce=TORCH_FORMATS.get(precision.reduce, torch.float32),
        context_parallel=job.context_parallel,
        compiled=options.compiled,
    )
    check_plan(training, job)
    return TrainTask(training=training, problem=problem, config=options.config, dtype=precision.linear, job=settings)


def requested_plan(options: TrainRequest) -> tuple[PlanSettings, int | None]:
    """The requested plan, else the config's, and the requested dp."""
    if options.plan is None:
        return read_config(options.config, assume=options.assume).plan or PlanSettings(), None
    return plan_and_dp(options.plan)


def hardware_spec_of(device: Device, root: Path) -> str:
    """Name of the device's hardware spec. Raises ConfigError if there is none."""
    spec = find_hardware_spec(device.name, device.kind, root)
    if spec is None:
        raise ConfigError(
            where="command line",
            key="--cluster",
            value=None,
            allowed=f"a hardware spec of configs/clusters: none is of {device.name}",
        )
    return spec.stem


def _tokens(options: TrainRequest, parsed: PlanSettings, world_size: int) -> int | None:
    """Tokens of a step as requested; None if not."""
    if options.micro_batches is None:
        return options.global_batch_tokens
    seq_len = options.seq_len or read_config(options.config, assume=options.assume).seq_len or 0
    # dp is not yet known to divide; plan_of reports degrees that do not.
    dp = max(1, world_size // ((parsed.tp or 1) * (parsed.pp or 1) * parsed.cp))
    return dp * (parsed.micro_batch or 1) * options.micro_batches * seq_len


# What ``train`` refuses: models that the reference transformer cannot represent, and plans that torch's APIs cannot run.
# Each function yields its refusals; the first one becomes the error.

Refusal = tuple[str, Any, str]
"""Key, value, what is allowed."""


def check_model(model: ModelSpec, where: str) -> None:
    """Raise ConfigError for a model, read from ``where``, that the reference transformer cannot represent."""
    _refuse(where, _model(model))


def check_plan(training: TrainingConfig, job: JobSpec) -> None:
    """Raise ConfigError for a plan or a job that ``train`` cannot run."""
    _refuse("train", _job(job))
    for refusals in (_strategy, _pipeline, _tied, _copies, _shapes):
        _refuse("train", refusals(training))
    _refuse("train", _recompute(training, job))


def _refuse(where: str, refusals: Iterator[Refusal]) -> None:
    for key, value, allowed in refusals:
        raise ConfigError(where=where, key=key, value=value, allowed=f"{allowed} (train supports no other)")


def _model(model: ModelSpec) -> Iterator[Refusal]:
    if model.position is PositionKind.LEARNED:
        yield "position", model.position.value, "rotary or none"
    for key in ("embedding_norm", "logit_softcap"):
        if getattr(model, key):
            yield key, True, "false"
    for key in model.rare_parts:
        yield key, True, "false"
    if model.norm not in (NormKind.RMS, NormKind.LAYER):
        yield "norm", model.norm.value, "rmsnorm or layernorm"
    for run in model.blocks:
        yield from _block(run.block)


def _block(block: BlockSpec) -> Iterator[Refusal]:
    mixer = block.mixer
    if not isinstance(mixer, AttentionSpec) or mixer.kind is AttentionKind.MLA:
        name = "none" if mixer is None else getattr(mixer, "kind", mixer.name)
        yield "mixer", str(name), "multi-head or grouped-query attention"
        return
    for key in ("sinks", "gates", "softcap", "alibi", "chunk", "index_topk"):
        if getattr(mixer, key):
            yield key, getattr(mixer, key), "none"
    if mixer.qk_norm and mixer.qk_norm_weights not in (QkNormWeights.HEAD, QkNormWeights.NONE):
        yield "qk_norm_weights", mixer.qk_norm_weights.value, "head or none"
    if block.mtp or block.parallel_residual or not block.feeds_forward:
        yield "block", "mtp, parallel or half", "attention, then a feed-forward layer"
    if block.norm_place is not NormPlace.BEFORE:
        yield "norm_place", block.norm_place.value, "before"
    if block.moe is not None:
        yield from _experts(block.moe)
    half = block.moe or block.mlp
    if half is not None and half.activation not in ACTIVATIONS:
        yield "activation", half.activation, f"one of {', '.join(ACTIVATIONS)}"


def _experts(moe: MoeSpec) -> Iterator[Refusal]:
    for key in ("bias", "shared_gate", "router_bias", "clamped", "latent_hidden", "capacity_factor"):
        if getattr(moe, key):
            yield f"experts' {key}", getattr(moe, key), "none"
    if moe.route_groups > 1:
        yield "experts' route_groups", moe.route_groups, "1"


def _job(job: JobSpec) -> Iterator[Refusal]:
    if job.optimizer != "adamw":
        yield "optimizer", job.optimizer, "adamw"
    for key in ("adapter_rank", "dropout", "document_tokens", "cuda_graphs", "moe_capacity_factor", "images"):
        if getattr(job, key):
            yield key, getattr(job, key), "none"
    if not job.flash_attention:
        yield "flash_attention", False, "true"


def _strategy(training: TrainingConfig) -> Iterator[Refusal]:
    plan, traits = training.plan, training.plan.sharding.traits
    if traits.exchanges_heads or traits.copies.has_weight_groups:
        yield ("strategy", plan.strategy, "mtp, msp or fsp; cp exchanges heads with --job context_parallel=all_to_all")
    experts = any(run.block.moe is not None for run in training.model.blocks)
    if experts and plan.tp > 1 and not training.tokens_sharded:
        yield "strategy", plan.strategy, "msp or fsp with experts: their tokens must be cut over tp"
    if plan.etp > 1:
        yield "etp", plan.etp, "1"
    if plan.optimizer_offload or plan.offloaded_layers:
        yield "optimizer_offload, offloaded_layers", (plan.optimizer_offload, plan.offloaded_layers), "0"


def _pipeline(training: TrainingConfig) -> Iterator[Refusal]:
    plan, layers = training.plan, training.model.num_layers
    if plan.pp == 1 and plan.vpp > 1:
        yield "vpp", plan.vpp, "1 without a pipeline"
    if plan.pp > 1 and plan.schedule not in TORCH_SCHEDULES:
        yield "schedule", plan.schedule.value, f"one of {', '.join(TORCH_SCHEDULES)}"
    if plan.pp > 1 and plan.schedule.traits.splits_backward:
        yield from _split_backward(training)
    if plan.num_micro < plan.pp:
        yield "micro-batches", plan.num_micro, f"pp {plan.pp} or more"
    if plan.vpp > 1 and plan.schedule is Schedule.ONE_F_ONE_B and plan.num_micro % plan.pp:
        yield "micro-batches", plan.num_micro, f"with vpp a multiple of pp {plan.pp}"
    if not plan.stage_layout and layers % (plan.pp * plan.vpp):
        yield "layers", layers, f"a multiple of pp x vpp = {plan.pp * plan.vpp}, or a layout"


def _split_backward(training: TrainingConfig) -> Iterator[Refusal]:
    plan = training.plan
    rounds = plan.num_micro // plan.pp
    if plan.schedule is not Schedule.ZB_V and rounds and plan.num_micro % rounds:
        yield ("micro-batches", plan.num_micro, f"with {plan.schedule.value} a multiple of {rounds}, its rounds")
    if plan.zero_stage > 1:
        yield ("zero_stage", plan.zero_stage, f"0 or 1 with {plan.schedule.value}: FSDP2 takes no split backward")
    if training.compiled:
        yield "--compile", True, f"no compiled blocks with {plan.schedule.value}"


def _tied(training: TrainingConfig) -> Iterator[Refusal]:
    if training.model.tied_embeddings and (training.plan.pp > 1 or training.plan.zero_stage > 1):
        degrees = (training.plan.pp, training.plan.zero_stage)
        yield "pp, zero_stage", degrees, "pp 1 and ZeRO 0 or 1 with tied embeddings"


def _copies(training: TrainingConfig) -> Iterator[Refusal]:
    plan = training.plan
    ranks = plan.dp * plan.cp
    if ranks % plan.zero_size:
        yield "zero_size", plan.zero_size, f"a divisor of dp x cp = {ranks}"
    # Experts then have data-parallel groups of their own (edp), over which this trainer shards all or nothing.
    apart = plan.ep > 1 or plan.tp > 1
    experts = any(run.block.moe is not None for run in training.model.blocks)
    if experts and apart and plan.zero_stage and plan.zero_size != ranks:
        yield "zero_size", plan.zero_size, f"with experts dp x cp = {ranks}"
    if plan.world_size // plan.pp % plan.ep:
        yield "ep", plan.ep, f"a divisor of the {plan.world_size // plan.pp} ranks of a stage"
    if plan.ep > 1 and not experts:
        yield "ep", plan.ep, "1 for a model without experts"


def _shapes(training: TrainingConfig) -> Iterator[Refusal]:
    plan, model, cp = training.plan, training.model, training.plan.cp
    if cp > 1 and training.context_parallel not in ("all_gather", "all_to_all"):
        yield "context_parallel", training.context_parallel, "--job context_parallel=all_gather or all_to_all"
    exchanges = training.context_parallel == "all_to_all"
    # All-gather gives each rank two chunks, to balance the causal mask (runner.reference.layers.GatheredKeys).
    cp_chunks = 1 if cp == 1 else cp if exchanges else 2 * cp
    chunks = cp_chunks * (plan.tp if training.tokens_sharded else 1)
    if training.seq_len % chunks:
        yield "seq_len", training.seq_len, f"a multiple of {chunks} under this plan"
    if model.vocab % plan.tp:
        yield "vocab", model.vocab, f"a multiple of tp {plan.tp}"
    for run in model.blocks:
        yield from _widths(run.block, plan.tp, plan.tp * cp if exchanges else plan.tp)
        if run.block.moe is not None and run.block.moe.num_experts % plan.ep:
            yield "ep", plan.ep, f"a divisor of {run.block.moe.num_experts} experts"


def _widths(block: BlockSpec, tp: int, heads: int) -> Iterator[Refusal]:
    mixer = block.mixer
    if isinstance(mixer, AttentionSpec):
        for key in ("num_heads", "num_kv_heads"):
            if getattr(mixer, key) % heads:
                yield key, getattr(mixer, key), f"a multiple of the {heads} ranks that share the heads"
    shared = block.moe.shared_ffn_hidden if block.moe is not None else 0
    width = block.mlp.ffn_hidden if block.mlp is not None else shared
    if width % tp:
        yield "ffn_hidden", width, f"a multiple of tp {tp}"


def _recompute(training: TrainingConfig, job: JobSpec) -> Iterator[Refusal]:
    plan, selective = training.plan, job.preset.recomputation.selective
    if plan.recompute_modules:
        yield "recompute_modules", plan.recompute_modules, "none"
    if plan.offload_modules:
        yield "offload_modules", plan.offload_modules, "none"
    if plan.recompute is Recompute.SELECTIVE and selective != CORE_ATTENTION:
        yield "recompute", f"selective of {selective or 'nothing'}", "none, full, or selective of core_attn"
