"""A suite: workloads to run one after another in one launch, a TOML file with a [[workload]] each.

    [[workload]]
    name = "gpt-13b"
    generate = { model_size = "13", seq_length = 2048, tensor_model_parallel_size = 2 }

    [[workload]]
    name = "mine"
    files = ["mine_workload.csv"]

``generate`` takes the options of run_workload.py generate, all but the world size, which is that of the launch;
``files`` lie beside the suite.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from profiler.device import choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.termination import install_abort_hook
from profiler.distributed.world import World, open_world
from runner.groups.agreement import NotAgreedError, agree
from runner.groups.degrees import degrees_of
from runner.logs.analysis import TimeSpread
from runner.logs.log import Log
from runner.replay.operations import ComputeMode
from runner.replay.program import DegreeOptions, ReplayTask, task_from_files, task_from_workloads
from runner.replay.run import LOG_ENDING, LOG_FOLDER, ReplayOptions, run_in_world
from spec.errors import ConfigError
from spec.files import UnreadableFileError, atomic_file, read_file_text
from spec.program.command import OneLineParser
from workload.aicb.csv_workload import COMPUTATION, Workload
from workload.aicb.flags import GENERAL, add_generate
from workload.aicb.generator import generator_input
from workload.aicb.write_files import general_arguments, general_workloads
from workload.diagnostics import WorkloadError
from workload.simai.export import ALL
from workload.traffic.ranks import DEFAULT_ORDER

MAX_FILE_BYTES = 2**20
NAME = re.compile(r"[\w.+=-]{1,100}")
KEYS = ("name", "generate", "files")
SET_BY_LAUNCH = ("world_size", "nnodes", "nproc_per_node", "format", "pipeline_stage", "pp_rank", "output", "bundle")
"""Options of generate that the launch sets."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One workload of a suite: options of generate, or files."""

    name: str
    generate: Mapping[str, Value] = field(default_factory=dict)
    files: Sequence[Path] = ()

    def read(self, world: int, root: Path, *, computation: bool) -> ReplayTask:
        """The task for ``world`` ranks; with ``computation`` a generated workload has products. Raises UserError as
        generate and run do."""
        if self.files:
            work = task_from_files(self.files, DegreeOptions(degrees={}, order=DEFAULT_ORDER), world)
            return replace(work, name=self.name)
        options = self._options(world, computation=computation)
        generator = generator_input(options, root)
        workloads = [Workload(items=list(one.items)) for _, one in general_workloads(generator, options)]
        arguments = general_arguments(options)
        return task_from_workloads(
            workloads,
            [Path(f"{self.name}-stage{stage}") for stage in range(len(workloads))],
            degrees_of(arguments, {}, world, DEFAULT_ORDER),
            arguments=arguments,
            name=self.name,
        )

    def _options(self, world: int, *, computation: bool) -> argparse.Namespace:
        parser = OneLineParser(prog=f"suite: {self.name}")
        add_generate(parser)
        # Through generate's own parser, so that a suite takes exactly its options and errors.
        words = ["--world_size", str(world), "--format", GENERAL, "--pipeline_stage", ALL]
        words += ["--computation_enable"] if computation else []
        for key, value in self.generate.items():
            if value is True:
                words.append(f"--{key}")
            elif value is not False:
                words += [f"--{key}", str(value)]
        return parser.parse_args(words)


def read_suite(path: Path) -> tuple[Entry, ...]:
    """The workloads of a suite in its order. Raises ConfigError naming the entry and key that cannot be used."""
    try:
        document = tomllib.loads(read_file_text(path, MAX_FILE_BYTES))
    except (UnreadableFileError, ValueError, RecursionError) as error:
        raise ConfigError(where=str(path), key="file", value=path.name, allowed=f"TOML: {error}") from error
    tables = document.get("workload")
    if not isinstance(tables, list) or not tables or set(document) != {"workload"}:
        raise ConfigError(where=str(path), key="keys", value=sorted(document), allowed="[[workload]] entries alone")
    entries = tuple(_entry(table, f"{path}: workload {number}", path.parent) for number, table in enumerate(tables, 1))
    names = [table.name for table in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(where=str(path), key="name", value=name, allowed="a name for one workload")
    return entries


def _entry(table: object, where: str, folder: Path) -> Entry:
    if not isinstance(table, dict):
        raise ConfigError(where=where, key="entry", value=table, allowed="a table")
    for key in table:
        if key not in KEYS:
            raise ConfigError(where=where, key=key, value=table[key], allowed=f"one of {', '.join(KEYS)}")
    name, generate, files = table.get("name"), table.get("generate"), table.get("files")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise ConfigError(where=where, key="name", value=name, allowed="letters, digits and _ . + = -")
    if (generate is None) == (files is None):
        raise ConfigError(where=where, key="generate", value=generate, allowed="either generate or files")
    if files is not None:
        if not (isinstance(files, list) and files and all(isinstance(one, str) for one in files)):
            raise ConfigError(where=where, key="files", value=files, allowed="a list of paths")
        return Entry(name=name, files=tuple(folder / one for one in files))
    if not isinstance(generate, dict) or not all(isinstance(one, Value) for one in generate.values()):
        raise ConfigError(where=where, key="generate", value=generate, allowed="options with plain values")
    for key in SET_BY_LAUNCH:
        if key in generate:
            raise ConfigError(where=where, key=key, value=generate[key], allowed="left out: the launch says it")
    return Entry(name=name, generate=dict(generate))


# Running a suite: its workloads one after another in one world. A restarted suite skips the finished ones.

FINISHED = "suite_done.json"
MAX_FINISHED_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteLine:
    """One line of the table that ends a suite; ``note`` says why there are no times."""

    name: str
    log: Log | None = None
    note: str = ""

    def text(self) -> str:
        """Mean and 90th percentile of an iteration, jitter, the share of communication."""
        times = self.log.epoch_times[1:] if self.log else []
        if self.log is None or not times:
            return f"{self.name:24} {self.note}"
        spread = TimeSpread.of(times)
        communication_ms = sum(
            item.elapsed_ms or 0.0
            for epoch in self.log.comm_log_each_epoch[1:]
            for item in epoch
            if item.comm_type != COMPUTATION
        )
        return (
            f"{self.name:24} {spread.count:10d} {spread.mean_ms:12.3f} {spread.p90_ms:12.3f} {100 * spread.jitter:9.1f} "
            f"{100 * communication_ms / sum(times):14.1f} {self.note}".rstrip()
        )


HEADER = f"{'workload':24} {'iterations':>10} {'mean ms':>12} {'p90 ms':>12} {'jitter %':>9} {'communication %':>14}"


def run_suite(entries: Sequence[Entry], options: ReplayOptions, root: Path, layout: RankLayout) -> list[str]:
    """The table of a suite, on rank 0, after running every workload that is not finished; one that does not fit this
    world is skipped.

    Raises RankFailedError when the world is lost; the finished workloads stay recorded.
    """
    world = open_world(layout, choose_device(options.device, layout), timeout_s=options.timeout_s)
    hook = install_abort_hook(world)
    finished = agree(world, lambda: _read_finished(options.results, world))
    table: list[SuiteLine] = []
    for number, entry in enumerate(entries, start=1):
        # An entry that was changed since runs again, as its text differs.
        if finished.get(entry.name) == repr(entry):
            table.append(_finished_line(entry.name, options.results) if world.leads else SuiteLine(name=entry.name))
            continue
        if world.leads:
            print(f"--- {entry.name} ({number} of {len(entries)})", flush=True)
        read = partial(entry.read, root=root, computation=options.compute is not ComputeMode.SKIP)
        try:
            log, lines = run_in_world(options, read, world, hook)
        except NotAgreedError as error:
            table.append(SuiteLine(name=entry.name, note=f"left out: {error}"))
            continue
        if lines:
            print("\n".join(lines), flush=True)
        table.append(SuiteLine(name=entry.name, log=log))
        # After each workload, so that a killed suite resumes at the next one.
        finished[entry.name] = repr(entry)
        agree(world, partial(_save_finished, options.results, finished, world))
    world.close()
    return [HEADER, *(line.text() for line in table)] if world.leads else []


def _read_finished(results: Path, world: World) -> dict[str, str]:
    """The finished workloads in rank 0's results folder: name -> the entry that was run."""
    text = "{}"
    path = results / FINISHED
    if world.leads and path.is_file():
        try:
            text = read_file_text(path, MAX_FINISHED_BYTES)
        except UnreadableFileError as error:
            raise WorkloadError(f"{path}: {error}") from error
    return parse_finished(world.gather(text)[0], path)


def parse_finished(text: str, path: Path) -> dict[str, str]:
    """The finished workloads by name. Raises WorkloadError for text that is not such a list."""
    try:
        finished = json.loads(text)
    except ValueError as error:
        raise WorkloadError(f"{path}: is not a list of finished workloads: {error}") from error
    if not isinstance(finished, dict) or not all(isinstance(value, str) for value in finished.values()):
        raise WorkloadError(f"{path}: is not a list of finished workloads")
    return finished


def _save_finished(results: Path, finished: dict[str, str], world: World) -> None:
    if world.leads:
        with atomic_file(results / FINISHED) as handle:
            json.dump(finished, handle, indent=2)
            handle.write("\n")


def _finished_line(name: str, results: Path) -> SuiteLine:
    """The line of a workload that an earlier launch finished."""
    try:
        log = Log.load(results / LOG_FOLDER / f"{name}{LOG_ENDING}")
    except WorkloadError as error:
        return SuiteLine(name=name, note=f"done before, but {error}")
    return SuiteLine(name=name, log=log, note="(done before)")
