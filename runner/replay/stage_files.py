"""The workload files of a run: one, or one for every pipeline stage."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.groups.degrees import Degrees, degrees_of
from runner.replay.matching import check_stages
from runner.replay.program import Program, program_of
from spec.errors import ConfigError
from workload.aicb.csv_workload import Arguments, Workload, arguments_path

STAGE_ENDING = re.compile(r"-stage\d+$")
NAME_ENDING = "_workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all ranks run: a program a stage. ``digest`` of what it was made of."""

    name: str
    degrees: Degrees
    programs: tuple[Program, ...]
    workloads: tuple[Workload, ...]
    arguments: Arguments
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """Degrees from the command line, which beat a file's; ``order`` as workload.traffic.ranks has it."""

    degrees: Mapping[str, int | None]
    order: str


def read_work(files: Sequence[Path], typed: Typed, world: int) -> Work:
    """The workload of ``files`` for ``world`` ranks.

    Raises WorkloadError or ConfigError for files that cannot be read, contradict each other or want other ranks.
    """
    first, arguments = Workload.load(files[0])
    degrees = degrees_of(arguments, typed.degrees, world, typed.order)
    paths = stage_files(files, degrees.pp)
    _check_stage(arguments, files[0])
    workloads = [first if path == files[0] else Workload.load(path)[0] for path in paths]
    return work_of(
        workloads, paths, degrees, arguments=arguments, name=work_name(files[0]), digest=_digest(paths)
    )


def work_of(
    workloads: Sequence[Workload],
    paths: Sequence[Path],
    degrees: Degrees,
    *,
    arguments: Arguments,
    name: str,
    digest: str,
) -> Work:
    """The programs of one workload a stage; WorkloadError when they do not fit together."""
    programs = tuple(
        program_of(workload.stage_work, stage, degrees, path)
        for stage, (workload, path) in enumerate(zip(workloads, paths, strict=True))
    )
    check_stages(programs)
    return Work(
        name=name,
        degrees=degrees,
        programs=programs,
        workloads=tuple(workloads),
        arguments=arguments,
        digest=digest,
    )


def stage_files(files: Sequence[Path], stages: int) -> list[Path]:
    """The file of each stage: as many as typed, or those beside the one typed whose names end in -stage0, -stage1, ...

    Raises ConfigError for another number, and for a file that is not there.
    """
    if len(files) == stages:
        return list(files)
    stem = STAGE_ENDING.sub("", files[0].stem)
    found = [files[0].with_stem(f"{stem}-stage{stage}") for stage in range(stages)]
    missing = [path for path in found if not path.is_file()]
    if len(files) == 1 and not missing:
        return found
    absent = f" ({missing[0]} is not there)" if len(files) == 1 else ""
    raise ConfigError(
        where="run",
        key="files",
        value=len(files),
        allowed=f"{stages}, one for each pipeline stage (generate --stage all --format general){absent}",
    )


def work_name(path: Path) -> str:
    """The name of the results of a workload file: its own without -stage0 and _workload."""
    return STAGE_ENDING.sub("", path.stem).removesuffix(NAME_ENDING)


def _check_stage(arguments: Arguments, path: Path) -> None:
    """The first file is that of the first stage."""
    stage = arguments.get("stage")
    if isinstance(stage, int) and stage > 0:
        raise ConfigError(where=str(path), key="stage", value=stage, allowed="0 in the first file")


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for part in (path, arguments_path(path)):
            digest.update(part.read_bytes() if part.is_file() else b"none")
    return digest.hexdigest()
