"""Every defect of a SimAI workload file that the simulator would meet, with its line.

The reader reports defects of the text; this file checks rows against the header: words, groups, limits. Effects as seen
by running SimAI-Analytical 1.6/1.7."""

from collections.abc import Iterator, Mapping

from workload.diagnostics import NOTE, STOPS, WRONG, Finding, Severity
from workload.simai.format import (
    CELL_LIMIT_NS,
    FORWARD_FLOOR_BYTES,
    GROUPS_OF_PASS,
    NO_COMM,
    PREFIXES,
    RATIO_LIMIT_BYTES,
    SMALL_BYTES,
    TRANSFORMER_RECOMPUTE,
    SimaiGroup,
    SimaiHeader,
    SimaiPass,
    read_token,
    uses_ratio,
)
from workload.simai.reader import RowWithLine, SimaiFile

# SimAI-Analytical has fixed times of small messages for these group sizes only; others cost nothing below 1 MiB.
FIXED_LATENCY_RANKS = (2, 4, 8, 16, 32, 64, 128)


def check_simai(file: SimaiFile) -> list[Finding]:
    """Returns all findings of ``file`` in line order."""
    findings = list(file.findings)
    header = file.header.complete()
    for located in file.rows:
        findings += row_findings(located, header, file.header.policy)
    lists = {} if "checkpoints" in file.header.unreadable else file.header.lists
    findings += segment_findings(lists, file.num_rows)
    return sorted(findings, key=lambda each: each.line)


def segment_findings(lists: Mapping[str, tuple[int, ...]], num_rows: int) -> Iterator[Finding]:
    """Yields defects of recomputed segments. SimAI walks back from the initiating row to the checkpoint before it: past
    the first row of the file where there is none, and past the last from a checkpoint at that very row."""
    rows = range(num_rows)
    starts = [row for row in lists.get("checkpoints", ()) if row in rows]
    crashes = False
    for row in lists.get("checkpoint_initiates", ()):
        if row in rows and not any(start < row for start in starts):
            crashes = True
            message = f"checkpoint_initiates names row {row}, and checkpoints no row before it; SimAI crashes"
            yield Finding(1, STOPS, "segment", message)
    for key, entries in lists.items():
        for row in entries:
            if row not in rows and not crashes:
                yield Finding(1, WRONG, "list", f"{key} names row {row}; rows are 0 to {len(rows) - 1}")


def row_findings(located: RowWithLine, header: SimaiHeader | None, policy: str) -> Iterator[Finding]:
    """Yields the defects of one row; those of groups need a header."""
    row, line = located.row, located.line
    if row.dependency != -1:
        yield Finding(line, NOTE, "dependency", f"dependency {row.dependency} is not used")
    for column in SimaiPass:
        cell = row.compute_ns(column)
        if cell >= CELL_LIMIT_NS:
            message = f"{column.value} compute {cell} ns reaches {CELL_LIMIT_NS}; SimAI never ends: split the row"
            yield Finding(line, STOPS, "long-cell", message)
        token, size_bytes = row.comm(column)
        for severity, code, message in _comm_findings(token, size_bytes, column, header):
            yield Finding(line, severity, code, f"{column.value} {message}")
    size_bytes = row.forward_bytes if read_token(row.forward_comm, SimaiPass.FORWARD)[0] else 0
    if policy == TRANSFORMER_RECOMPUTE and 0 < size_bytes < FORWARD_FLOOR_BYTES:
        message = f"forward {row.forward_comm} of {size_bytes} bytes is priced as {FORWARD_FLOOR_BYTES}"
        yield Finding(line, NOTE, "forward-floor", message)


def _comm_findings(
    token: str, size_bytes: int, column: SimaiPass, header: SimaiHeader | None
) -> Iterator[tuple[Severity, str, str]]:
    collective, group = read_token(token, column)
    if collective is None:
        if token == NO_COMM:
            if size_bytes:
                yield NOTE, "bytes-beside-none", f"{NO_COMM} with {size_bytes} bytes beside it"
        else:
            yield WRONG, "word", f"{token!r} {_why_unknown(token)}; SimAI moves nothing"
        return
    what = f"{token} of {size_bytes} bytes"
    if group not in GROUPS_OF_PASS[column]:
        yield WRONG, "column", f"{what}: SimAI times it with the size of another group"
    if size_bytes == 0 and (column, group) != (SimaiPass.FORWARD, SimaiGroup.EP):  # that books its row under EP
        yield NOTE, "no-bytes", f"{token} of 0 bytes"
    if uses_ratio(collective, group) and size_bytes > RATIO_LIMIT_BYTES:
        message = f"{what}: above 16 GiB SimAI's ratio look-up fails and the result file stays empty"
        yield STOPS, "above-ratio", message
    if header is not None:
        yield from _group_findings(what, size_bytes, header.group_ranks(group), group)


def _group_findings(what: str, size_bytes: int, ranks: int, group: SimaiGroup) -> Iterator[tuple[Severity, str, str]]:
    if ranks < 1:
        yield STOPS, "no-group", f"{what}: the {group.value} group has {ranks} ranks"
    elif ranks == 1:
        divides = group is SimaiGroup.TP and size_bytes not in SMALL_BYTES
        severity = WRONG if divides else NOTE
        effect = "SimAI divides zero by zero and adds 9.2e18 ns" if divides else "it costs nothing"
        yield severity, "group-of-one", f"{what} over a {group.value} group of one; {effect}"
    elif size_bytes in SMALL_BYTES and ranks not in FIXED_LATENCY_RANKS:
        message = f"{what} over {ranks} ranks is priced 0 (SimAI has times of small ones for 2, 4, ... 128 ranks)"
        yield WRONG, "small-free", message


def _why_unknown(token: str) -> str:
    if token.upper() != token and read_token(token.upper(), SimaiPass.FORWARD)[0] is not None:
        return "is lower case"
    if token.startswith(tuple(PREFIXES)):
        return "has an ending other than _EP and _DP_EP"
    return "is no communication word"
