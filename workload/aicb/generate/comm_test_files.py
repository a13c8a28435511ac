"""The communication test of a ``generate`` command, in the format asked for."""

import argparse
from pathlib import Path

from workload.aicb.general.csv_workload import Arguments, Workload
from workload.aicb.generate.comm_test import CommTest, checked_test, general_test, simai_test
from workload.aicb.generate.flags import COLLECTIVE_TEST, GENERAL
from workload.aicb.generate.shape_flags import refuse
from workload.aicb.generate.simai import target, world_size
from workload.simai.writer import write_simai


def is_test(options: argparse.Namespace) -> bool:
    """Whether a communication test is asked for, not a model."""
    return bool(options.test_comm) or options.frame == COLLECTIVE_TEST


def write_test(options: argparse.Namespace) -> tuple[Path, int]:
    """The file and its number of rows; raises ConfigError for a test that cannot be run."""
    world = world_size(options)
    axis, ranks = _groups(options, world)
    test = checked_test(
        CommTest(
            kind=options.test_comm or "all_reduce",
            world_size=world,
            ranks=ranks,
            axis=axis,
            begin_size=options.begin_size,
            end_size=options.begin_size if options.end_size is None else options.end_size,
            epochs=options.epoch_num,
            iterations=options.iter_num,
        )
    )
    # SimAI reads tp and pp out of a file's name.
    tp = world // test.ranks if test.apart else test.ranks
    stem = f"{test.kind}-world_size{world}-tp{tp}-pp1-{test.begin_size}-{test.end_size}"
    if options.format == GENERAL:
        path = target(options.output, f"{stem}_workload.csv")
        arguments: Arguments = {"test_comm": test.kind, "world_size": world, f"{axis}_ranks": test.ranks}
        return path, Workload(items=general_test(test)).write(path, arguments)
    path = target(options.output, f"{stem}.txt")
    return path, write_simai(path, simai_test(test))


def _groups(options: argparse.Namespace, world: int) -> tuple[str, int]:
    """Which axis communicates and how many ranks a group has. AICB's collective_test is over the data-parallel
    group, or with --multi_all_reduce_enable over the pipeline's."""
    tp, pp = options.tensor_model_parallel_size, options.pipeline_model_parallel
    if options.multi_all_reduce_enable:
        return "pp", pp
    if pp != 1:
        raise refuse("pipeline_model_parallel", pp, "1 in a test, unless with --multi_all_reduce_enable 1")
    if options.frame != COLLECTIVE_TEST:
        return "tp", tp if tp > 1 else world
    if tp < 1 or world % tp:
        raise refuse("tensor_model_parallel_size", tp, f"a divisor of the world of {world}")
    return "dp", world // tp
