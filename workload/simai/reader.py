"""Read any SimAI workload file the way the simulator does, and say where it would be misled.

Source: SimAI 1.6/1.7. The second line is the number of rows (``stoi``); from line 3 on the file is a
stream of words in which line breaks mean nothing and every row takes twelve.
"""

import os
import re
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from spec.text_file import UnreadableFileError, read_bytes
from workload.findings import Finding, Severity
from workload.simai.format import SimaiRow, SimaiWorkload
from workload.simai.header import RawHeader, parse_header, stoi, text
from workload.workload_error import WorkloadError

# A generated file of 4096 GPUs and 64 micro-batches has some 10 MB.
MAX_FILE_BYTES = 2**30
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_TEXT_FIELDS = (0, 3, 6, 9)
_FIELD_NAMES = (
    "name",
    "dependency",
    "forward compute",
    "forward comm",
    "forward size",
    "input-grad compute",
    "input-grad comm",
    "input-grad size",
    "weight-grad compute",
    "weight-grad comm",
    "weight-grad size",
    "update time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A row and the line it starts on (from 1)."""

    line: int
    row: SimaiRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiFile:
    """What a file holds: its header, the number of rows it announces, the rows found, and what is wrong.
    ``num_rows`` counts damaged rows too, ``rows`` holds the others."""

    name: str
    header: RawHeader
    announced: int | None
    rows: tuple[PlacedRow, ...]
    num_rows: int
    findings: tuple[Finding, ...]


def read_simai(path: str | os.PathLike[str]) -> SimaiFile:
    """Parse ``path``; defects become findings. WorkloadError only when there is no text file to read."""
    where = Path(path)
    try:
        content = read_bytes(where, MAX_FILE_BYTES)
    except UnreadableFileError as error:
        raise WorkloadError(f"{where}: {error}") from error
    return parse_simai(content, name=str(where))


def parse_simai(content: bytes, *, name: str = "workload") -> SimaiFile:
    """``read_simai`` of bytes already in memory."""
    if b"\0" in content:
        raise WorkloadError(f"{name}: holds zero bytes; it is no text file")
    if not content.strip():
        raise WorkloadError(f"{name}: is empty")
    lines = content.split(b"\n")
    header, findings = parse_header(lines[0])
    announced = _count(lines[1] if len(lines) > 1 else b"", findings)
    rows, damaged = _rows(lines, header.fields_per_row, findings)
    num_rows = len(rows) + damaged
    if announced is not None:
        _check_count(announced, num_rows, findings)
    return SimaiFile(
        name=name,
        header=header,
        announced=announced,
        rows=tuple(rows),
        num_rows=num_rows,
        findings=tuple(findings),
    )


def usable_workload(file: SimaiFile) -> SimaiWorkload:
    """The workload of a file without BROKEN findings; WorkloadError with the first of them otherwise.

    Rows beyond the announced number are left out, as the simulator leaves them out.
    """
    broken = [each for each in file.findings if each.severity is Severity.BROKEN]
    if broken:
        more = f" (and {len(broken) - 1} more; run the check)" if len(broken) > 1 else ""
        raise WorkloadError(f"{file.name}: line {broken[0].line}: {broken[0].message}{more}")
    header = file.header.complete()
    if header is None:
        raise WorkloadError(f"{file.name}: policy {file.header.policy} says nothing of tp, pp and ep")
    return SimaiWorkload(header=header, rows=tuple(each.row for each in file.rows[: file.announced]))


def _count(line: bytes, findings: list[Finding]) -> int | None:
    value = stoi(line.lstrip())
    if value is None or value < 0:
        shown = text(line.strip()) or "nothing"
        message = f"the number of rows is {shown}; SimAI aborts"
        findings.append(Finding(line=2, severity=Severity.BROKEN, code="count", message=message))
        return None
    if not line.strip().lstrip(b"+").isdigit():
        message = f"{text(line.strip())!r} is taken as {value} rows"
        findings.append(Finding(line=2, severity=Severity.NOTE, code="count", message=message))
    return value


def _check_count(announced: int, num_rows: int, findings: list[Finding]) -> None:
    severity, effect = Severity.WRONG, ""
    if announced == 0:
        effect = "SimAI replays nothing"
    elif announced > num_rows:
        severity, effect = Severity.BROKEN, "SimAI repeats the numbers of the last row"
    elif announced < num_rows:
        effect = "SimAI ignores the rest"
    if effect:
        message = f"{announced} rows announced, {num_rows} found; {effect}"
        findings.append(Finding(line=2, severity=severity, code="count", message=message))


def _rows(lines: list[bytes], width: int, findings: list[Finding]) -> tuple[list[PlacedRow], int]:
    """Rows of ``width`` words, and the number of damaged ones. Where they stop making sense, a finding and a
    fresh start on the next line; what is left over of a row's line is no row of its own."""
    rows: list[PlacedRow] = []
    damaged, last = 0, 0
    pending: deque[tuple[bytes, int]] = deque()
    for number, line in enumerate(lines[2:], start=3):
        pending.extend((word, number) for word in line.split())
        while len(pending) >= width:
            row_words = list(islice(pending, width))
            words = [word for word, _ in row_words]
            start = row_words[0][1]
            if not _in_place(words):
                damaged += start != last
                _drop_line(lines, pending, width, findings)
                continue
            last = row_words[-1][1]
            if last != start:
                message = "a row goes on over a line break; SimAI does not mind"
                findings.append(
                    Finding(line=start, severity=Severity.NOTE, code="line-break", message=message)
                )
            row = _row(words, start, findings)
            if row is None:
                damaged += 1
            else:
                rows.append(PlacedRow(line=start, row=row))
            for _ in range(width):
                pending.popleft()
    while pending:
        damaged += pending[0][1] != last
        _drop_line(lines, pending, width, findings)
    return rows, damaged


def _in_place(words: list[bytes]) -> bool:
    """Whether numbers stand where numbers belong and words where words belong."""
    return all(
        (_NUMBER.fullmatch(word) is None) if place in _TEXT_FIELDS[1:] else bool(_NUMBER.fullmatch(word))
        for place, word in enumerate(words[:12])
        if place
    )


def _drop_line(
    lines: list[bytes], pending: deque[tuple[bytes, int]], width: int, findings: list[Finding]
) -> None:
    """Report the line on which ``pending`` starts and drop what is left of it."""
    start = pending[0][1]
    found = len(lines[start - 1].split())
    message = (
        f"{found} fields, a row has {width}; SimAI shifts everything after it"
        if found != width
        else "a number stands where a word belongs or a word where a number belongs"
    )
    findings.append(Finding(line=start, severity=Severity.BROKEN, code="fields", message=message))
    while pending and pending[0][1] == start:
        pending.popleft()


def _row(words: list[bytes], line: int, findings: list[Finding]) -> SimaiRow | None:
    numbers: list[int] = []
    for place, word in enumerate(words[:12]):
        if place not in _TEXT_FIELDS:
            value = _whole(word, place, line, findings)
            if value is None:
                return None
            numbers.append(value)
    return SimaiRow(
        name=text(words[0]),
        dependency=numbers[0],
        forward_ns=numbers[1],
        forward_comm=text(words[3]),
        forward_bytes=numbers[2],
        input_grad_ns=numbers[3],
        input_grad_comm=text(words[6]),
        input_grad_bytes=numbers[4],
        weight_grad_ns=numbers[5],
        weight_grad_comm=text(words[9]),
        weight_grad_bytes=numbers[6],
        update_ns=numbers[7],
    )


def _whole(word: bytes, place: int, line: int, findings: list[Finding]) -> int | None:
    """A cell as an integer; None, with a finding, for a float or a number beyond 64 bits."""
    what = f"{_FIELD_NAMES[place]} = {text(word)}"
    digits = word.lstrip(b"+-")
    if not digits.isdigit():
        message = f"{what} is not whole; SimAI takes its rest as the next field"
        findings.append(Finding(line=line, severity=Severity.BROKEN, code="float", message=message))
        return None
    digits = digits.lstrip(b"0") or b"0"
    value = int(digits) if len(digits) <= 20 else 2**64
    if value >= 2**63:
        message = f"{what} does not fit 63 bits"
        findings.append(Finding(line=line, severity=Severity.BROKEN, code="overflow", message=message))
        return None
    if not word.startswith(b"-") or value == 0:
        return value
    if place == 1:
        return -value
    message = f"{what} is negative; SimAI wraps it round and counts 0"
    findings.append(Finding(line=line, severity=Severity.BROKEN, code="negative", message=message))
    return None
