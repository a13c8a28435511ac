"""The communication test of a ``generate`` command, in the format asked for."""

import argparse
from pathlib import Path

from workload.aicb.general.csv_workload import Workload
from workload.aicb.generate.comm_test import CommTest, checked_test, general_test, simai_test
from workload.aicb.generate.flags import GENERAL
from workload.aicb.generate.shape_flags import refuse
from workload.aicb.generate.simai import target
from workload.simai.writer import write_simai


def write_test(options: argparse.Namespace) -> tuple[Path, int]:
    """The file and its number of rows; raises ConfigError for a test that cannot be run."""
    world = options.world_size
    if world is None:
        raise refuse("world_size", None, "a number of GPUs")
    degree = options.tensor_model_parallel_size
    test = checked_test(
        CommTest(
            kind=options.test_comm,
            world_size=world,
            ranks=degree if degree > 1 else world,
            begin_size=options.begin_size,
            end_size=options.begin_size if options.end_size is None else options.end_size,
            epochs=options.epoch_num,
        )
    )
    stem = f"{test.kind}-world_size{world}-tp{test.ranks}-pp1-{test.begin_size}-{test.end_size}"
    if options.format == GENERAL:
        path = target(options.output, f"{stem}_workload.csv")
        arguments = {"test_comm": test.kind, "world_size": world, "tensor_model_parallel_size": test.ranks}
        return path, Workload(items=general_test(test)).write(path, dict(arguments))
    path = target(options.output, f"{stem}.txt")
    return path, write_simai(path, simai_test(test))
