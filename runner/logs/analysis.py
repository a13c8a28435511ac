"""What a log says, in lines: the summary, outliers, slow ranks, pictures written."""

from pathlib import Path

from runner.logs.log import Log
from runner.logs.outliers import outlier_lines
from runner.logs.ranks_file import read_ranks, slow_ranks
from runner.logs.summary import summary_lines

LOG_ENDING = "_log"


def analysed(path: Path, pictures: Path | None) -> list[str]:
    """The lines; the pictures are drawn into their folder. Raises WorkloadError for a file that is no log."""
    log = Log.load(path)
    name = path.stem.removesuffix(LOG_ENDING)
    ranks = path.with_name(f"{name}_ranks.csv")
    slow = [one.line() for one in slow_ranks(read_ranks(ranks))] if ranks.is_file() else []
    broken = [f"the log breaks off in epoch {len(log.epoch_times)}"] if log.cut_off else []
    lines = [*summary_lines(log), *broken, *outlier_lines(log), *slow]
    if pictures is None:
        return lines
    from runner.logs.pictures import write_page

    return lines + [f"wrote {file}" for file in write_page(log, pictures, name, lines)]
