"""The general workload of a ``generate`` command."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from solver.plans.plan_table import PlanTable
from solver.problem.price import price_plan
from workload.aicb.aiob import aiob_of, write_aiob
from workload.aicb.comm_test import is_test, write_test
from workload.aicb.csv_workload import Arguments, GeneralItem, Workload
from workload.aicb.data_parallel import ALIGNMENT, ZeroOptions, fsdp_items, model_units, zero12_items
from workload.aicb.flags import FSDP, GENERAL, STAGE_3, default_options, notes_on, refuse
from workload.aicb.generator import DEGREES, SHARDED, GeneratorInput, file_name, generator_input, target
from workload.aicb.plan_rows import GeneralOptions, general_items
from workload.aicb.zero3 import zero3_items
from workload.bundle import export_bundle
from workload.report import group_lines
from workload.simai.busbw import SHIPPED, read_ratio_tables
from workload.simai.export import ALL, export_works
from workload.stage_work import StageWork, stage_works
from workload.traffic.plan_traffic import plan_groups


def write_general_files(made: GeneratorInput, options: argparse.Namespace, path: Path) -> list[tuple[Path, int]]:
    """Each file written with its number of rows: one, or one for every chosen stage."""
    arguments = general_arguments(options)
    workloads = general_workloads(made, options)
    written = []
    for position, workload in workloads:
        target = path if len(workloads) == 1 else path.with_stem(f"{path.stem}-stage{position}")
        place = {} if options.frame in SHARDED else {"stage": position}
        written.append((target, workload.write(target, arguments | place)))
    return written


def general_workloads(made: GeneratorInput, options: argparse.Namespace) -> list[tuple[int, Workload]]:
    """Each chosen stage's position and rows, which are made as they are read."""
    if options.frame in SHARDED:
        return [(0, Workload(items=_sharded(made, options)))]
    wanted = GeneralOptions(epochs=options.epoch_num, computation=options.computation_enable, timed=made.has_times)
    return [
        (position, Workload(items=general_items(made.plan, replace(work, position=position, count=1), wanted)))
        for work in made.works
        for position in _positions(work, made.stage)
    ]


def _positions(work: StageWork, stage: str) -> range:
    """The stages of a class to write: equal stages differ in their neighbours and their warm-up."""
    if stage == ALL:
        return range(work.position, work.position + work.count)
    first = int(stage) if stage.isdecimal() else work.position
    return range(first, first + 1)


def _sharded(made: GeneratorInput, options: argparse.Namespace) -> Iterator[GeneralItem]:
    """DeepSpeed and FSDP cut whole tensors over the data-parallel ranks."""
    plan = made.plan
    for flag in DEGREES[:4]:
        if getattr(options, flag) > 1:
            allowed = f"1 in a general workload of {options.frame}: data parallel only"
            raise refuse(flag, getattr(options, flag), allowed)
    names = ("reduce_bucket_size", "allgather_bucket_size", *STAGE_3)
    sizes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    for name, value in sizes.items():
        if value < (1 if name.endswith(("reduce_bucket_size", "allgather_bucket_size")) else 0):
            raise refuse(name, value, "elements, not negative")
    if sizes.get("allgather_bucket_size", 0) % ALIGNMENT:
        raise refuse("allgather_bucket_size", sizes["allgather_bucket_size"], f"a multiple of {ALIGNMENT}")
    zero = ZeroOptions(
        ranks=plan.dp,
        stage=plan.zero_stage or int(options.stage or 3),
        num_micro=plan.num_micro,
        tokens=plan.micro_batch * made.problem.job.seq_len,
        epochs=options.epoch_num,
        use_multi_rank_bucket_allreduce=options.use_multi_rank_bucket_allreduce != "false",
        fp16=options.dtype == "float16",
        computation=options.computation_enable,
        **sizes,
    )
    units = model_units(made.problem.model)
    if options.frame == FSDP:
        return fsdp_items(units, zero)
    modules = tuple(module for unit in units for module in unit.modules)
    return zero3_items(modules, zero) if zero.stage == 3 else zero12_items(modules, zero)


def general_arguments(options: argparse.Namespace) -> Arguments:
    """The options as plain values."""
    return {
        name: value if isinstance(value, str | int | float | bool) or value is None else str(value)
        for name, value in sorted(vars(options).items())
        if name != "output"
    }


# What a ``generate`` command requests, written: a communication test, a bundle, or a workload in either format.


def write_files(options: argparse.Namespace, root: Path) -> tuple[list[str], list[str]]:
    """Writes everything that the options request; returns notes and the lines that say what was written. Raises
    UserError with one line for what cannot be."""
    test = is_test(options)
    notes = list(notes_on(options, default_options(), test=test))
    if test:
        path, rows = write_test(options)
        return notes, [f"wrote {path}: {rows} rows"]
    if options.bundle and options.format == GENERAL:
        raise refuse("format", GENERAL, "simai, with --bundle")
    made = generator_input(options, root)
    lines = _beside(made, options)
    if options.bundle:
        beyond, files = _bundle(made, options, root)
    elif options.format == GENERAL:
        path = target(options.output, file_name(made, options, "_workload.csv"))
        written = write_general_files(made, options, path)
        beyond, files = [], [f"wrote {path}: {rows} rows" for path, rows in written]
    else:
        path = target(options.output, file_name(made, options, ".txt"))
        exported = export_works(made.plan, made.works, path, strict=options.strict_export)
        priced = price_plan(made.problem, PlanTable.of(made.plan)) if times_known(made, options) else []
        launches_s = sum(one.parts_s["host"] for one in priced)
        beyond, files = exported.beyond_lines(launches_s), [f"wrote {path}" for path in exported.paths]
    return [*notes, *made.notes, *beyond], [*lines, *files]


def times_known(made: GeneratorInput, options: argparse.Namespace) -> bool:
    """Returns whether every time is one of a profile or a hardware spec."""
    return options.comp_filepath is None and made.has_times and options.fixed_time_us is None


def _beside(made: GeneratorInput, options: argparse.Namespace) -> list[str]:
    """The groups and the AIOB file, where requested."""
    lines: list[str] = []
    if options.show_groups:
        for kind, members in plan_groups(made.plan).items():
            lines += group_lines(kind, members)
    if options.write_aiob:
        write_aiob(options.write_aiob, aiob_of(stage_works(made.problem, made.plan)))
        lines.append(f"wrote {options.write_aiob}")
    return lines


def _bundle(made: GeneratorInput, options: argparse.Namespace, root: Path) -> tuple[list[str], list[str]]:
    bundle = export_bundle(
        made.problem,
        made.plan,
        options.bundle,
        read_ratio_tables(root / SHIPPED),
        work=made.works[0] if len(made.works) == 1 else None,
        times_known=times_known(made, options),
    )
    return bundle.exported.beyond_lines(), [f"wrote {path}" for path in bundle.paths]
