"""A suite in this one process."""

from pathlib import Path

import pytest

from profiler.distributed.rank_layout import RankLayout
from runner.replay.operations import ComputeMode
from runner.replay.run import ReplayOptions
from runner.replay.suite import Entry, parse_finished, read_suite, run_suite
from spec.errors import ConfigError
from tests.runner.replay.test_program import END
from workload.aicb.csv_workload import GeneralItem, Workload
from workload.diagnostics import WorkloadError

ROOT = Path(__file__).resolve().parents[3]
AICB = ROOT / "configs" / "suites" / "aicb.toml"

TINY = """
[[workload]]
name = "tiny"
generate = { num_layers = 2, hidden_size = 32, num_attention_heads = 4, seq_length = 16, global_batch = 2,
  tensor_model_parallel_size = 2, pipeline_model_parallel = 2, enable_sequence_parallel = true }
""".replace(",\n ", ",")


def suite(tmp_path: Path, text: str) -> Path:
    (tmp_path / "suite.toml").write_text(text)
    return tmp_path / "suite.toml"


def test_aicbs_ten_rows() -> None:
    # github.com/aliyun/aicb README, benchmark suite: tp, pp by row
    entries = read_suite(AICB)
    degrees = [
        (one.generate.get("tensor_model_parallel_size", 1), one.generate.get("pipeline_model_parallel", 1))
        for one in entries
    ]
    assert degrees == [(1, 1), (2, 1), (4, 1), (8, 2), (8, 8), (8, 8), (8, 16), (1, 1), (1, 1), (2, 1)]
    lengths = [2048, 2048, 2048, 4096, 2048, 2048, 8192, 4096, 4096, 2048]
    assert [one.generate["seq_length"] for one in entries] == lengths


@pytest.mark.nightly
@pytest.mark.parametrize("entry", read_suite(AICB), ids=lambda one: one.name)
def test_every_row_is_a_run_of_128_ranks(entry: Entry) -> None:
    work = entry.read(128, ROOT, computation=False)
    assert work.degrees.world_size == 128
    assert len(work.programs) == work.degrees.pp
    assert all(program.everything for program in work.programs)


def test_generated_rows_are_those_of_every_stage(tmp_path: Path) -> None:
    (entry,) = read_suite(suite(tmp_path, TINY))
    work = entry.read(4, ROOT, computation=True)
    assert (work.name, [one.stage for one in work.programs], work.degrees.tp) == ("tiny", [0, 1], 2)
    assert any(launch.item.comm_type == "computation" for launch in work.programs[0].everything)
    bare = entry.read(4, ROOT, computation=False)
    assert all(launch.ranks for launch in bare.programs[0].everything)
    assert bare.digest != work.digest


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("x = 1", r"keys = \['x'\]: \[\[workload\]\] entries alone"),
        ("workload = [", "file = 'suite.toml': TOML"),
        ('[[workload]]\nname = "a b"\nfiles = ["x"]', "workload 1: name = 'a b': letters, digits"),
        ('[[workload]]\nname = "a"', "workload 1: generate = None: either generate or files"),
        ('[[workload]]\nname = "a"\nfile = "x"', "workload 1: file = 'x': one of name, generate, files"),
        ('[[workload]]\nname = "a"\nfiles = "x"', "files = 'x': a list of paths"),
        ('[[workload]]\nname = "a"\ngenerate = { world_size = 8 }', "world_size = 8: left out: the launch says it"),
        (2 * '[[workload]]\nname = "a"\nfiles = ["x"]\n', "name = 'a': a name for one workload"),
    ],
)
def test_a_suite_that_cannot_be_used(tmp_path: Path, text: str, error_text: str) -> None:
    with pytest.raises(ConfigError, match=error_text):
        read_suite(suite(tmp_path, text))


SUITE = """
[[workload]]
name = "one"
files = ["one.csv"]
[[workload]]
name = "large"
files = ["large.csv"]
"""
PRODUCT = GeneralItem(comm_type="computation", shapes=((4, 4), (4, 4)))


@pytest.fixture
def entries(tmp_path: Path) -> tuple[Entry, ...]:
    for name, world in (("one", 1), ("large", 64)):
        Workload(items=[END, PRODUCT, END]).write(tmp_path / f"{name}.csv", {"world_size": world})
    (tmp_path / "suite.toml").write_text(SUITE)
    return read_suite(tmp_path / "suite.toml")


def table(entries: tuple[Entry, ...], results: Path) -> list[str]:
    options = ReplayOptions(results=results, device="cpu", compute=ComputeMode.REAL, dtype="fp32", quiet=True)
    return run_suite(entries, options, results, RankLayout())


def test_what_is_done_is_not_run_again(
    entries: tuple[Entry, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    first = table(entries, results)
    assert first[1].split()[:2] == ["one", "1"]
    assert first[2].split(maxsplit=1) == [
        "large",
        "left out: run: processes = 1: 64, the ranks of the workload: start as many (torchrun --nproc-per-node)",
    ]
    assert "--- one (1 of 2)" in capsys.readouterr().out
    log = results / "comm_logs" / "one_log.csv"
    before = log.stat().st_mtime_ns
    again = table(entries, results)
    assert again[1] == f"{first[1]} (done before)"
    assert ("--- one" in capsys.readouterr().out, log.stat().st_mtime_ns) == (False, before)


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}'])
def test_another_file_of_what_is_done_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="is not a list of finished workloads"):
        parse_finished(text, Path("suite_done.json"))
