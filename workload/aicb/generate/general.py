"""The general workload of a ``generate`` command."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workload.aicb.general.csv_workload import Arguments, GeneralItem, Workload
from workload.aicb.general.fsdp import fsdp_items
from workload.aicb.general.megatron import GeneralOptions, general_items
from workload.aicb.general.model_parameters import model_units
from workload.aicb.general.zero3 import zero3_items
from workload.aicb.general.zero12 import ALIGNMENT, zero12_items
from workload.aicb.general.zero_options import ZeroOptions
from workload.aicb.generate.shape_flags import DEEPSPEED, FSDP, refuse
from workload.aicb.generate.simai import Generated
from workload.items import StageWork
from workload.simai.export import ALL


def write_general_files(made: Generated, options: argparse.Namespace, path: Path) -> list[tuple[Path, int]]:
    """Each file written with its number of rows: one, or one for every chosen stage."""
    arguments = general_arguments(options)
    workloads = general_workloads(made, options)
    written = []
    for position, workload in workloads:
        target = path if len(workloads) == 1 else path.with_stem(f"{path.stem}-stage{position}")
        told = {} if options.frame in (DEEPSPEED, FSDP) else {"stage": position}
        written.append((target, workload.write(target, arguments | told)))
    return written


def general_workloads(made: Generated, options: argparse.Namespace) -> list[tuple[int, Workload]]:
    """Each chosen stage's position and rows, which are made as they are read."""
    if options.frame in (DEEPSPEED, FSDP):
        return [(0, Workload(items=_sharded(made, options)))]
    return [
        (position, Workload(items=_planned(made, options, replace(work, position=position, count=1))))
        for work in made.works
        for position in _positions(work, made.stage)
    ]


def _positions(work: StageWork, stage: str) -> range:
    """The stages of a class to write: equal stages differ in their neighbours and their warm-up."""
    if stage == ALL:
        return range(work.position, work.position + work.count)
    first = int(stage) if stage.isdecimal() else work.position
    return range(first, first + 1)


def _planned(made: Generated, options: argparse.Namespace, work: StageWork) -> Iterator[GeneralItem]:
    timed = made.has_times
    general = GeneralOptions(epochs=options.epoch_num, computation=options.computation_enable, timed=timed)
    return general_items(made.plan, work, general)


def _sharded(made: Generated, options: argparse.Namespace) -> Iterator[GeneralItem]:
    """DeepSpeed and FSDP cut whole tensors over the data-parallel ranks."""
    plan = made.plan
    for flag, degree in (
        ("tensor_model_parallel_size", plan.tp),
        ("pipeline_model_parallel", plan.pp),
        ("context_parallel_size", plan.cp),
        ("expert_model_parallel_size", plan.ep),
    ):
        if degree > 1:
            raise refuse(flag, degree, f"1 in a general workload of {options.frame}: data parallel only")
    sizes = {
        name: getattr(options, name)
        for name in (
            "reduce_bucket_size",
            "allgather_bucket_size",
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
        )
        if getattr(options, name) is not None
    }
    for name, value in sizes.items():
        if value < (1 if name.endswith(("reduce_bucket_size", "allgather_bucket_size")) else 0):
            raise refuse(name, value, "elements, not negative")
    if sizes.get("allgather_bucket_size", 0) % ALIGNMENT:
        raise refuse("allgather_bucket_size", sizes["allgather_bucket_size"], f"a multiple of {ALIGNMENT}")
    zero = ZeroOptions(
        ranks=plan.dp,
        stage=plan.zero_stage or int(options.stage or 3),
        num_micro=plan.num_micro,
        tokens=plan.micro_batch * made.question.job.seq_len,
        epochs=options.epoch_num,
        use_multi_rank_bucket_allreduce=options.use_multi_rank_bucket_allreduce != "false",
        round_robin_gradients=options.round_robin_gradients,
        fp16=options.dtype == "float16",
        computation=options.computation_enable,
        **sizes,
    )
    units = model_units(made.question.model)
    if options.frame == FSDP:
        return fsdp_items(units, zero)
    modules = tuple(module for unit in units for module in unit.modules)
    return zero3_items(modules, zero) if zero.stage == 3 else zero12_items(modules, zero)


def general_arguments(options: argparse.Namespace) -> Arguments:
    """What was typed, as plain values."""
    return {
        name: value if isinstance(value, str | int | float | bool) or value is None else str(value)
        for name, value in sorted(vars(options).items())
        if name != "output"
    }
