"""From the options of ``generate`` to files: the model, the plan, the times, the format."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

from ops.recompute.layers import Recompute
from solver.plans.plan_table import Plan
from solver.question import Question
from spec.mixers.attention import attention_of
from workload.aicb.aiob.text import aiob_times_ns, read_aiob
from workload.aicb.aiob.times import with_aiob_times
from workload.aicb.generate.model_shape import model_of
from workload.aicb.generate.shape_flags import ShapeFlags, refuse
from workload.aicb.generate.time_source import TimeFlags, time_source
from workload.aicb.generate.training_flags import TrainingFlags, asked
from workload.build import stage_works
from workload.items import StageWork
from workload.simai.export import SLOWEST, Exported, chosen_stages, export_works

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
    ask = asked(_training(options, world), model, source.cluster, source.book)
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
