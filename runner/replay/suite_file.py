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
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.groups.degrees import degrees_of
from runner.replay.stage_files import Typed, Work, read_work, work_of
from spec.errors import ConfigError
from spec.program.parser import OneLineParser
from spec.text_file import UnreadableFileError, read_file_text
from workload.aicb.csv_workload import Workload
from workload.aicb.flags import GENERAL, add_generate
from workload.aicb.generated import generated
from workload.aicb.write_files import general_arguments, general_workloads
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
            work = read_work(self.files, Typed(degrees={}, order=DEFAULT_ORDER), world)
            return replace(work, name=self.name)
        options = self._options(world, computation=computation)
        made = generated(options, root)
        listed = [Workload(items=list(one.items)) for _, one in general_workloads(made, options)]
        arguments = general_arguments(options)
        rows = "\n".join(" ".join(item.cells()) for one in listed for item in one.items)
        return work_of(
            listed,
            [Path(f"{self.name}-stage{stage}") for stage in range(len(listed))],
            degrees_of(arguments, {}, world, DEFAULT_ORDER),
            arguments=arguments,
            name=self.name,
            digest=hashlib.sha256(rows.encode()).hexdigest(),
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
        raise ConfigError(
            where=str(path), key="keys", value=sorted(read), allowed="[[workload]] entries alone"
        )
    entries = tuple(
        _entry(one, f"{path}: workload {number}", path.parent) for number, one in enumerate(listed, 1)
    )
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
            raise ConfigError(
                where=where, key=key, value=generate[key], allowed="left out: the launch says it"
            )
    return Entry(name=name, generate=dict(generate))
