"""Errors of the files that this package reads: WorkloadError, which ends the reading, or findings line by line."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from spec.errors import UserError
from spec.files import UnreadableFileError, read_file_text


class WorkloadError(UserError):
    """A workload, topology, compute-time or bandwidth file that cannot be used: file, line, reason."""


def read_lines(path: Path, most_bytes: int) -> list[str]:
    """Returns the lines of a text file; WorkloadError where it cannot be read."""
    try:
        return read_file_text(path, most_bytes).splitlines()
    except UnreadableFileError as error:
        raise WorkloadError(f"{path}: {error}") from error


# Defects of a SimAI workload file, line by line.


class Severity(StrEnum):
    """Severity of a finding, worst first.

    BROKEN: the meaning of the file is unknown. STOPS: the meaning is clear, but SimAI-Analytical crashes, hangs or
    leaves an empty result. WRONG: it goes on with a wrong number without a message. NOTE: harmless, but perhaps
    unintended."""

    BROKEN = "broken"
    STOPS = "stops"
    WRONG = "wrong"
    NOTE = "note"


BROKEN, STOPS, WRONG, NOTE = Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: ``line`` counts from 1; ``code`` is the same for all defects of a kind."""

    line: int
    severity: Severity
    code: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.severity.value}: {self.message} [{self.code}]"


class Findings(list[Finding]):
    """A list of findings in the making."""

    def add(self, line: int, severity: Severity, code: str, message: str) -> None:
        """Appends one finding."""
        self.append(Finding(line, severity, code, message))


def summary_of(findings: Iterable[Finding], *, per_kind: int = 3) -> list[str]:
    """Returns the findings by line as text, at most ``per_kind`` of a kind, then how many more there are."""
    lines: list[str] = []
    seen: Counter[tuple[Severity, str]] = Counter()
    for finding in sorted(findings, key=lambda each: each.line):
        kind = (finding.severity, finding.code)
        seen[kind] += 1
        if seen[kind] <= per_kind:
            lines.append(str(finding))
    for (severity, code), count in seen.items():
        if count > per_kind:
            lines.append(f"{count - per_kind} more of {severity.value} [{code}]")
    return lines
