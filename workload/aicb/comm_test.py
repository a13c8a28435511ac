"""Sweeps of one collective in both formats: sizes from the smallest to the largest, doubling.

All ranks of a world split into groups of neighbours (tp), or of ranks that lie as far apart as there are groups (dp
and pp, one rank of each node); several groups at once is what AICB calls multi-all-reduce.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workload.aicb.csv_workload import EPOCH_END, Arguments, GeneralItem, Workload
from workload.aicb.flags import COLLECTIVE_TEST, COLLECTIVES, GENERAL, MULTI, refuse
from workload.aicb.generator import target, world_size
from workload.simai.format import TRANSFORMER, SimaiGroup, SimaiHeader, SimaiPass, SimaiRow, SimaiWorkload, write_token
from workload.simai.writer import write_simai

LARGEST = 2**44
MOST_ITERATIONS = 10_000  # AICB repeats 500 times
UPDATE_NS = 1  # AICB's micro tests write 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommTest:
    """``kind`` of COLLECTIVES over groups of ``ranks`` out of ``world_size``; sizes (bytes) of the whole
    array on one rank; each size ``iterations`` times, the sweep ``epochs`` times, after ``warmups`` of the smallest in
    the general workload. ``axis``: tp for neighbours, dp or pp for ranks apart."""

    kind: str
    world_size: int
    ranks: int
    begin_size: int
    end_size: int
    epochs: int = 1
    iterations: int = 1
    warmups: int = 0
    axis: str = "tp"

    @property
    def apart(self) -> bool:
        """True where other groups lie between the members of one."""
        return self.axis != "tp" and self.ranks < self.world_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """begin_size, twice that, ... up to end_size, each as often as it is repeated."""
        sizes = []
        size = self.begin_size
        while size <= self.end_size:
            sizes += [size] * self.iterations
            size *= 2
        return tuple(sizes)


def checked_test(test: CommTest) -> CommTest:
    """The test; raises ConfigError when it cannot be run."""
    if not 1 <= test.begin_size <= LARGEST:
        raise refuse("begin_size", test.begin_size, f"bytes, 1 to {LARGEST}")
    if not test.begin_size <= test.end_size <= LARGEST:
        raise refuse("end_size", test.end_size, f"bytes, begin_size {test.begin_size} to {LARGEST}")
    if not 1 <= test.iterations <= MOST_ITERATIONS:
        raise refuse("iter_num", test.iterations, f"1 to {MOST_ITERATIONS} repetitions of a size")
    if test.world_size < 2:
        raise refuse("world_size", test.world_size, "2 or more ranks to communicate")
    if test.ranks < 2 or test.world_size % test.ranks:
        raise refuse("tensor_model_parallel_size", test.ranks, f"2 or more, dividing the world of {test.world_size}")
    if test.kind == MULTI and test.ranks == test.world_size:
        raise refuse("tensor_model_parallel_size", test.ranks, f"less than the world for several groups ({MULTI})")
    return test


def simai_test(test: CommTest) -> SimaiWorkload:
    """One row a size: neighbours in the forward column, SimAI's tensor-parallel group; ranks apart in that of the
    weight gradients, its data-parallel group."""
    kind = COLLECTIVES[test.kind]
    column, group = (SimaiPass.FORWARD, SimaiGroup.TP) if not test.apart else (SimaiPass.WEIGHT_GRAD, SimaiGroup.DP)
    token = write_token(kind, group, column)
    rows = [
        SimaiRow(name=f"{test.kind}_{size}", update_ns=UPDATE_NS).with_pass(
            column, compute_ns=0, comm=token, size_bytes=size
        )
        for size in test.sizes
    ]
    # Without recomputation SimAI leaves small sizes as they are; the other policy raises them to 4,096.
    tp = test.world_size // test.ranks if test.apart else test.ranks
    header = SimaiHeader(tp=tp, all_gpus=test.world_size, policy=TRANSFORMER)
    return SimaiWorkload(header=header, rows=rows * test.epochs)


def general_test(test: CommTest) -> Iterator[GeneralItem]:
    """The same as rows of a general workload."""
    name = "all_reduce" if test.kind == MULTI else test.kind

    def rows(sizes: tuple[int, ...], stage: str) -> Iterator[GeneralItem]:
        for size in sizes:
            yield GeneralItem(
                comm_type=name, comm_group=f"{test.axis}_group", comm_group_size=test.ranks, msg_size=size, stage=stage
            )
        yield GeneralItem(comm_type=EPOCH_END)

    yield from rows((test.begin_size,) * test.warmups, "warmup")
    for _ in range(test.epochs):
        yield from rows(test.sizes, f"test.{test.kind}")


# The communication test of a ``generate`` command, in the requested format.


def is_test(options: argparse.Namespace) -> bool:
    """True where a communication test is requested, not a model."""
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
            warmups=options.iter_num if options.frame == COLLECTIVE_TEST else 0,
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
    """Returns the axis that communicates and the ranks of a group. AICB's collective_test is over the data-parallel
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
