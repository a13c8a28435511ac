"""Writes SimAI workload files that the simulator reads without a crash, a hang or a guess.

A defect that ``workload.simai.check`` reports of a header or a row is an ExportError here; ``split_row`` works around
the two limits that splitting can avoid."""

import math
import os
import shutil
import tempfile
from collections.abc import Iterable

from spec.errors import ExportError
from spec.files import atomic_file
from workload.diagnostics import Finding
from workload.simai.check import row_findings, segment_findings
from workload.simai.format import (
    CELL_LIMIT_NS,
    NO_COMM,
    RATIO_LIMIT_BYTES,
    TRANSFORMER_RECOMPUTE,
    SimaiGroup,
    SimaiHeader,
    SimaiPass,
    SimaiRow,
    SimaiWorkload,
    read_token,
    uses_ratio,
)
from workload.simai.reader import RowWithLine, parse_header

# A row cut into more parts than this (two days of compute in one cell) is a mistake, not a workload.
MAX_PARTS = 100_000
PIECE_BYTES = 2**20
# Findings on small messages are about the simulator, not the file.
ALLOWED = ("forward-floor", "small-free")


def nanoseconds(time_s: float, *, what: str = "time") -> int:
    """Returns seconds as whole nanoseconds; ExportError when negative, infinite or not a number."""
    if not math.isfinite(time_s) or time_s < 0:
        raise ExportError(f"{what} = {time_s} s: a compute time must be finite and not negative")
    return round(time_s * 1e9)


def check_header(header: SimaiHeader) -> None:
    """Raises ExportError when line 1 would be misread."""
    _refuse(parse_header(header.line().encode())[1], "header")
    if len(header.checkpoints) != len(header.checkpoint_initiates):
        raise ExportError("header: checkpoints and checkpoint_initiates come together or not at all")
    if header.checkpoints and header.policy != TRANSFORMER_RECOMPUTE:
        raise ExportError(f"header: checkpoints are read only under policy {TRANSFORMER_RECOMPUTE}")


def check_row(row: SimaiRow, header: SimaiHeader, *, index: int) -> None:
    """Raises ExportError when row ``index`` (from 0) would be misread or could not be priced."""
    where = f"row {index} {row.name!r}"
    if not row.name or not row.name.isprintable() or any(letter.isspace() for letter in row.name):
        raise ExportError(f"{where}: a name is one word of printable characters")
    numbers = [row.update_ns]
    for column in SimaiPass:
        numbers += [row.compute_ns(column), row.comm(column)[1]]
    for value in numbers:
        if type(value) is not int or not 0 <= value < 2**63:
            raise ExportError(f"{where}: {value!r} is no whole number from 0 to 2^63")
    _refuse(row_findings(RowWithLine(line=index + 3, row=row), header, header.policy), where)


def _refuse(findings: Iterable[Finding], where: str) -> None:
    for finding in findings:
        if finding.code not in ALLOWED:
            raise ExportError(f"{where}: {finding.message}")


def split_row(row: SimaiRow) -> tuple[SimaiRow, ...]:
    """The row itself, or rows of the same name that together hold its times and bytes.

    Compute is cut into even parts below ``CELL_LIMIT_NS``, collectives under the ratio limit into pieces of at most 16
    GiB (whole MiB but the last). The name stays, because ``embedding_layer`` is the name that keeps a row out of the
    pipeline bubble.
    """
    cells = {column: row.compute_ns(column) for column in SimaiPass}
    sizes = {column: _pieces(row, column) for column in SimaiPass}
    num_parts = max(
        *(max(1, -(-cell // (CELL_LIMIT_NS - 1))) for cell in cells.values()),
        *(len(pieces) for pieces in sizes.values()),
    )
    if num_parts == 1:
        return (row,)
    if num_parts > MAX_PARTS:
        raise ExportError(f"row {row.name!r}: would need {num_parts} parts; at most {MAX_PARTS} are written")
    parts = []
    for part in range(num_parts):
        piece = row
        for column in SimaiPass:
            pieces = sizes[column]
            # The forward visits the parts first to last, the backward last to first. So forward pieces go to the last
            # parts and backward pieces to the first: each collective still follows the compute of the whole row.
            place = part - (num_parts - len(pieces)) if column is SimaiPass.FORWARD else part
            size_bytes = pieces[place] if 0 <= place < len(pieces) else 0
            token = row.comm(column)[0]
            # the word by which the simulator books the whole part
            books = column is SimaiPass.FORWARD and read_token(token, column)[1] is SimaiGroup.EP
            piece = piece.with_pass(
                column,
                compute_ns=cells[column] * (part + 1) // num_parts - cells[column] * part // num_parts,
                comm=token if size_bytes or books else NO_COMM,
                size_bytes=size_bytes,
            )
        parts.append(piece)
    return tuple(parts)


def _pieces(row: SimaiRow, column: SimaiPass) -> tuple[int, ...]:
    """Returns sizes (bytes) that add up to the pass's collective, each within the ratio limit where that applies."""
    token, size_bytes = row.comm(column)
    collective, group = read_token(token, column)
    if collective is None or not uses_ratio(collective, group) or size_bytes <= RATIO_LIMIT_BYTES:
        return (size_bytes,)
    num_pieces = -(-size_bytes // RATIO_LIMIT_BYTES)
    if num_pieces > MAX_PARTS // 100:
        raise ExportError(f"row {row.name!r}: {token} of {size_bytes} bytes is too large to split")
    piece = -(-size_bytes // num_pieces // PIECE_BYTES) * PIECE_BYTES
    return (*[piece] * (num_pieces - 1), size_bytes - piece * (num_pieces - 1))


def write_simai(path: str | os.PathLike[str], workload: SimaiWorkload) -> int:
    """Writes ``workload`` to ``path`` and returns the number of rows.

    Rows are checked and written one by one (constant memory). Raises ExportError, and leaves an earlier file as it is,
    when the header or a row breaks a rule of ``workload.simai.check``.
    """
    header = workload.header
    check_header(header)
    # The number of rows comes before the rows in the file, and is known only once they are written.
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as body:
        count = 0
        for row in workload.rows:
            check_row(row, header, index=count)
            body.write(row.line())
            body.write("\n")
            count += 1
        if count == 0:
            raise ExportError(f"{os.fspath(path)}: a SimAI workload needs at least one row")
        segments = {"checkpoints": header.checkpoints, "checkpoint_initiates": header.checkpoint_initiates}
        _refuse(segment_findings(segments, count), "header")
        body.seek(0)
        with atomic_file(path) as handle:
            handle.write(f"{header.line()}\n{count}\n")
            shutil.copyfileobj(body, handle)
    return count
