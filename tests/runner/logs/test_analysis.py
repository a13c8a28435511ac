from pathlib import Path

from runner.logs.analysis import analysed, write_ranks
from runner.logs.log import LogFile
from tests.runner.logs.test_log import ROWS
from tests.runner.logs.test_ranks_file import times


def test_a_log_with_its_ranks_and_pictures(tmp_path: Path) -> None:
    with LogFile(tmp_path / "a_log.csv") as file:
        file.add(ROWS[:4])
    write_ranks(tmp_path / "a_ranks.csv", [times(0, 1.0), times(1, 2.0)])
    lines = analysed(tmp_path / "a_log.csv", tmp_path / "pics")
    assert "the log breaks off in epoch 1" in lines
    assert any(line.startswith("slow: rank 1 of stage 0") for line in lines)
    assert sorted(path.name for path in (tmp_path / "pics").iterdir()) == [
        *("a.html", "a_bandwidth.png", "a_iterations.png", "a_operations.png")
    ]
    assert lines[-1] == f"wrote {tmp_path / 'pics' / 'a.html'}"
