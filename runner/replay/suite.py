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
from profiler.distributed.world import World, open_world
from runner.groups.agreement import NotAgreedError, agree, install_abort_hook
from runner.groups.degrees import degrees_of
from runner.logs.analysis import Spread
from runner.logs.log import Log
from runner.replay.operations import Compute
from runner.replay.program import DegreeOptions, Work, read_work, work_of
from runner.replay.run import LOG_ENDING, LOG_FOLDER, RunOptions, run_in_world
from spec.errors import ConfigError
from spec.files import UnreadableFileError, read_file_text, replaced_file
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
OF_THE_LAUNCH = (
    "world_size",
    "nnodes",
    "nproc_per_node",
    "format",
    "pipeline_stage",
    "pp_rank",
    "output",
    "bundle",
)
"""Options of generate that the suite itself gives."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One workload of a suite: options of generate, or files."""

    name: str
    generate: Mapping[str, Value] = field(default_factory=dict)
    files: Sequence[Path] = ()

    def read(self, world: int, root: Path, *, computation: bool) -> Work:
        """The work for ``world`` ranks; ``computation`` whether generated ones have products. Raises UserError as
        generate and run do."""
        if self.files:
            work = read_work(self.files, DegreeOptions(degrees={}, order=DEFAULT_ORDER), world)
            return replace(work, name=self.name)
        options = self._options(world, computation=computation)
        made = generator_input(options, root)
        listed = [Workload(items=list(one.items)) for _, one in general_workloads(made, options)]
        arguments = general_arguments(options)
        return work_of(
            listed,
            [Path(f"{self.name}-stage{stage}") for stage in range(len(listed))],
            degrees_of(arguments, {}, world, DEFAULT_ORDER),
            arguments=arguments,
            name=self.name,
        )

    def _options(self, world: int, *, computation: bool) -> argparse.Namespace:
        parser = OneLineParser(prog=f"suite: {self.name}")
        add_generate(parser)
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
        read = tomllib.loads(read_file_text(path, MAX_FILE_BYTES))
    except (UnreadableFileError, ValueError, RecursionError) as error:
        raise ConfigError(where=str(path), key="file", value=path.name, allowed=f"TOML: {error}") from error
    listed = read.get("workload")
    if not isinstance(listed, list) or not listed or set(read) != {"workload"}:
        raise ConfigError(where=str(path), key="keys", value=sorted(read), allowed="[[workload]] entries alone")
    entries = tuple(_entry(one, f"{path}: workload {number}", path.parent) for number, one in enumerate(listed, 1))
    names = [one.name for one in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(where=str(path), key="name", value=name, allowed="a name for one workload")
    return entries


def _entry(found: object, where: str, folder: Path) -> Entry:
    if not isinstance(found, dict):
        raise ConfigError(where=where, key="entry", value=found, allowed="a table")
    for key in found:
        if key not in KEYS:
            raise ConfigError(where=where, key=key, value=found[key], allowed=f"one of {', '.join(KEYS)}")
    name, generate, files = found.get("name"), found.get("generate"), found.get("files")
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
    for key in OF_THE_LAUNCH:
        if key in generate:
            raise ConfigError(where=where, key=key, value=generate[key], allowed="left out: the launch says it")
    return Entry(name=name, generate=dict(generate))


# Running a suite: its workloads in a row in one world; what is done stays done when it is started again.

DONE = "suite_done.json"
MAX_DONE_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table that ends a suite; ``said`` why there are no times."""

    name: str
    log: Log | None = None
    said: str = ""

    def text(self) -> str:
        """Mean and 90th percentile of an iteration, jitter, the share of communication."""
        times = self.log.epoch_times[1:] if self.log else []
        if self.log is None or not times:
            return f"{self.name:24} {self.said}"
        one = Spread.of(times)
        moved = sum(
            item.elapsed_ms or 0.0
            for epoch in self.log.comm_log_each_epoch[1:]
            for item in epoch
            if item.comm_type != COMPUTATION
        )
        return (
            f"{self.name:24} {one.count:10d} {one.mean_ms:12.3f} {one.p90_ms:12.3f} {100 * one.jitter:9.1f} "
            f"{100 * moved / sum(times):14.1f} {self.said}".rstrip()
        )


HEADER = f"{'workload':24} {'iterations':>10} {'mean ms':>12} {'p90 ms':>12} {'jitter %':>9} {'communication %':>14}"


def run_suite(entries: Sequence[Entry], options: RunOptions, root: Path, layout: RankLayout) -> list[str]:
    """Run every workload that is not done; on rank 0 the table. A workload that does not fit this world is left out.

    Raises RankFailedError when the world is lost; what is done is kept.
    """
    world = open_world(layout, choose_device(options.device, layout), timeout_s=options.timeout_s)
    words = install_abort_hook(world)
    done = agree(world, lambda: _done(options.results, world))
    table: list[Line] = []
    for number, entry in enumerate(entries, start=1):
        if done.get(entry.name) == repr(entry):
            table.append(_earlier(entry.name, options.results) if world.leads else Line(name=entry.name))
            continue
        if world.leads:
            print(f"--- {entry.name} ({number} of {len(entries)})", flush=True)
        read = partial(entry.read, root=root, computation=options.compute is not Compute.SKIP)
        try:
            came = run_in_world(options, read, world, words)
        except NotAgreedError as left_out:
            table.append(Line(name=entry.name, said=f"left out: {left_out}"))
            continue
        if came.lines:
            print("\n".join(came.lines), flush=True)
        table.append(Line(name=entry.name, log=came.log))
        done[entry.name] = repr(entry)
        agree(world, partial(_keep_done, options.results, done, world))
    world.close()
    return [HEADER, *(line.text() for line in table)] if world.leads else []


def _done(results: Path, world: World) -> dict[str, str]:
    """Workloads that rank 0 finds done in the results: name -> the entry that was run."""
    text = "{}"
    path = results / DONE
    if world.leads and path.is_file():
        try:
            text = read_file_text(path, MAX_DONE_BYTES)
        except UnreadableFileError as error:
            raise WorkloadError(f"{path}: {error}") from error
    return text_of(world.gather(text)[0], path)


def text_of(text: str, path: Path) -> dict[str, str]:
    """The file of what is done. Raises WorkloadError for another."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise WorkloadError(f"{path}: is no list of what is done: {error}") from error
    if not isinstance(read, dict) or not all(isinstance(value, str) for value in read.values()):
        raise WorkloadError(f"{path}: is no list of what is done")
    return read


def _keep_done(results: Path, done: dict[str, str], world: World) -> None:
    if world.leads:
        with replaced_file(results / DONE) as handle:
            json.dump(done, handle, indent=2)
            handle.write("\n")


def _earlier(name: str, results: Path) -> Line:
    """A line of a workload that an earlier start has run."""
    try:
        log = Log.load(results / LOG_FOLDER / f"{name}{LOG_ENDING}")
    except WorkloadError as error:
        return Line(name=name, said=f"done before, but {error}")
    return Line(name=name, log=log, said="(done before)")
