from pathlib import Path

import pytest

from runner.replay.suite import Entry, read_suite
from spec.errors import ConfigError

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
    assert [one.generate["seq_length"] for one in entries] == [
        *[2048] * 3,
        4096,
        2048,
        2048,
        8192,
        4096,
        4096,
        2048,
    ]


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
    ("text", "said"),
    [
        ("x = 1", r"keys = \['x'\]: \[\[workload\]\] entries alone"),
        ("workload = [", "file = 'suite.toml': TOML"),
        ('[[workload]]\nname = "a b"\nfiles = ["x"]', "workload 1: name = 'a b': letters, digits"),
        ('[[workload]]\nname = "a"', "workload 1: generate = None: either generate or files"),
        ('[[workload]]\nname = "a"\nfile = "x"', "workload 1: file = 'x': one of name, generate, files"),
        ('[[workload]]\nname = "a"\nfiles = "x"', "files = 'x': a list of paths"),
        (
            '[[workload]]\nname = "a"\ngenerate = { world_size = 8 }',
            "world_size = 8: left out: the launch says it",
        ),
        (2 * '[[workload]]\nname = "a"\nfiles = ["x"]\n', "name = 'a': a name for one workload"),
    ],
)
def test_a_suite_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_suite(suite(tmp_path, text))
