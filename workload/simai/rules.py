"""What a SimAI workload file may hold, so that the simulator neither dies, hangs nor guesses.

Every rule is a behaviour of SimAI 1.6/1.7 seen by running it; each message says what is wrong, where,
and what is allowed. ``split_row`` mends the two limits that can be mended.
"""

import math
import os
import shutil
import tempfile

from spec.collectives import Collective
from spec.errors import ExportError
from spec.files import replaced_file
from workload.simai.format import (
    GROUPS_OF_COLUMN,
    NO_COMM,
    TRANSFORMER,
    TRANSFORMER_RECOMPUTE,
    Column,
    SimaiGroup,
    SimaiHeader,
    SimaiRow,
    SimaiWorkload,
    read_token,
)

# Cells pass through a float32 and then a signed 32-bit event delay: from 2**31 - 64 on they round to
# 2**31, the delay becomes negative and the event loop never ends.
CELL_LIMIT_NS = 2**31 - 64
# The header is read with stoi, which throws from 2**31 on.
HEADER_LIMIT = 2**31
# The last row of SimAI's ratio tables; a look-up above it throws and the result file stays empty.
RATIO_LIMIT_BYTES = 16 * 2**30
SIZE_LIMIT_BYTES = 2**63
# A row cut into more parts than this (two days of compute in one cell) is a mistake, not a workload.
MAX_PARTS = 100_000
PIECE_BYTES = 2**20


def nanoseconds(time_s: float, *, what: str = "time") -> int:
    """Seconds as whole nanoseconds; ExportError when negative, infinite or not a number."""
    if not math.isfinite(time_s) or time_s < 0:
        raise ExportError(f"{what} = {time_s} s: a compute time must be finite and not negative")
    return round(time_s * 1e9)


def check_header(header: SimaiHeader) -> None:
    """Raise ExportError when line 1 would be misread."""
    if header.policy not in (TRANSFORMER, TRANSFORMER_RECOMPUTE):
        raise ExportError(
            f"header: policy {header.policy!r}: SimAI-Analytical replays only {TRANSFORMER} and {TRANSFORMER_RECOMPUTE}"
        )
    degrees = {"tp": header.tp, "ep": header.ep, "pp": header.pp, "vpp": header.vpp, "ga": header.ga}
    for key, value in {**degrees, "all_gpus": header.all_gpus}.items():
        _whole(value, f"header: {key}", low=1, high=HEADER_LIMIT)
    if header.all_gpus % (header.tp * header.pp):
        raise ExportError(
            f"header: all_gpus = {header.all_gpus} is no multiple of tp x pp = {header.tp} x {header.pp}"
        )
    if header.dp % header.ep:
        raise ExportError(
            f"header: ep = {header.ep} does not divide dp = {header.dp}; SimAI lays expert groups inside data parallel"
        )
    _whole(header.pp_comm_bytes, "header: pp_comm (bytes of one pipeline hop)", low=0, high=HEADER_LIMIT)
    if (header.pp > 1) != (header.pp_comm_bytes > 0):
        raise ExportError(
            f"header: pp_comm = {header.pp_comm_bytes} with pp = {header.pp}: it is 0 exactly when pp is 1"
        )
    _check_lists(header)


def _check_lists(header: SimaiHeader) -> None:
    lists = {"checkpoints": header.checkpoints, "checkpoint_initiates": header.checkpoint_initiates}
    for key, indices in lists.items():
        if len(indices) > 1:
            raise ExportError(
                f"header: {key} lists {len(indices)} rows: the simulator repeats the first; one is allowed"
            )
        for index in indices:
            _whole(index, f"header: {key}", low=0, high=HEADER_LIMIT)
        if indices and header.policy != TRANSFORMER_RECOMPUTE:
            raise ExportError(f"header: {key} is read only under policy {TRANSFORMER_RECOMPUTE}")
    if len(header.checkpoints) != len(header.checkpoint_initiates):
        raise ExportError("header: checkpoints and checkpoint_initiates come together or not at all")
    if header.checkpoints and header.checkpoints[0] >= header.checkpoint_initiates[0]:
        raise ExportError(
            f"header: checkpoint_initiates = {header.checkpoint_initiates[0]} does not lie behind "
            f"checkpoints = {header.checkpoints[0]}: the simulator walks back from it"
        )


def check_segments(header: SimaiHeader, *, num_rows: int) -> None:
    """Raise ExportError when a recomputed segment names a row that is not there."""
    for index in (*header.checkpoints, *header.checkpoint_initiates):
        if index >= num_rows:
            raise ExportError(f"header: recomputation names row {index}; rows are 0 to {num_rows - 1}")


def check_row(row: SimaiRow, header: SimaiHeader, *, index: int) -> None:
    """Raise ExportError when row ``index`` (from 0) would be misread or could not be priced."""
    where = f"row {index} {row.name!r}"
    if not row.name or not row.name.isprintable() or any(letter.isspace() for letter in row.name):
        raise ExportError(f"{where}: a name is one word of printable characters")
    if row.dependency != -1:
        raise ExportError(f"{where}: dependency = {row.dependency}: only -1 is known")
    _whole(row.update_ns, f"{where}: update time (ns)", low=0, high=CELL_LIMIT_NS)
    for column in Column:
        _whole(row.compute_ns(column), f"{where}: {column.value} compute (ns)", low=0, high=CELL_LIMIT_NS)
        _check_comm(row, column, header, where=f"{where}: {column.value}")


def _check_comm(row: SimaiRow, column: Column, header: SimaiHeader, *, where: str) -> None:
    token, size_bytes = row.comm(column)
    _whole(size_bytes, f"{where} size (bytes)", low=0, high=SIZE_LIMIT_BYTES)
    if token == NO_COMM:
        if size_bytes:
            raise ExportError(f"{where}: {size_bytes} bytes beside {NO_COMM}; they must be 0")
        return
    collective, group = read_token(token, column)
    if collective is None:
        raise ExportError(f"{where}: {token!r} is no communication word; SimAI would move nothing, silently")
    if group not in GROUPS_OF_COLUMN[column]:
        raise ExportError(f"{where}: {token} would be timed with the size of another group in this column")
    if header.group_ranks(group) == 1:
        raise ExportError(f"{where}: {token} over a {group.value} group of one; write {NO_COMM}")
    if size_bytes == 0:
        raise ExportError(f"{where}: {token} of 0 bytes; write {NO_COMM}")
    if uses_ratio(collective, group) and size_bytes > RATIO_LIMIT_BYTES:
        raise ExportError(
            f"{where}: {token} of {size_bytes} bytes; SimAI's ratio tables end at 16 GiB: split the row"
        )


def uses_ratio(collective: Collective, group: SimaiGroup) -> bool:
    """Whether SimAI corrects this collective by its ratio tables: tensor-parallel all-gather and
    reduce-scatter, and all-to-all over tensor or expert groups."""
    if collective is Collective.ALL_TO_ALL:
        return group in (SimaiGroup.TP, SimaiGroup.EP)
    return group is SimaiGroup.TP and collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def _whole(value: object, where: str, *, low: int, high: int) -> None:
    """``low <= value < high`` and an int (a float or a bool is not)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ExportError(f"{where} = {value!r}: must be a whole number")
    if not low <= value < high:
        raise ExportError(f"{where} = {value}: must be at least {low} and below {high}")


def split_row(row: SimaiRow) -> tuple[SimaiRow, ...]:
    """The row itself, or rows of the same name that together hold its times and bytes.

    Compute is cut into even parts below ``CELL_LIMIT_NS``, sizes under the ratio limit into pieces of
    at most 16 GiB (whole MiB but the last). The forward visits the parts first to last, the backward
    last to first, so forward pieces lie on the last parts and backward pieces on the first: each
    collective still follows the compute it follows in the whole row. The name stays, because
    ``embedding_layer`` is the name that keeps a row out of the pipeline bubble.
    """
    cells = {column: row.compute_ns(column) for column in Column}
    sizes = {column: _pieces(row, column) for column in Column}
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
        for column in Column:
            pieces = sizes[column]
            place = part - (num_parts - len(pieces)) if column is Column.FORWARD else part
            size_bytes = pieces[place] if 0 <= place < len(pieces) else 0
            piece = piece.with_pass(
                column,
                compute_ns=cells[column] * (part + 1) // num_parts - cells[column] * part // num_parts,
                comm=row.comm(column)[0] if size_bytes else NO_COMM,
                size_bytes=size_bytes,
            )
        parts.append(piece)
    return tuple(parts)


def _pieces(row: SimaiRow, column: Column) -> tuple[int, ...]:
    """Sizes (bytes) that add up to the pass's collective, each within the ratio limit where it holds."""
    token, size_bytes = row.comm(column)
    collective, group = read_token(token, column)
    if collective is None or not uses_ratio(collective, group) or size_bytes <= RATIO_LIMIT_BYTES:
        return (size_bytes,)
    num_pieces = -(-size_bytes // RATIO_LIMIT_BYTES)
    if num_pieces > MAX_PARTS // 100:
        raise ExportError(f"row {row.name!r}: {token} of {size_bytes} bytes is too large to split")
    piece = -(-size_bytes // num_pieces // PIECE_BYTES) * PIECE_BYTES
    return (*[piece] * (num_pieces - 1), size_bytes - piece * (num_pieces - 1))


# Write a SimAI workload file.


def write_simai(path: str | os.PathLike[str], workload: SimaiWorkload) -> int:
    """Write ``workload`` to ``path`` and return the number of rows.

    Rows are checked and written one by one (constant memory). Raises ExportError, leaving what was
    at ``path``, when the header or a row breaks a rule of ``workload.simai.rules``.
    """
    header = workload.header
    check_header(header)
    # The number of rows stands before them and is known only after them.
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as body:
        count = 0
        for row in workload.rows:
            check_row(row, header, index=count)
            body.write(row.line())
            body.write("\n")
            count += 1
        if count == 0:
            raise ExportError(f"{os.fspath(path)}: a SimAI workload needs at least one row")
        check_segments(header, num_rows=count)
        body.seek(0)
        with replaced_file(path) as handle:
            handle.write(f"{header.line()}\n{count}\n")
            shutil.copyfileobj(body, handle)
    return count
