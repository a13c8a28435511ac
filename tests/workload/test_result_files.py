"""A verb writes no result over a file that it reads, or over another result."""

from pathlib import Path

import pytest

import run_workload
from tests.workload.generator import ROOT

GENERATE = ["generate", "--model_size", "7", "--world_size", "16", "--tp_num", "2", "--frame", "Megatron"]
TOPOLOGY = ["topology", "-topo", "DCN+", "-g", "64", "-gt", "H200", "-bw", "100Gbps"]


def refused(words: list[str], capsys: pytest.CaptureFixture[str], said: str) -> None:
    assert run_workload.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_an_input_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tmp_path / "w.txt"
    assert run_workload.main([*GENERATE, "--output", str(workload)]) == 0
    before = workload.read_bytes()
    capsys.readouterr()
    (tmp_path / "link.json").symlink_to(workload)
    for path in (workload, tmp_path / "link.json"):
        refused(["simulate", str(workload), "--json", str(path)], capsys, "another file than that of --file")
    assert workload.read_bytes() == before
    config = tmp_path / "m.py"
    config.write_bytes((ROOT / "configs" / "7B_llama2.py").read_bytes())
    words = ["generate", "--config", str(config), "--world_size", "16", "--output", str(config)]
    refused(words, capsys, "another file than that of --config")


def test_two_results_are_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(tmp_path / "t")
    refused([*TOPOLOGY, "-o", one, "--picture", one], capsys, "--picture: output path")
    flows = ["traffic", "--dp", "8", "--group", "dp", "--collective", "all_reduce", "--size_bytes", "1024"]
    refused([*flows, "--csv", one, "--picture", one], capsys, "--picture: output path")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TOPOLOGY, "-o", str(tmp_path / "absent" / "t")]
    refused(words, capsys, "a file in a folder that exists")
