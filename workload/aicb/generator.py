"""The plan and job of a generator command: AICB's flags as a problem and a plan of the solver."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.problem.problem import Problem
from solver.problem.request import valid_world_size
from solver.problem.requested_plan import broken_rules
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec, segmented
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.mixers.attention import attention_of
from spec.model import ModelSpec
from workload.aicb.aiob import aiob_times_ns, read_aiob, with_aiob_times
from workload.aicb.flags import DEEPSPEED, FSDP, STAGE_3, STAGES_1_2, refuse
from workload.aicb.model import model_of
from workload.aicb.time_source import FixedCostModel, TimeFlags, TimeSource, time_source
from workload.simai.export import SLOWEST, select_stages
from workload.stage_work import StageWork, stage_works

DEFAULT_SEQUENCE = 2048
DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel",
    "context_parallel_size",
    "expert_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
)
SHARDED = (DEEPSPEED, FSDP)


def _problem(options: argparse.Namespace, world: int, model: ModelSpec, source: TimeSource) -> Problem:
    """The problem that the flags describe. Raises ConfigError for degrees and batches that do not divide."""
    dp = _data_parallel(options, world, source.cluster)
    cluster = segmented(source.cluster, world)
    micro_batch = options.micro_batch
    batch = dp * micro_batch if options.global_batch is None else options.global_batch
    if micro_batch < 1 or batch < 1 or batch % (dp * micro_batch):
        raise refuse("global_batch", batch, f"a positive multiple of dp {dp} x micro_batch {micro_batch}")
    seq_length = options.seq_length or DEFAULT_SEQUENCE
    preset = _preset(options)
    job = JobSpec(
        world_size=world,
        seq_len=seq_length,
        global_batch_tokens=batch * seq_length,
        preset=preset,
        precision=precision_of(preset),
        flash_attention=options.use_flash_attn,
    ).on(cluster.gpu.architecture)
    # A fixed time is what was requested: no clock under load changes it.
    times = source.cost_model
    if isinstance(times, FixedCostModel):
        op_timer = OpTimer(cost_model=times, domain_ranks=cluster.scale_up_ranks)
    else:
        op_timer = OpTimer.on(cluster, times)
    return Problem(model=model, job=job, cluster=cluster, op_timer=op_timer)


def _data_parallel(options: argparse.Namespace, world: int, cluster: ClusterSpec) -> int:
    """Ranks left for data parallelism, once every degree divides what it must divide."""
    tp, pp, cp = _degrees(options)
    vpp = options.virtual_pipeline_model_parallel_size
    for name in DEGREES:
        if getattr(options, name) < 1:
            raise refuse(name, getattr(options, name), "1 or more")
    valid_world_size(world, cluster)
    if world % (tp * pp * cp):
        raise refuse("world_size", world, f"a multiple of tp {tp} x pp {pp} x cp {cp}")
    if vpp > 1 and pp == 1:
        raise refuse("virtual_pipeline_model_parallel_size", vpp, "1 without a pipeline")
    return world // (tp * pp * cp)


def _degrees(options: argparse.Namespace) -> tuple[int, int, int]:
    """Returns tp, pp and cp."""
    return (options.tensor_model_parallel_size, options.pipeline_model_parallel, options.context_parallel_size)


def _preset(options: argparse.Namespace) -> FrameworkPreset:
    name = {DEEPSPEED: "deepspeed", FSDP: "fsdp"}.get(options.frame, "megatron")
    preset, bucket = framework_preset(name), options.reduce_bucket_size
    if bucket is None:
        return preset
    if bucket < 1:
        raise refuse("reduce_bucket_size", bucket, "elements, 1 or more")
    return preset.changed({"data_parallel.bucket_elements": bucket, "data_parallel.bucket_elements_per_rank": 0})


def _plan(options: argparse.Namespace, problem: Problem) -> Plan:
    """The plan of the flags. Raises ConfigError for one that the framework cannot run."""
    tp, pp, cp = _degrees(options)
    ep, vpp = options.expert_model_parallel_size, options.virtual_pipeline_model_parallel_size
    dp = problem.job.world_size // (tp * pp * cp)
    num_micro = problem.job.global_batch_sequences // (dp * options.micro_batch)
    has_experts = any(run.block.moe is not None for run in problem.model.blocks)
    # Megatron-LM cuts experts by tp too unless --expert-tensor-parallel-size says otherwise.
    etp = options.expert_tensor_parallel_size
    if etp is None:
        etp = tp if has_experts else 1
    if ep > 1 and not has_experts:
        raise refuse("expert_model_parallel_size", ep, "1 for a model without experts")
    if (tp * cp * dp) % (ep * max(etp, 1)) or etp < 1:
        allowed = f"ep x expert tp {etp} must divide tp {tp} x cp {cp} x dp {dp}"
        raise refuse("expert_model_parallel_size", ep, allowed)
    if vpp > 1 and num_micro % pp:
        allowed = f"interleaving wants micro-batches ({num_micro}) in multiples of pp {pp}"
        raise refuse("global_batch", problem.job.global_batch_sequences, allowed)
    stage, copies = _zero_stage(options), dp * cp
    recompute = Recompute.SELECTIVE if options.recompute_activations else Recompute.NONE
    plan = Plan(
        strategy="fsp" if options.enable_sequence_parallel and tp > 1 else "mtp",
        preset=problem.job.preset.name,
        recompute=Recompute.FULL if options.recompute_full else recompute,
        schedule=Schedule.ONE_F_ONE_B,
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        dp=dp,
        zero_stage=stage if copies > 1 else 0,
        zero_size=copies if stage and copies > 1 else 1,
        micro_batch=options.micro_batch,
        num_micro=num_micro,
    )
    broken = broken_rules(problem, plan)
    if broken:
        raise refuse("frame", options.frame, f"cannot run {plan.label()}: {'; '.join(broken)}")
    return plan


# From the options of ``generate`` to files: the model, the plan, the times, the format.


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorInput:
    """The problem and plan of a command, its chosen stages with their times, and notes to print."""

    problem: Problem
    plan: Plan
    works: tuple[StageWork, ...]
    notes: tuple[str, ...]
    has_times: bool
    stage: str = SLOWEST


def generator_input(options: argparse.Namespace, root: Path) -> GeneratorInput:
    """Everything the options describe. Raises UserError with one line for what cannot be."""
    world = world_size(options)
    _check_frame(options)
    model, shape_notes = model_of(options, root)
    source = time_source(TimeFlags(**{each.name: getattr(options, each.name) for each in fields(TimeFlags)}), root)
    problem = _problem(options, world, model, source)
    plan = _plan(options, problem)
    works = select_stages(stage_works(problem, plan), _pipeline_stage(options))
    if options.comp_filepath is not None:
        # The op list already runs what is recomputed again, so no time is doubled inside the file's sums.
        for run in model.blocks:
            attention_of(run.block.mixer, f"{options.comp_filepath}: AICB's times")
        times_ns = aiob_times_ns(read_aiob(options.comp_filepath))
        works = tuple(with_aiob_times(work, times_ns) for work in works)
    return GeneratorInput(
        stage=_pipeline_stage(options),
        problem=problem,
        plan=plan,
        works=works,
        notes=(*shape_notes, *source.notes),
        has_times=source.known or options.comp_filepath is not None,
    )


def file_name(generator_input: GeneratorInput, options: argparse.Namespace, ending: str) -> str:
    """AICB's file name, in the folder whatever the names in it: SimAI reads world_size, tp and pp out of it by default."""
    plan, job = generator_input.plan, generator_input.problem.job
    has_experts = any(run.block.moe is not None for run in generator_input.problem.model.blocks)
    gpu = f"{options.gpu_type}-" if options.gpu_type else ""
    name = (
        f"{gpu}{generator_input.problem.model.name}-world_size{plan.world_size}-tp{plan.tp}-pp{plan.pp}-ep{plan.ep}"
        f"-gbs{job.global_batch_sequences}-mbs{plan.micro_batch}-seq{job.seq_len}-MOE-{has_experts}"
        f"-GEMM-{has_experts}-flash_attn-{job.flash_attention}{ending}"
    )
    return name.replace("/", "-")


def target(output: Path | None, name: str) -> Path:
    """Returns the path of a file: as given, in the folder given, or here."""
    if output is None:
        return Path(name)
    return output / name if output.is_dir() else output


def world_size(options: argparse.Namespace) -> int:
    """--world_size, or as many as the nodes have; raises ConfigError when neither is given or they differ."""
    shape = (options.nnodes, options.nproc_per_node)
    if None in shape:
        if options.world_size is None:
            raise refuse("world_size", None, "a number of GPUs")
        return int(options.world_size)
    product = int(options.nnodes * options.nproc_per_node)
    if options.world_size not in (None, product):
        allowed = f"nnodes x nproc_per_node = {options.nnodes} x {options.nproc_per_node} = {product}"
        raise refuse("world_size", options.world_size, allowed)
    return product


def _pipeline_stage(options: argparse.Namespace) -> str:
    """--pipeline_stage, or --stage where it does not mean ZeRO's."""
    if options.pp_rank is not None:
        if options.pipeline_stage is not None:
            raise refuse("pp_rank", options.pp_rank, "not together with --pipeline_stage")
        return str(options.pp_rank)
    if options.pipeline_stage is not None:
        return str(options.pipeline_stage)
    return SLOWEST if options.frame in SHARDED or options.stage is None else str(options.stage)


def _zero_stage(options: argparse.Namespace) -> int:
    """--zero_stage, or --stage of the frameworks that shard by it."""
    if options.frame not in SHARDED:
        return int(options.use_distributed_optimizer)
    if options.zero_stage is not None:
        return int(options.zero_stage)
    if options.stage not in (None, "0", "1", "2", "3"):
        raise refuse("stage", options.stage, f"ZeRO stage 0 to 3 with --frame {options.frame}")
    return int(options.stage or 3)


def _check_frame(options: argparse.Namespace) -> None:
    sharded = options.frame in SHARDED
    if options.zero_stage is not None and not sharded:
        raise refuse("zero_stage", options.zero_stage, "needs --frame DeepSpeed or FSDP")
    if options.use_distributed_optimizer and sharded:
        raise refuse("use_distributed_optimizer", True, f"{options.frame} shards by --stage")
    for flag in (*STAGES_1_2, *STAGE_3):
        value = getattr(options, flag)
        given = value is not None and value is not False and value != "true"
        if given and options.frame != DEEPSPEED:
            raise refuse(flag, value, "needs --frame DeepSpeed")
    if options.epoch_num < 1:
        raise refuse("epoch_num", options.epoch_num, "1 or more")
    if options.recompute_activations and options.recompute_full:
        raise refuse("recompute_full", True, "not together with --recompute_activations")
