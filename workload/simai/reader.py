"""Reads SimAI workload files the way the simulator does, and reports where it would be misled.

Source: SimAI 1.6/1.7, ``Workload::initialize_workload``. Line 1 is split at white space, every word is compared with
each key including its colon, the next word is read with ``stoi``; order is free, the last of two wins, unknown words
are ignored. Line 2 is the number of rows (``stoi``). From line 3 on the simulator reads a stream of words, twelve a row;
here, as everyone writes it, a row is a line."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec.files import UnreadableFileError, read_bytes
from workload.diagnostics import BROKEN, NOTE, STOPS, WRONG, Finding, Findings, WorkloadError
from workload.simai.format import TRANSFORMER, TRANSFORMER_RECOMPUTE, SimaiHeader, SimaiPass, SimaiRow, SimaiWorkload

MICRO = "MICRO"
POLICIES = (
    "DATA",
    "MODEL",
    TRANSFORMER,
    TRANSFORMER_RECOMPUTE,
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    MICRO,
    "DISTRIBUTED_INFERENCE",
)
DEGREES = ("model_parallel_NPU_group", "ep", "pp", "vpp", "ga", "all_gpus")
LISTS = ("checkpoints", "checkpoint_initiates")
PP_COMM = "pp_comm"
# Words of AICB's inference files, which the parser ignores on purpose.
HARMLESS = {"mode:"}
_MISSING = {
    "model_parallel_NPU_group": "SimAI crashes with a division by zero",
    "pp": "SimAI crashes with a division by zero",
    "ep": "SimAI divides by zero where a row has a DP_EP word",
    "vpp": "SimAI's pipeline bubble becomes NaN",
    "ga": "SimAI's pipeline bubble becomes NaN",
    "all_gpus": "the ns-3 front end needs it",
}
_STOI = re.compile(rb"([+-]?)0*([0-9]+)")


@dataclass(slots=True, kw_only=True)
class RawHeader:
    """Line 1 as read. A missing degree is not in ``values``; a key whose value SimAI cannot read is in ``unreadable``
    alone. ``places`` are the places of the words that were read."""

    policy: str
    values: dict[str, int] = field(default_factory=dict)
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    places: set[int] = field(default_factory=set)

    @property
    def fields_per_row(self) -> int:
        """Returns the words of one row: HYBRID_CUSTOMIZED has one more."""
        return 13 if self.policy == "HYBRID_CUSTOMIZED" else 12

    @property
    def short(self) -> bool:
        """Returns whether line 1 has no degree but that of tensor parallelism, as AICB wrote it in 2024."""
        return not {*self.values, *self.unreadable} & {*DEGREES[1:]}

    def complete(self, gpus: int | None = None) -> SimaiHeader | None:
        """Returns the header with all its degrees, in a world of ``gpus`` where given; None when one is missing or below
        1. A short header has none but tensor-parallel groups, a communication test none. Without a pipeline vpp and ga
        have no effect and may be missing."""
        ones: tuple[str, ...] = ("vpp", "ga") if self.values.get("pp") == 1 else ()
        if self.short:
            ones = DEGREES[:-1] if self.policy == MICRO else DEGREES[1:-1]
        values = dict.fromkeys(ones, 1) | self.values | ({"all_gpus": gpus} if gpus else {})
        if any(values.get(key, 0) < 1 for key in DEGREES):
            return None
        others: dict[str, Any] = {key: values[key] for key in DEGREES[1:]} | self.lists
        return SimaiHeader(
            policy=self.policy, tp=values["model_parallel_NPU_group"], pp_comm_bytes=values.get(PP_COMM, 0), **others
        )


def stoi(word: bytes) -> int | None:
    """Returns the leading whole number of a word as C++'s stoi does; None when there is none or it exceeds 32 bits."""
    match = _STOI.match(word)
    if match is None or len(match[2]) > 10:
        return None
    value = int(match[2]) * (-1 if match[1] == b"-" else 1)
    return value if -(2**31) <= value < 2**31 else None


def text(word: bytes) -> str:
    """Returns a word as printable text: other bytes as escapes, at most 60 characters."""
    printable = word.decode("utf-8", errors="backslashreplace")
    if not printable.isprintable():
        printable = ascii(printable)[1:-1]
    return printable if len(printable) <= 60 else printable[:57] + "..."


def parse_header(line: bytes) -> tuple[RawHeader, Findings]:
    """Returns line 1 (without line feed) and its defects."""
    words = line.split()
    result = Findings()
    if not words:
        result.add(1, BROKEN, "no-policy", "line 1 is empty; it starts with a policy")
        return RawHeader(policy=""), result
    policy = text(words[0])
    if policy not in POLICIES:
        result.add(1, BROKEN, "policy", f"unknown policy {policy!r}; SimAI exits")
    elif policy not in (TRANSFORMER, TRANSFORMER_RECOMPUTE):
        effect = "; simulate takes all degrees as 1, the world as -g" if policy == MICRO else ""
        message = f"policy {policy}: SimAI-Analytical does not read tp and pp and crashes{effect}"
        result.add(1, STOPS, "policy", message)
    header = RawHeader(policy=policy)
    _read_keys(words, header, result)
    # Words that look like misspelt keys are hints for missing degrees first, and findings of their own otherwise.
    unread = _unread(words, header.places)
    if policy in (TRANSFORMER, TRANSFORMER_RECOMPUTE):
        _check_degrees(header, unread, result)
    for word, key in unread.items():
        if key:
            result.add(1, WRONG, "unread", f"{word} is not read; the key is {key!r}")
        else:
            result.add(1, NOTE, "unread", f"{word} is not read")
    return header, result


def _read_keys(words: list[bytes], keys: RawHeader, found: Findings) -> None:
    """Reads the values of all keys that the simulator knows under the policy into ``keys``."""
    policy = keys.policy
    transformer = policy in (TRANSFORMER, TRANSFORMER_RECOMPUTE)
    degrees = {f"{key}:".encode(): key for key in DEGREES} if transformer else {}
    # The one key that is also read without its colon.
    pp_comm = {PP_COMM.encode(): PP_COMM, f"{PP_COMM}:".encode(): PP_COMM}
    segments = {f"{key}:".encode(): key for key in LISTS} if policy == TRANSFORMER_RECOMPUTE else {}
    for place, word in enumerate(words):
        key = degrees.get(word) or pp_comm.get(word) or segments.get(word)
        if key is None:
            continue
        value = _value(words, place + 1, key, found)
        keys.places |= {place, place + 1, *([place + 2] if key in LISTS and value else [])}
        entries = _read_list(words, place + 2, key, value, found) if key in LISTS and value is not None else ()
        if value is None or entries is None:
            keys.unreadable.add(key)
            continue
        if key in keys.values or key in keys.lists:
            found.add(1, WRONG, "twice", f"{key} is given twice; the last one wins")
        if key in LISTS:
            keys.lists[key] = entries
        else:
            keys.values[key] = value


def _value(words: list[bytes], place: int, key: str, found: Findings) -> int | None:
    """Returns the number at ``place``; None, with a finding, when SimAI would abort there."""
    if place >= len(words):
        found.add(1, BROKEN, "no-value", f"{key} has no value; SimAI reads past the line and crashes")
        return None
    word = words[place]
    value = stoi(word)
    if value is None:
        reason = "is 2^31 or more" if _STOI.match(word) else "is no number"
        found.add(1, BROKEN, "value", f"{key} = {text(word)} {reason}; SimAI aborts")
    elif not word.lstrip(b"+-").isdigit():
        found.add(1, NOTE, "not-whole", f"{key} = {text(word)} is read as {value}")
    return value


def _read_list(words: list[bytes], place: int, key: str, length: int, found: Findings) -> tuple[int, ...] | None:
    """Returns the one entry that SimAI reads of a list; None, with a finding, when it would abort there."""
    if length <= 0:
        if length < 0:
            found.add(1, WRONG, "list", f"{key} = {length}: a length is not negative")
        return ()
    if length > 1:
        found.add(1, WRONG, "list", f"{key} lists {length} rows; SimAI takes the first entry {length} times")
    first = _value(words, place, key, found)
    return None if first is None else (first,)


def _unread(words: list[bytes], read: set[int]) -> dict[str, str | None]:
    """Returns words that SimAI ignores but that look like keys, with the key that each nearly is, if any."""
    keys = {f"{key}:".encode() for key in (*DEGREES, *LISTS, PP_COMM, "DLRM_LAST_BOTTOM_LAYER")}
    # By lower case and without the colon: what a user may have meant.
    by_lower_case = {key.lower().rstrip(b":"): key.decode() for key in keys}
    unread: dict[str, str | None] = {}
    for place, word in enumerate(words[1:], start=1):
        if place in read or word in keys or word.decode("latin-1") in HARMLESS:
            continue
        near = by_lower_case.get(word.rstrip(b":").lower())
        if near or word.endswith(b":") or not _STOI.match(word):
            unread[text(word)] = near
    return unread


def _check_degrees(keys: RawHeader, unread: dict[str, str | None], found: Findings) -> None:
    """Reports degrees that are missing or do not fit. Words that are a missing key misspelt are taken out of
    ``unread``."""
    values = keys.values
    missing = [key for key in DEGREES if key not in values and key not in keys.unreadable]
    if keys.short and missing == [*DEGREES[1:]]:
        effect = "SimAI crashes with a division by zero; simulate takes each as 1, the world as -g"
        found.add(1, STOPS, "short-header", f"short header of 2024: no {', '.join(missing)}; {effect}")
        return
    for key in missing:
        without_effect = key in ("vpp", "ga") and values.get("pp") == 1
        severity = STOPS if without_effect else BROKEN
        misspelt = [word for word, near in unread.items() if near == f"{key}:"]
        hint = f" ({misspelt[0]} is not read; the key is '{key}:')" if misspelt else ""
        for word in misspelt:
            del unread[word]
        found.add(1, severity, "missing", f"no {key}{hint}: {_MISSING[key]}")
    for key, value in values.items():
        if key != PP_COMM and value < 1:
            found.add(1, BROKEN, "not-positive", f"{key} = {value}: must be at least 1")
    if not keys.unreadable:
        _check_fit(values, found)


def _check_fit(values: dict[str, int], found: Findings) -> None:
    pp_comm = values.get(PP_COMM, 0)
    if pp_comm < 0:
        found.add(1, BROKEN, "pp-comm", f"{PP_COMM} = {pp_comm}: must not be negative")
    if "pp" in values and (values["pp"] > 1) != (pp_comm > 0):
        message = f"{PP_COMM} = {pp_comm} with pp = {values['pp']}; SimAI warns of a format mismatch"
        found.add(1, NOTE, "pp-comm", message)
    if any(values.get(key, 0) < 1 for key in DEGREES):
        return
    stage = values["model_parallel_NPU_group"] * values["pp"]
    if values["all_gpus"] % stage:
        message = f"all_gpus = {values['all_gpus']} is no multiple of tp x pp = {stage}; the rest is dropped"
        found.add(1, WRONG, "degrees", message)
    elif (values["all_gpus"] // stage) % values["ep"]:
        message = f"ep = {values['ep']} does not divide dp = {values['all_gpus'] // stage}; the rest is dropped"
        found.add(1, WRONG, "degrees", message)


# Lines 2 and up.

# A generated file of 4096 GPUs and 64 micro-batches has some 10 MB.
MAX_FILE_BYTES = 2**30
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_TEXT_FIELDS = (0, 3, 6, 9)
_FIELD_NAMES = (
    *("name", "dependency"),
    *(
        f"{column} {cell}"
        for column in ("forward", "input-grad", "weight-grad")
        for cell in ("compute", "comm", "size")
    ),
    "update time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWithLine:
    """A row and the line it starts on (from 1)."""

    line: int
    row: SimaiRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiFile:
    """A file as read: its header, the number of rows that line 2 announces, its ``rows`` without damaged ones,
    ``num_rows`` with them, and its defects."""

    name: str
    header: RawHeader
    announced: int | None
    rows: tuple[RowWithLine, ...]
    num_rows: int
    findings: tuple[Finding, ...]


def read_simai(path: str | os.PathLike[str]) -> SimaiFile:
    """Returns the file at ``path`` with its defects as findings. WorkloadError only when it is no text file."""
    where = Path(path)
    try:
        content = read_bytes(where, MAX_FILE_BYTES)
    except UnreadableFileError as error:
        raise WorkloadError(f"{where}: {error}") from error
    return parse_simai(content, name=str(where))


def parse_simai(content: bytes, *, name: str = "workload") -> SimaiFile:
    """Returns the same from bytes in memory."""
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
        name=name, header=header, announced=announced, rows=tuple(rows), num_rows=num_rows, findings=tuple(findings)
    )


def usable_workload(file: SimaiFile, gpus: int | None = None) -> SimaiWorkload:
    """Returns the workload of a file without BROKEN findings, in a world of ``gpus`` (None: the header's); WorkloadError
    with the first of them otherwise. Rows beyond the announced number are left out, as the simulator ignores them."""
    broken = [each for each in file.findings if each.severity is BROKEN]
    if broken:
        more = f" (and {len(broken) - 1} more; run the check)" if len(broken) > 1 else ""
        raise WorkloadError(f"{file.name}: line {broken[0].line}: {broken[0].message}{more}")
    header = file.header.complete(gpus)
    if header is None and file.header.complete(1):
        raise WorkloadError(f"{file.name}: line 1 has no all_gpus: give the world as -g")
    if header is None:
        raise WorkloadError(f"{file.name}: policy {file.header.policy} says nothing of tp, pp and ep")
    return SimaiWorkload(header=header, rows=tuple(each.row for each in file.rows[: file.announced]))


def _count(line: bytes, findings: Findings) -> int | None:
    value = stoi(line.lstrip())
    if value is None or value < 0:
        word = text(line.strip()) or "nothing"
        findings.add(2, BROKEN, "count", f"the number of rows is {word}; SimAI aborts")
        return None
    if not line.strip().lstrip(b"+").isdigit():
        findings.add(2, NOTE, "count", f"{text(line.strip())!r} is read as {value} rows")
    return value


def _check_count(announced: int, num_rows: int, findings: Findings) -> None:
    severity, effect = WRONG, ""
    if announced == 0:
        effect = "SimAI replays nothing"
    elif announced > num_rows:
        severity, effect = BROKEN, "SimAI repeats the numbers of the last row"
    elif announced < num_rows:
        effect = "SimAI ignores the rest"
    if effect:
        findings.add(2, severity, "count", f"{announced} rows announced, {num_rows} found; {effect}")


def _rows(lines: list[bytes], width: int, findings: Findings) -> tuple[list[RowWithLine], int]:
    """Returns the rows of ``width`` words, one a line, and the number of damaged ones, each of which is a finding."""
    rows: list[RowWithLine] = []
    damaged = 0
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if not words:
            continue
        row = None
        if len(words) != width:
            message = f"{len(words)} fields, a row has {width}; SimAI shifts everything after it"
            findings.add(number, BROKEN, "fields", message)
        elif not _in_place(words):
            message = "a number stands where a word belongs or a word where a number belongs"
            findings.add(number, BROKEN, "fields", message)
        else:
            row = _row(words, number, findings)
        if row is None:
            damaged += 1
        else:
            rows.append(RowWithLine(line=number, row=row))
    return rows, damaged


def _in_place(words: list[bytes]) -> bool:
    """Returns whether fields of numbers hold numbers and fields of words hold words."""
    return all(
        (_NUMBER.fullmatch(word) is None) if place in _TEXT_FIELDS[1:] else bool(_NUMBER.fullmatch(word))
        for place, word in enumerate(words[:12])
        if place
    )


def _row(words: list[bytes], line: int, findings: Findings) -> SimaiRow | None:
    """Returns the row; None, with a finding, where a number cannot be read."""
    numbers: list[int] = []
    for place, word in enumerate(words[:12]):
        if place not in _TEXT_FIELDS:
            value = _whole(word, place, line, findings)
            if value is None:
                return None
            numbers.append(value)
    dependency, *cells, update_ns = numbers
    row = SimaiRow(name=text(words[0]), dependency=dependency, update_ns=update_ns)
    for place, column in enumerate(SimaiPass):
        compute_ns, size_bytes = cells[2 * place : 2 * place + 2]
        comm = text(words[_TEXT_FIELDS[1 + place]])
        row = row.with_pass(column, compute_ns=compute_ns, comm=comm, size_bytes=size_bytes)
    return row


def _whole(word: bytes, place: int, line: int, findings: Findings) -> int | None:
    """Returns a cell as an integer; None, with a finding, for a float or a number beyond 63 bits."""
    what = f"{_FIELD_NAMES[place]} = {text(word)}"
    digits = word.lstrip(b"+-")
    if not digits.isdigit():
        findings.add(line, BROKEN, "float", f"{what} is not whole; SimAI reads its rest as the next field")
        return None
    digits = digits.lstrip(b"0") or b"0"
    value = int(digits) if len(digits) <= 20 else 2**64
    if value >= 2**63:
        findings.add(line, BROKEN, "overflow", f"{what} does not fit 63 bits")
        return None
    if not word.startswith(b"-") or value == 0:
        return value
    # Only the dependency may be negative: -1 is none.
    if place == 1:
        return -value
    findings.add(line, BROKEN, "negative", f"{what} is negative; SimAI wraps it round and counts 0")
    return None
