"""The tables of docs/accuracy.md are what the benchmarks printed, and what no run prints stays."""

from pathlib import Path

import pytest

from benchmarks.accuracy_page import TABLES, PrintedRuns, main, updated_page
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent

CURVES = """
80 % interval             rows  below %  inside %  above %  half-width %  mean %  score %
small                        2      0.0     100.0      0.0          14.1    15.0     30.2
large                       30      3.3      83.4     13.3           9.2     9.9     24.4
all rows                    32      3.1      84.4     12.5           9.5    10.1     25.0

80 % interval, new        rows  below %  inside %  above %  half-width %  mean %  score %
fresh                        4      0.0      75.0     25.0          28.1    28.5     60.3
all rows                     4      0.0      75.0     25.0          28.1    28.5     60.3

calibrated                          rows  before %  after 1 %  after 3 %  after 5 %  one factor %  by cause %  half-width %  score %
large                                 30      6.2       5.8       4.2       4.0          3.5         3.1         80.1         79.2         79.6           8.8     20.1
macro mean                                    6.2       5.8       4.2       4.0          3.5         3.1         80.1         79.2         79.6           8.8     20.1
all rows, moved by the share of the drawn rows' median miss that is best for them: 5.9 %

large from small          jobs  rows  before %  after %
large                        2     7       4.0      1.4

calibrated, new                     rows  before %  after 1 %  after 3 %  after 5 %  one factor %  by cause %  half-width %  score %
fresh                                  4     14.2      13.0      11.1      10.5          9.8         7.8         78.0         79.0         79.7          19.8     70.0

large from small, new     jobs  rows  before %  after %
fresh                        1     3      22.8      5.3

dataset                 n  cover   MAPE%  medAPE%  p90APE%   bias%  gbias%  R2(log)
large                  30   100%    6.19     4.23    12.72   -4.79   -5.09   0.8853
small                   2   100%   12.06    10.72    15.02   +1.33   +2.06   0.9687
ALL (row-weighted)     32   100%    6.55     5.35    20.66   -5.91   -7.58   0.9776
macro mean of dataset MAPEs: 6.19% over 1 datasets with >= 9 rows, 9.13% over all 2

plan ranking
dataset              groups  plans  rho mean  rho med  pairs regret mean%   p90%   max% top1 hit spread med
large                     3     30     0.863    0.912  0.886         6.17   14.7   24.8      40%       1.34
ALL                       3     30     0.863    0.912  0.886         6.17   14.7   24.8      40%       1.34

memory
dataset                 n  cover   MAPE%   med%   max%   bias%
large                  21   100%    3.94   1.90   32.1   -2.75
"""
SHIPPED = CURVES.replace("6.19     4.23", "8.26     4.23").replace("6.19%", "8.26%").replace("-5.09", "-7.11")


def empty_page() -> str:
    tables = "\n\n".join(f"{head} further |\n|---|---|\n| large | stale | 8 | SimuMax 5.6 |" for head in TABLES)
    return f"# Accuracy\n\n{tables}\n\nThe end.\n"


def runs() -> PrintedRuns:
    return PrintedRuns(CURVES.splitlines(), SHIPPED.splitlines())


def test_every_table_is_written_from_what_was_printed() -> None:
    page = updated_page(empty_page(), runs())
    rows = [line for line in page.splitlines() if line.startswith("| ") and "further" not in line]
    assert rows == [
        "| large | 30 | 6.2 | -5.1 | 8.3 | -7.1 | 8 | SimuMax 5.6 |",
        "| small | 2 | 12.1 | +2.1 | 12.1 | +2.1 |  |  |",
        "| **macro mean, 9 rows and more** |  | **6.2** |  | **8.3** |  |  |  |",
        "| large | 3 | 30 | 0.863 | 6.2 | 0.863 | 6.2 |",
        "| ALL | 3 | 30 | 0.863 | 6.2 | 0.863 | 6.2 |",
        "| large | 21 | 3.9 | -2.8 |",
        "| large | 30 | 83 | 13 | 9.2 | 9.9 | 24.4 |",
        "| all rows | 32 | 84 | 12 | 9.5 | 10.1 | 25.0 |",
        "| fresh | 4 | 75 | 25 | 28.1 | 28.5 | 60.3 |",
        "| all rows | 4 | 75 | 25 | 28.1 | 28.5 | 60.3 |",
        "| large | 30 | 6.2 | 5.8 | 4.2 | 4.0 | 3.5 | 3.1 | 80.1 | 79.2 | 79.6 | 8.8 | 20.1 |",
        "| macro mean |  | 6.2 | 5.8 | 4.2 | 4.0 | 3.5 | 3.1 | 80.1 | 79.2 | 79.6 | 8.8 | 20.1 |",
        "| fresh | 4 | 14.2 | 13.0 | 11.1 | 10.5 | 9.8 | 7.8 | 78.0 | 79.0 | 79.7 | 19.8 | 70.0 |",
        "| large | 2 | 7 | 4.0 | 1.4 |",
        "| fresh | 1 | 3 | 22.8 | 5.3 |",
    ]
    assert page.endswith("\n\nThe end.\n")
    assert updated_page(page, runs()) == page


def test_the_page_of_the_project_has_every_table() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert "| large | 30 | 6.2 | -5.1 |" in updated_page(page, runs())


def test_runs_of_different_datasets_are_refused() -> None:
    other = PrintedRuns(CURVES.splitlines(), SHIPPED.replace("small", "smaller").splitlines())
    with pytest.raises(ConfigError, match="small, smaller"):
        updated_page(empty_page(), other)


@pytest.mark.parametrize("head", TABLES)
def test_a_table_that_the_page_lacks_is_refused(head: str) -> None:
    with pytest.raises(ConfigError, match="once in the page"):
        updated_page(empty_page().replace(head, "| other |"), runs())


def test_a_table_that_was_not_printed_is_refused() -> None:
    uncalibrated = CURVES.replace("calibrated  ", "nothing  ")
    with pytest.raises(ConfigError, match="calibrated, known source"):
        updated_page(empty_page(), PrintedRuns(uncalibrated.splitlines(), SHIPPED.splitlines()))


def test_a_page_is_left_as_it_was_where_nothing_was_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, printed = tmp_path / "page.md", tmp_path / "printed.txt"
    page.write_text(empty_page(), encoding="utf-8")
    printed.write_text("nothing\n", encoding="utf-8")
    asked = [f"--{name}={printed}" for name in ("curves", "shipped")]
    assert main([*asked, f"--page={page}"]) == 2
    assert "error: " in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == empty_page()


@pytest.mark.parametrize("name", ["curves", "shipped", "page"])
def test_what_is_no_text_is_refused_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {one: tmp_path / one for one in ("curves", "shipped", "page")}
    for path in files.values():
        path.write_text("a line\n", encoding="utf-8")
    files[name].write_bytes(b"\x89PNG\r\n\xff")
    assert main([f"--{one}={path}" for one, path in files.items()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --{name} {files[name]}")
    assert said.count("\n") == 1
    assert files[name].read_bytes() == b"\x89PNG\r\n\xff"
