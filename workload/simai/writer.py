"""Write a SimAI workload file."""

import os
import shutil
import tempfile

from spec.errors import ExportError
from spec.replaced_file import replaced_file
from workload.simai.format import SimaiWorkload
from workload.simai.rules import check_header, check_row, check_segments


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
