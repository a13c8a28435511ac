"""Bus bandwidths by group in the small yaml form that SimAI's tutorial shows and its binary lost.

    name
    TP:
      allreduce,: 300
      allgather,: null
    PP:
      busbw: 47.5

Section lines are TP:, DP:, EP:, DP_EP: and PP:, entries ``word: number`` in GiB/s (a comma before the
colon, comments after ``#`` and ``null`` are allowed, indentation means nothing). Only this form is read,
not yaml at large. As in the tutorial, what EP says of gathers, scatters and all-reduces is said of the
experts' data-parallel groups; a section DP_EP, which is ours, says it apart.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from spec.collectives import Collective
from spec.program.numbers import plain_number
from spec.replaced_file import replaced_file
from spec.text_file import UnreadableFileError, read_file_text
from workload.simai.tokens import SimaiGroup
from workload.workload_error import WorkloadError

SECTIONS: dict[str, SimaiGroup] = {
    "TP": SimaiGroup.TP,
    "DP": SimaiGroup.DP,
    "EP": SimaiGroup.EP,
    "DP_EP": SimaiGroup.DP_EP,
}
WORDS: dict[str, Collective] = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
}
_PIPELINE = "PP"
_HOP = "busbw"
_ENTRY = re.compile(r"([A-Za-z_]+)\s*,?\s*:\s*(\S*)")
MAX_FILE_BYTES = 2**20
# Assumption: no link of one GPU carries a byte a second or a PiB/s; such a number is a slip in the file.
_LEAST_GIB, _MOST_GIB = 1e-6, 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BusBandwidths:
    """Bus bandwidth (GiB/s) by group and collective, and of one pipeline hop; None or absent: unknown."""

    name: str
    groups: dict[tuple[SimaiGroup, Collective], float]
    pipeline_gib: float | None = None


def read_busbw(path: str | os.PathLike[str]) -> BusBandwidths:
    """Read ``path``; WorkloadError names the line that is not of the form above."""
    where = Path(path)
    try:
        lines = read_file_text(where, MAX_FILE_BYTES).splitlines()
    except UnreadableFileError as error:
        raise WorkloadError(f"{where}: {error}") from error
    name, section = "", ""
    seen: set[tuple[str, str]] = set()
    groups: dict[tuple[SimaiGroup, Collective], float] = {}
    pipeline: float | None = None
    for number, line in enumerate(lines, start=1):
        content = line.split("#", 1)[0].strip()
        place = f"{where}: line {number}"
        if not content:
            continue
        match = _ENTRY.fullmatch(content)
        if match is None:
            if name or section:
                raise WorkloadError(f"{place}: {content[:60]!r} is neither a section nor an entry")
            name = content
        elif not match[2]:
            section = _section(match[1], place)
        else:
            value = _bandwidth(match[2], place)
            if (section, match[1]) in seen:
                raise WorkloadError(f"{place}: {match[1]} of section {section} is given twice")
            seen.add((section, match[1]))
            if section == _PIPELINE and match[1] == _HOP:
                pipeline = value
            else:
                key = _key(section, match[1], place)
                if value is not None:
                    groups[key] = value
    for (group, collective), value in list(groups.items()):
        if group is SimaiGroup.EP and collective is not Collective.ALL_TO_ALL:
            groups.setdefault((SimaiGroup.DP_EP, collective), value)
    return BusBandwidths(name=name, groups=groups, pipeline_gib=pipeline)


def write_busbw(path: str | os.PathLike[str], bandwidths: BusBandwidths) -> None:
    """Write the form that ``read_busbw`` reads; groups without any entry are left out."""
    lines = [bandwidths.name or "busbw"]
    for section, group in SECTIONS.items():
        if any(known is group for known, _ in bandwidths.groups):
            lines.append(f"{section}:")
            for word, collective in WORDS.items():
                value = bandwidths.groups.get((group, collective))
                lines.append(f"  {word},: {'null' if value is None else f'{value:.6g}'}")
    if bandwidths.pipeline_gib is not None:
        lines += [f"{_PIPELINE}:", f"  {_HOP}: {bandwidths.pipeline_gib:.6g}"]
    with replaced_file(path) as handle:
        handle.write("\n".join(lines) + "\n")


def _section(word: str, place: str) -> str:
    if word not in (*SECTIONS, _PIPELINE):
        raise WorkloadError(f"{place}: unknown section {word!r}; known: {', '.join((*SECTIONS, _PIPELINE))}")
    return word


def _key(section: str, word: str, place: str) -> tuple[SimaiGroup, Collective]:
    if section not in SECTIONS or word not in WORDS:
        where = f"section {section!r}" if section else "before any section"
        raise WorkloadError(
            f"{place}: {word!r} {where} is unknown; known: {', '.join(WORDS)}, and {_HOP} under {_PIPELINE}"
        )
    return SECTIONS[section], WORDS[word]


def _bandwidth(value: str, place: str) -> float | None:
    if value in ("null", "~"):
        return None
    number = plain_number(value)
    if not _LEAST_GIB <= number <= _MOST_GIB:
        raise WorkloadError(
            f"{place}: {value[:60]!r} is no positive bandwidth in GiB/s (up to {_MOST_GIB:.0f})"
        )
    return number
