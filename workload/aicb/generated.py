"""The plan and job of a generator command: AICB's flags as a question and a plan of the solver."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

from ops.recompute import Recompute
from profdb.cost_model import CostModel
from solver.pipeline.schedules import Schedule
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.request import checked_world_size
from solver.times.op_times import Pricer
from solver.typed_plan import broken_rules
from spec.cluster.cluster import ClusterSpec, segmented
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.mixers.attention import attention_of
from spec.model import ModelSpec
from workload.aicb.aiob import aiob_times_ns, read_aiob, with_aiob_times
from workload.aicb.flags import DEEPSPEED, FSDP, ShapeFlags, refuse
from workload.aicb.model import model_of
from workload.aicb.time_source import FixedCostModel, TimeFlags, time_source
from workload.simai.export import SLOWEST, Exported, chosen_stages, export_works
from workload.stage_work import StageWork, stage_works

DEFAULT_SEQUENCE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlags:
    """What was typed about the training. ``global_batch`` and ``micro_batch`` count sequences, bucket
    sizes count elements (DeepSpeed's own unit); None is the framework's default."""

    frame: str
    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    global_batch: int | None = None
    micro_batch: int = 1
    seq_length: int | None = None
    sequence_parallel: bool = False
    flash_attention: bool = False
    distributed_optimizer: bool = False
    recompute: Recompute = Recompute.NONE
    zero_stage: int | None = None
    reduce_bucket_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and the one plan that the flags describe."""

    question: Question
    plan: Plan


def asked(flags: TrainingFlags, model: ModelSpec, cluster: ClusterSpec, cost_model: CostModel) -> Asked:
    """The solver's question and plan for the flags.

    Raises ConfigError for degrees that do not divide, and for plans the framework cannot run.
    """
    dp = _data_parallel(flags, cluster)
    cluster = segmented(cluster, flags.world_size)
    batch = flags.global_batch if flags.global_batch is not None else dp * flags.micro_batch
    if flags.micro_batch < 1 or batch < 1 or batch % (dp * flags.micro_batch):
        raise refuse(
            "global_batch", batch, f"a positive multiple of dp {dp} x micro_batch {flags.micro_batch}"
        )
    seq_length = flags.seq_length or DEFAULT_SEQUENCE
    preset = _preset(flags)
    job = JobSpec(
        world_size=flags.world_size,
        seq_len=seq_length,
        global_batch_tokens=batch * seq_length,
        preset=preset,
        precision=precision_of(preset),
        flash_attention=flags.flash_attention,
    ).on(cluster.gpu.architecture)
    plan = _plan(flags, model, preset, (dp, batch // (dp * flags.micro_batch)))
    # A fixed time is what was asked for: no clock under load changes it.
    fixed = isinstance(cost_model, FixedCostModel)
    pricer = (
        Pricer(cost_model=cost_model, domain_ranks=cluster.scale_up_ranks)
        if fixed
        else Pricer.on(cluster, cost_model)
    )
    question = Question(model=model, job=job, cluster=cluster, pricer=pricer)
    broken = broken_rules(question, plan)
    if broken:
        raise refuse("frame", flags.frame, f"cannot run {plan.label()}: {'; '.join(broken)}")
    return Asked(question=question, plan=plan)


def _data_parallel(flags: TrainingFlags, cluster: ClusterSpec) -> int:
    """Ranks left for data parallelism, once every degree divides what it must divide."""
    named = {
        "tensor_model_parallel_size": flags.tp,
        "pipeline_model_parallel": flags.pp,
        "context_parallel_size": flags.cp,
        "expert_model_parallel_size": flags.ep,
        "virtual_pipeline_model_parallel_size": flags.vpp,
    }
    for name, value in named.items():
        if value < 1:
            raise refuse(name, value, "1 or more")
    world = checked_world_size(flags.world_size, cluster)
    split = flags.tp * flags.pp * flags.cp
    if world % split:
        raise refuse("world_size", world, f"a multiple of tp {flags.tp} x pp {flags.pp} x cp {flags.cp}")
    if flags.vpp > 1 and flags.pp == 1:
        raise refuse("virtual_pipeline_model_parallel_size", flags.vpp, "1 without a pipeline")
    return world // split


def _preset(flags: TrainingFlags) -> FrameworkPreset:
    name = {DEEPSPEED: "deepspeed", FSDP: "fsdp"}.get(flags.frame, "megatron")
    preset = framework_preset(name)
    if flags.reduce_bucket_size is not None:
        if flags.reduce_bucket_size < 1:
            raise refuse("reduce_bucket_size", flags.reduce_bucket_size, "elements, 1 or more")
        preset = preset.changed(
            {
                "data_parallel.bucket_elements": flags.reduce_bucket_size,
                "data_parallel.bucket_elements_per_rank": 0,
            }
        )
    return preset


def _plan(flags: TrainingFlags, model: ModelSpec, preset: FrameworkPreset, batch: tuple[int, int]) -> Plan:
    dp, num_micro = batch
    has_experts = any(run.block.moe is not None for run in model.blocks)
    # Megatron-LM cuts experts by tp too unless --expert-tensor-parallel-size says otherwise.
    etp = flags.etp if flags.etp is not None else (flags.tp if has_experts else 1)
    if flags.ep > 1 and not has_experts:
        raise refuse("expert_model_parallel_size", flags.ep, "1 for a model without experts")
    if (flags.tp * flags.cp * dp) % (flags.ep * max(etp, 1)) or etp < 1:
        raise refuse(
            "expert_model_parallel_size",
            flags.ep,
            f"ep x expert tp {etp} must divide tp {flags.tp} x cp {flags.cp} x dp {dp}",
        )
    stage = flags.zero_stage
    if stage is None:
        stage = int(flags.distributed_optimizer) if preset.name == "megatron" else 3
    if stage not in (0, 1, 2, 3):
        raise refuse("stage", stage, "1, 2 or 3")
    copies = dp * flags.cp
    if flags.vpp > 1 and num_micro % flags.pp:
        raise refuse(
            "global_batch",
            num_micro * dp * flags.micro_batch,
            f"interleaving wants micro-batches ({num_micro}) in multiples of pp {flags.pp}",
        )
    return Plan(
        strategy="fsp" if flags.sequence_parallel and flags.tp > 1 else "mtp",
        preset=preset.name,
        recompute=flags.recompute,
        schedule=Schedule.ONE_F_ONE_B,
        tp=flags.tp,
        cp=flags.cp,
        pp=flags.pp,
        vpp=flags.vpp,
        ep=flags.ep,
        etp=etp,
        dp=dp,
        zero_stage=stage if copies > 1 else 0,
        zero_size=copies if stage and copies > 1 else 1,
        micro_batch=flags.micro_batch,
        num_micro=num_micro,
    )


# From the options of ``generate`` to files: the model, the plan, the times, the format.

SHARDED = ("DeepSpeed", "FSDP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The question and plan of a command, its chosen stages with their times, and what to tell."""

    question: Question
    plan: Plan
    works: tuple[StageWork, ...]
    notes: tuple[str, ...]
    has_times: bool
    stage: str = SLOWEST


def generated(options: argparse.Namespace, root: Path) -> Generated:
    """Everything the options describe. Raises UserError with one line for what cannot be."""
    world = world_size(options)
    _check_frame(options)
    shape = ShapeFlags(**{each.name: getattr(options, each.name) for each in fields(ShapeFlags)})
    model, shape_notes = model_of(shape, root)
    source = time_source(
        TimeFlags(**{each.name: getattr(options, each.name) for each in fields(TimeFlags)}), root
    )
    ask = asked(_training(options, world), model, source.cluster, source.cost_model)
    works = chosen_stages(stage_works(ask.question, ask.plan), _pipeline_stage(options))
    if options.comp_filepath is not None:
        # The op list already runs what is recomputed again, so no time is doubled inside the file's sums.
        for run in model.blocks:
            attention_of(run.block.mixer, f"{options.comp_filepath}: AICB's times")
        times_ns = aiob_times_ns(read_aiob(options.comp_filepath))
        works = tuple(with_aiob_times(work, times_ns) for work in works)
    return Generated(
        stage=_pipeline_stage(options),
        question=ask.question,
        plan=ask.plan,
        works=works,
        notes=(*shape_notes, *source.notes),
        has_times=source.known or options.comp_filepath is not None,
    )


def write_simai_files(made: Generated, path: Path, *, strict: bool) -> Exported:
    """The SimAI files of the chosen stages."""
    return export_works(made.plan, made.works, path, strict=strict)


def file_name(made: Generated, options: argparse.Namespace, ending: str) -> str:
    """AICB's file name: SimAI reads world_size, tp and pp out of it when it is told no other."""
    plan, job = made.plan, made.question.job
    has_experts = any(run.block.moe is not None for run in made.question.model.blocks)
    gpu = f"{options.gpu_type}-" if options.gpu_type else ""
    return (
        f"{gpu}{made.question.model.name}-world_size{plan.world_size}-tp{plan.tp}-pp{plan.pp}-ep{plan.ep}"
        f"-gbs{job.global_batch_sequences}-mbs{plan.micro_batch}-seq{job.seq_len}-MOE-{has_experts}"
        f"-GEMM-{has_experts}-flash_attn-{job.flash_attention}{ending}"
    )


def target(output: Path | None, name: str) -> Path:
    """Where a file goes: the path given, the folder given, or here."""
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


def _zero_stage(options: argparse.Namespace) -> int | None:
    """--zero_stage, or --stage of the frameworks that shard by it."""
    if options.frame not in SHARDED:
        return None
    if options.zero_stage is not None:
        return int(options.zero_stage)
    if options.stage is None:
        return None
    if options.stage not in ("0", "1", "2", "3"):
        raise refuse("stage", options.stage, f"ZeRO stage 0 to 3 with --frame {options.frame}")
    return int(options.stage)


def _check_frame(options: argparse.Namespace) -> None:
    sharded = options.frame in SHARDED
    if options.zero_stage is not None and not sharded:
        raise refuse("zero_stage", options.zero_stage, "needs --frame DeepSpeed or FSDP")
    if options.use_distributed_optimizer and sharded:
        raise refuse("use_distributed_optimizer", True, f"{options.frame} shards by --stage")
    only_deepspeed = (
        "allgather_bucket_size",
        "prefetch_bucket_size",
        "param_persistence_threshold",
        "model_persistence_threshold",
        "max_live_parameters",
        "max_reuse_distance",
    )
    for flag in only_deepspeed:
        if getattr(options, flag) is not None and options.frame != "DeepSpeed":
            raise refuse(flag, getattr(options, flag), "needs --frame DeepSpeed")
    if options.use_multi_rank_bucket_allreduce == "false" and options.frame != "DeepSpeed":
        raise refuse("use_multi_rank_bucket_allreduce", "false", "needs --frame DeepSpeed")
    if options.round_robin_gradients and options.frame != "DeepSpeed":
        raise refuse("round_robin_gradients", True, "needs --frame DeepSpeed")
    if options.epoch_num < 1:
        raise refuse("epoch_num", options.epoch_num, "1 or more")
    if options.recompute_activations and options.recompute_full:
        raise refuse("recompute_full", True, "not together with --recompute_activations")


def _training(options: argparse.Namespace, world: int) -> TrainingFlags:
    recompute = Recompute.SELECTIVE if options.recompute_activations else Recompute.NONE
    return TrainingFlags(
        frame=options.frame,
        world_size=world,
        tp=options.tensor_model_parallel_size,
        pp=options.pipeline_model_parallel,
        cp=options.context_parallel_size,
        ep=options.expert_model_parallel_size,
        etp=options.expert_tensor_parallel_size,
        vpp=options.virtual_pipeline_model_parallel_size,
        global_batch=options.global_batch,
        micro_batch=options.micro_batch,
        seq_length=options.seq_length,
        sequence_parallel=options.enable_sequence_parallel,
        flash_attention=options.use_flash_attn,
        distributed_optimizer=options.use_distributed_optimizer,
        recompute=Recompute.FULL if options.recompute_full else recompute,
        zero_stage=_zero_stage(options),
        reduce_bucket_size=options.reduce_bucket_size,
    )
