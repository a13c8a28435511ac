"""A bundle: every file reads back, its figures are ours, and without prices it says so."""

import subprocess
from pathlib import Path

import pytest

import run_workload
from solver.plans.plan_table import Plan
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.units import GIB
from tests.solver.flat_book import INTRA_BANDWIDTH
from tests.solver.questions import ROOT, question
from workload.bundle.bundle import export_bundle, simai_network_of
from workload.simai.check import check_simai
from workload.simai.closed_form.busbw_yaml import read_busbw
from workload.simai.reader import read_simai
from workload.simai.tokens import SimaiGroup
from workload.topology.read_topology import read_topology


def test_every_file_reads_back(tmp_path: Path) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=4, pp=2, dp=2, num_micro=8)
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


def test_the_commands_run_in_a_checkout_with_the_options_simai_has(tmp_path: Path) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=4, dp=4, num_micro=2)
    folder = tmp_path / "with a blank"
    export_bundle(question(sequences=8), plan, folder)
    checkout = tmp_path / "checkout"
    (checkout / "bin").mkdir(parents=True)
    for name in ("SimAI_analytical", "SimAI_simulator"):
        program = checkout / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {name}.words\n')
        program.chmod(0o755)
    script = folder / "run_simai.sh"
    ran = subprocess.run(
        ["sh", script], cwd=checkout, env={"BUNDLE": str(folder), "PATH": "/bin:/usr/bin"}, check=False
    )
    assert ran.returncode == 0
    assert (checkout / "results").is_dir()
    predicted = {
        name: (checkout / f"{name}.words").read_text().splitlines()
        for name in ("SimAI_analytical", "SimAI_simulator")
    }
    analytical = dict(
        zip(predicted["SimAI_analytical"][::2], predicted["SimAI_analytical"][1::2], strict=True)
    )
    assert set(analytical) == {"-w", "-g", "-g_p_s", "-n_p_s", "-nv", "-nic", "-r"}
    ns3 = dict(zip(predicted["SimAI_simulator"][::2], predicted["SimAI_simulator"][1::2], strict=True))
    assert set(ns3) == {"-t", "-w", "-n", "-c"}
    for path in (analytical["-w"], ns3["-w"], ns3["-n"]):
        assert Path(path).is_file()
    assert subprocess.run(
        ["sh", script], cwd=checkout, env={"PATH": "/bin:/usr/bin"}, capture_output=True, check=False
    ).returncode


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--model_size 7 --world_size 16 --tp_num 2 --use_flash_attn --bundle {tmp_path}/b"
    assert run_workload.main(["generate", *words.split()]) == 0
    assert "README.md" in capsys.readouterr().out
    assert "assumed, not priced" in (tmp_path / "b" / "README.md").read_text()
    (tmp_path / "file").write_text("")
    assert run_workload.main(["generate", *words.replace("/b", "/file/b").split()]) == 2


@pytest.mark.parametrize(
    ("name", "servers", "nics"), [("aws-p4d", 8, 8), ("h100-sxm", 8, 8), ("gb200-nvl72", 72, 72)]
)
def test_simai_is_told_a_nic_for_every_gpu(name: str, servers: int, nics: int) -> None:
    cluster = read_cluster(name, root=ROOT)
    network = simai_network_of(cluster)
    assert (network.gpus_per_server, network.nics_per_server) == (servers, nics)
    # whatever NICs a server has, its way out is as wide
    assert network.nic_gib * nics == pytest.approx(cluster.domains[-1].bandwidth * servers / GIB)
