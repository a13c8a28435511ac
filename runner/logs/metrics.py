"""The state of a long run as OpenMetrics text, for a collector that reads files (Prometheus' node exporter)."""

from dataclasses import dataclass
from pathlib import Path

from spec.files import atomic_file

FORM = """# TYPE pss_{what}_seconds gauge
# UNIT pss_{what}_seconds seconds
# HELP pss_{what}_seconds Duration of the last {what}.
pss_{what}_seconds{{run="{run}"}} {last}
# TYPE pss_{what}s counter
# HELP pss_{what}s Finished {what}s.
pss_{what}s_total{{run="{run}"}} {count}
# TYPE pss_{what}_time_seconds counter
# UNIT pss_{what}_time_seconds seconds
# HELP pss_{what}_time_seconds Duration of all finished {what}s.
pss_{what}_time_seconds_total{{run="{run}"}} {total}
# EOF
"""


@dataclass(slots=True, kw_only=True)
class RunMetrics:
    """The file of a ``run``, written anew after each of its ``what`` (step, iteration)."""

    path: Path
    run: str
    what: str
    count: int = 0
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one more and writes. Raises ExportError as atomic_file."""
        self.count += 1
        self.total_s += seconds
        run = self.run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        text = FORM.format(what=self.what, run=run, last=seconds, count=self.count, total=self.total_s)
        with atomic_file(self.path) as handle:
            handle.write(text)
