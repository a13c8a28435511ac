"""AIOB compute times: the text file that AICB measures once per GPU and model, in microseconds.

    train_iter:10
    Emb:
        time_gpu_max: 857
        time_gpu_min: 782
        time_gpu_avg: 799

Values are microseconds (CUDA-event milliseconds times 1000; a comment in AICB says ms). The file holds no
model, degree, batch or GPU: whoever applies it must know that they match.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from spec.program.numbers import plain_number
from spec.replaced_file import replaced_file
from spec.text_file import UnreadableFileError, read_file_text
from workload.workload_error import WorkloadError

MAX_FILE_BYTES = 2**22
NS_PER_US = 1000
# Assumption: no module takes 1000 seconds; a longer time would be cut into millions of rows.
MOST_US = 1e9
_SECTION = re.compile(r"([A-Za-z_][\w.]*)\s*:")
_TIME = re.compile(r"time_gpu_(max|min|avg)\s*:\s*(\S+)")
_ITERATIONS = re.compile(r"train_iter\s*:\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AiobTime:
    """One section: microseconds over the iterations (samples above 3 times the minimum dropped)."""

    max_us: float
    min_us: float
    avg_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AiobFile:
    """Number of iterations and the sections in the order of the file."""

    train_iter: int
    sections: dict[str, AiobTime]


def read_aiob(path: str | os.PathLike[str]) -> AiobFile:
    """Read ``path``; WorkloadError names the line that cannot be understood."""
    where = Path(path)
    try:
        lines = read_file_text(where, MAX_FILE_BYTES).splitlines()
    except UnreadableFileError as error:
        raise WorkloadError(f"{where}: {error}") from error
    train_iter: int | None = None
    found: dict[str, dict[str, float]] = {}
    section = ""
    for number, line in enumerate(lines, start=1):
        content = line.strip()
        place = f"{where}: line {number}"
        if not content:
            continue
        if first := _ITERATIONS.fullmatch(content):
            train_iter = int(first[1])
        elif time := _TIME.fullmatch(content):
            if not section or time[1] in found[section]:
                raise WorkloadError(f"{place}: {content[:60]!r} is given twice or outside a section")
            found[section][time[1]] = _microseconds(time[2], place)
        elif name := _SECTION.fullmatch(content):
            section = name[1]
            if section in found:
                raise WorkloadError(f"{place}: section {section} is given twice")
            found[section] = {}
        else:
            raise WorkloadError(f"{place}: {content[:60]!r} is neither a section nor a time in us")
    if train_iter is None:
        raise WorkloadError(f"{where}: has no train_iter line")
    return AiobFile(train_iter=train_iter, sections=_complete(found, where))


def write_aiob(path: str | os.PathLike[str], file: AiobFile) -> None:
    """Write the form that AICB reads: whole microseconds, four spaces before each time."""
    with replaced_file(path) as handle:
        handle.write(f"train_iter:{file.train_iter}\n")
        for name, time in file.sections.items():
            handle.write(f"{name}:\n")
            for kind, value in (("max", time.max_us), ("min", time.min_us), ("avg", time.avg_us)):
                handle.write(f"    time_gpu_{kind}: {round(value)}\n")


def aiob_times_ns(file: AiobFile, *, recompute_activations: bool = False) -> dict[str, int]:
    """Nanoseconds by the keys AICB uses, rounded.

    ``attention_*`` is the sum of the sections with "atten" in their name and ``layernorm``, ``mlp_*`` that of
    those with "mlp" and ``layernorm2``, and with "moe", of which AICB's own training files have none; backward equal to
    forward. ``grad_forward`` and ``grad_backward`` are the minimum and the average of ``param_time``;
    ``attention_core`` is what a recomputed core runs again: the sections of attention with "flash" or "core" in
    their name. Other sections stand for themselves.
    ``recompute_activations`` counts sections with "flash" twice, as AICB does. A sum without any section is
    left out, so that a later look-up fails instead of finding 0.
    """
    times: dict[str, int] = {}
    halves = (("attention", "layernorm", ("atten",)), ("mlp", "layernorm2", ("mlp", "moe")))
    for stage, norm, words in halves:
        parts = [
            time.avg_us * (2 if recompute_activations and "flash" in name else 1)
            for name, time in file.sections.items()
            if name == norm or any(word in name for word in words)
        ]
        if parts:
            times[f"{stage}_forward"] = times[f"{stage}_backward"] = round(sum(parts) * NS_PER_US)
    cores = [
        time.avg_us
        for name, time in file.sections.items()
        if "atten" in name and ("flash" in name or "core" in name)
    ]
    if cores:
        times["attention_core"] = round(sum(cores) * NS_PER_US)
    for name, time in file.sections.items():
        if name == "param_time":
            times["grad_forward"] = round(time.min_us * NS_PER_US)
            times["grad_backward"] = round(time.avg_us * NS_PER_US)
        elif not ("atten" in name or "mlp" in name or name in ("layernorm", "layernorm2")) or name.startswith(
            "attention_"
        ):
            times[name] = round(time.avg_us * NS_PER_US)
    return times


def row_time_ns(times: dict[str, int], row: str, *, backward: bool) -> int:
    """The time AICB gives a SimAI row of that name in one pass.

    An exact key first; names with "grad", "embedding" and "final" stand for the gradient, embedding and
    attention times; the rest go by their first word. A column or row half takes half, rounded down. Raises
    WorkloadError where AICB would write 1 ns.
    """
    direction = "backward" if backward else "forward"
    key = row
    if row not in times:
        key = f"{row.split('_', maxsplit=1)[0]}_{direction}"
        if "grad" in row:
            key = f"grad_{direction}"
        elif "embedding" in row:
            key = "Emb"
        elif "final" in row:
            key = f"attention_{direction}"
    if key not in times:
        raise WorkloadError(f"no AIOB time for row {row!r} ({direction}): the file has no {key}")
    return times[key] // 2 if row.endswith(("_column", "_row")) else times[key]


def _microseconds(word: str, place: str) -> float:
    value = plain_number(word)
    if not 0 <= value < MOST_US:
        raise WorkloadError(f"{place}: {word[:40]!r} is no time in us below {MOST_US:.0f}")
    return value


def _complete(found: dict[str, dict[str, float]], where: Path) -> dict[str, AiobTime]:
    if not found:
        raise WorkloadError(f"{where}: has no section")
    sections = {}
    for name, times in found.items():
        missing = [kind for kind in ("max", "min", "avg") if kind not in times]
        if missing:
            raise WorkloadError(f"{where}: section {name} has no time_gpu_{missing[0]}")
        if not times["min"] <= times["avg"] <= times["max"]:
            raise WorkloadError(f"{where}: section {name}: the average lies outside minimum and maximum")
        sections[name] = AiobTime(max_us=times["max"], min_us=times["min"], avg_us=times["avg"])
    return sections
