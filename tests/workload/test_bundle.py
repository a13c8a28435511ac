"""A bundle: every file reads back, its figures are ours, and without prices it says so."""

from pathlib import Path

import pytest

import run_workload
from ops.strategies.sharding import StrategyName
from solver.plans import Plan
from spec.collectives import Collective
from spec.units import GIB
from tests.solver.flat_book import INTRA_BANDWIDTH
from tests.solver.questions import question
from workload.bundle import export_bundle
from workload.busbw_yaml import read_busbw
from workload.simai_check import check_simai
from workload.simai_reader import read_simai
from workload.simai_tokens import SimaiGroup
from workload.topology.read_topology import read_topology


def test_every_file_reads_back(tmp_path: Path) -> None:
    plan = Plan(strategy=StrategyName.MTP, preset="internevo", tp=4, pp=2, dp=2, num_micro=8)
    bundle = export_bundle(question(sequences=16), plan, tmp_path / "new" / "b")
    names = {path.name: path for path in bundle.paths}
    assert check_simai(read_simai(names["workload.txt"])) == []
    topology = next(path for name, path in names.items() if name.startswith("Spectrum"))
    read, findings = read_topology(topology)
    assert read is not None
    assert (read.num_gpus, read.gpus_per_server, findings) == (16, 8, [])
    # tp groups of 4 run inside a node at the flat book's rate, whatever the collective
    busbw = read_busbw(names["busbw.yaml"])
    rate = busbw.groups[(SimaiGroup.TP, Collective.ALL_REDUCE)]
    assert rate == pytest.approx(INTRA_BANDWIDTH / GIB, rel=1e-4)
    assert busbw.pipeline_gib is not None
    assert "-g 16 -g_p_s 8 -n_p_s 8" in names["run_simai.sh"].read_text()
    readme = names["README.md"].read_text()
    for word in ("pipeline transfers", "replay of the file", "solver's step", "SimAI closed form"):
        assert word in readme


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--model_size 7 --world_size 16 --tp_num 2 --use_flash_attn --bundle {tmp_path}/b"
    assert run_workload.main(["generate", *words.split()]) == 0
    assert "README.md" in capsys.readouterr().out
    assert "assumed, not priced" in (tmp_path / "b" / "README.md").read_text()
    (tmp_path / "file").write_text("")
    assert run_workload.main(["generate", *words.replace("/b", "/file/b").split()]) == 2
