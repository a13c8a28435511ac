"""Logs of nccl-tests: every *_perf program of equal parts, one or many nodes.

``size`` in these logs is the whole array on one rank (all_gather: the gathered one; reduce_scatter:
the scattered one), as our ``size_bytes``. Out-of-place and in-place times become two samples of one case.
The prefix that a launcher writes before each line is removed. Lines of other programs between the rows (MPI, NCCL
messages) are skipped; a line that starts like a row and is none is an error. Several runs may
follow each other in one file.

Source of the layout: nccl-tests, src/common.cu and src/util.cu (writeDeviceReport, writeResultHeader,
writeBenchmarkLineBody), from 2.0 on.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from profdb.cases import CollectiveCase
from profdb.sample import Sample, WorldShape
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_file_text
from spec.program.kinds import MOST_BYTES, whole_number
from spec.units import GIGA, US

PROGRAMS: dict[str, Collective] = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "sendrecv": Collective.P2P,
    "reduce": Collective.REDUCE,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "hypercube": Collective.HYPERCUBE,
}

REFUSED: dict[str, str] = {"alltoallv": "sends unequal parts that the log does not state"}
"""Programs whose rows cannot become cases, and why."""

DTYPES: dict[str, str] = {
    "float": "fp32",
    "half": "fp16",
    "bfloat16": "bf16",
    "double": "fp64",
    "int8": "int8",
    "uint8": "int8",
    "int32": "int32",
    "uint32": "int32",
    "int64": "int64",
    "uint64": "int64",
    "f8e4m3": "fp8",
    "f8e5m2": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}

# Before a line: mpirun --tag-output ("[1,0]<stdout>: ", also with a time before it), srun --label ("0: ").
_LAUNCHER = re.compile(r"^(?:.{0,60}<std(?:out|err)>:\s?|\s*\d+:\s)")
_PROGRAM = re.compile(rf"(?<![A-Za-z])({'|'.join((*PROGRAMS, *REFUSED))})_perf\b")
_RANK = re.compile(r"#\s*Rank\s+\d+(?:\s+Group\s+(\d+))?.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(\S.*)")
_ROW = re.compile(rf"\d+\s+\d+\s|\S+\s+\S+\s+(?:{'|'.join(DTYPES)})\s")
_ROOT = re.compile(r"-?\d+$")

ROUNDING = 0.02
"""Relative difference allowed between a printed algbw and size / time: with two decimals, small rates are not checked."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run of a program as far as it has been read."""

    program: str = ""
    columns: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    gpu: str = ""


def read_nccl_tests(path: str | Path, *, domain_ranks: int = 0) -> dict[str, list[Sample]]:
    """Returns samples by GPU name. ``domain_ranks`` are the GPUs of one scale-up domain where that is not a host (0:
    it is). Raises ProfileError with line and reason; then nothing is imported."""
    source = Path(path)
    try:
        lines = read_file_text(source, MOST_MEASURED_BYTES).splitlines()
    except UnreadableFileError as error:
        raise ProfileError(f"{source}: {error}; nothing imported") from error
    result: dict[str, list[Sample]] = {}
    run = _Run(program=_program_in(source.name))
    for number, line in enumerate(lines, start=1):
        stripped = _LAUNCHER.sub("", line).strip()
        where = f"{source}:{number}"
        # A header line, or the command that a script echoed before it.
        if stripped.startswith("#") or "_perf" in stripped:
            run = _read_comment(run, stripped, where)
        elif _ROW.match(stripped):
            for sample in _read_row(run, stripped.split(), where, domain_ranks):
                result.setdefault(run.gpu, []).append(sample)
    if not result:
        raise ProfileError(f"{source}: no row of an nccl-tests table; nothing imported")
    return result


def _program_in(text: str) -> str:
    match = _PROGRAM.search(text)
    return match.group(1) if match else ""


def _read_comment(run: _Run, line: str, where: str) -> _Run:
    program = _program_in(line)
    if program:
        run.program = program
    # The first line of a run's header: a new run, of the program named before it.
    if "nThread" in line:
        return _Run(program=run.program)
    rank = _RANK.match(line)
    if rank:
        if rank.group(1) not in (None, "0"):
            raise ProfileError(f"{where}: several groups at once (split) are not read; nothing imported")
        run.hosts.append(rank.group(2))
        run.gpu = rank.group(3).strip()
    labels = line.lstrip("#").split()
    # The heading of the table names its columns, which differ between versions and programs.
    if labels[:3] == ["size", "count", "type"]:
        run.columns = labels
    return run


def _read_row(run: _Run, cells: list[str], where: str, domain_ranks: int) -> Iterator[Sample]:
    if run.program in REFUSED:
        raise ProfileError(f"{where}: {run.program}_perf {REFUSED[run.program]}; nothing imported")
    if run.program not in PROGRAMS:
        raise ProfileError(
            f"{where}: rows of {run.program + '_perf' if run.program else 'an unnamed program'}; read are "
            f"{', '.join(f'{name}_perf' for name in PROGRAMS)} (named in the log or its file name); "
            "nothing imported"
        )
    if not run.hosts:
        raise ProfileError(f"{where}: a row before any '# Rank' line: how many GPUs? nothing imported")
    if "cputime" in run.columns:
        raise ProfileError(f"{where}: CPU times (-C 1), not those of the operation; nothing imported")
    cells = _align_cells(run, cells)
    if len(cells) != len(run.columns):
        raise ProfileError(f"{where}: {len(cells)} cells under {len(run.columns)} columns; nothing imported")
    if _size_bytes(cells, where) == 0:
        return
    case = _case_of(run, cells, where, domain_ranks)
    world = WorldShape(nodes=len(set(run.hosts)), ranks=len(run.hosts))
    times = [place for place, name in enumerate(run.columns) if name == "time"]
    # The first time column is out of place, the second in place.
    for place, in_place in zip(times, (False, True), strict=False):
        if cells[place] == "N/A":
            continue
        yield Sample(
            case=case,
            trials_s=(_checked_time(run, cells, place, where),),
            launched={"program": f"{run.program}_perf", "in_place": in_place},
            world=world,
        )


def _size_bytes(cells: list[str], where: str) -> int:
    try:
        return whole_number(cells[0], minimum=0, maximum=MOST_BYTES)
    except ValueError as error:
        raise ProfileError(f"{where}: size {error}; nothing imported") from error


def _align_cells(run: _Run, cells: list[str]) -> list[str]:
    """Returns the cells under their columns: programs without an operator leave that cell blank, and a time stamp is
    two words under one heading."""
    if run.columns[-1:] == ["timestamp"] and len(cells) > 2:
        cells = [*cells[:-2], f"{cells[-2]} {cells[-1]}"]
    if len(cells) == len(run.columns) - 1 and run.columns[3:5] == ["redop", "root"] and _ROOT.match(cells[3]):
        return [*cells[:3], "", *cells[3:]]
    return cells


def _checked_time(run: _Run, cells: list[str], place: int, where: str) -> float:
    """Returns the seconds of one time cell; raises ProfileError unless the row's own algbw and error count agree with
    it."""
    try:
        seconds, printed = float(cells[place]) * US, float(cells[place + 1]) * GIGA
        wrong = cells[place + 3]
        failed = wrong != "N/A" and float(wrong) > 1e-3
    except (ValueError, IndexError) as error:
        raise ProfileError(f"{where}: a time or bandwidth is no number; nothing imported") from error
    if not 0.0 < seconds < float("inf"):
        raise ProfileError(f"{where}: time {cells[place]} us is not positive; nothing imported")
    if failed:
        raise ProfileError(f"{where}: the run found {wrong} wrong values; nothing imported")
    # hypercube.cu works its algbw out from what a rank receives, all but its own part.
    ranks = len(run.hosts)
    expected = _size_bytes(cells, where) / seconds * ((ranks - 1) / ranks if run.program == "hypercube" else 1.0)
    if expected > GIGA and abs(printed / expected - 1.0) > ROUNDING:
        raise ProfileError(
            f"{where}: algbw {printed / GIGA:.2f} GB/s is not that of size and time, {expected / GIGA:.2f}; nothing imported"
        )
    return seconds


def _case_of(run: _Run, cells: list[str], where: str, domain_ranks: int) -> CollectiveCase:
    kind, dtype = PROGRAMS[run.program], cells[2]
    if dtype not in DTYPES:
        raise ProfileError(f"{where}: type {dtype!r} is not one of {', '.join(DTYPES)}; nothing imported")
    ranks, sizes = len(run.hosts), set(Counter(run.hosts).values())
    # Without ``domain_ranks`` a host is a domain, and all hosts must have equally many ranks.
    intra = min(domain_ranks, ranks) if domain_ranks else sizes.pop()
    if (sizes and not domain_ranks) or ranks % intra:
        raise ProfileError(f"{where}: hosts with different numbers of ranks are not read; nothing imported")
    inter, siblings = ranks // intra, 1
    if kind is Collective.P2P:
        if inter > 1 and intra > 1:
            raise ProfileError(
                f"{where}: sendrecv over {inter} domains of {intra} mixes links; run it with one GPU a "
                "domain, or inside one; nothing imported"
            )
        # sendrecv: every rank sends to the next one, all at the same time.
        siblings = max(ranks // 2, 1)
        intra, inter = (2, 1) if inter == 1 else (1, 2)
    return CollectiveCase(
        collective=kind,
        size_bytes=_size_bytes(cells, where),
        intra=intra,
        inter=inter,
        siblings=siblings,
        dtype=DTYPES[dtype],
    )
