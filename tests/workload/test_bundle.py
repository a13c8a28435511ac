"""A bundle: every file reads back, its figures are ours, and without prices it says so."""

import shlex
import subprocess
from pathlib import Path

import pytest

import run_workload
from solver.plans.plan_table import Plan
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.units import GIB
from tests.solver.flat_cost_model import INTRA_BANDWIDTH
from tests.solver.questions import ROOT, question
from workload.bundle import cluster_topology, export_bundle, simai_network_of
from workload.simai.busbw import SHIPPED, read_busbw, read_ratio_tables, single
from workload.simai.check import check_simai
from workload.simai.format import SimaiGroup
from workload.simai.reader import read_simai
from workload.topology.topology import bandwidth_bits, read_topology

RATIOS = read_ratio_tables(ROOT / SHIPPED)


def test_every_file_reads_back(tmp_path: Path) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=4, pp=2, dp=2, num_micro=8)
    bundle = export_bundle(question(sequences=16), plan, tmp_path / "new" / "b", RATIOS)
    names = {path.name: path for path in bundle.paths}
    assert check_simai(read_simai(names["workload.txt"])) == []
    topology = next(path for name, path in names.items() if name.startswith("Spectrum"))
    read, findings = read_topology(topology)
    assert read is not None
    assert (read.num_gpus, read.gpus_per_server, findings) == (16, 8, [])
    # tp groups of 4 run inside a node at the flat cost model's rate, whatever the collective
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
    export_bundle(question(sequences=8), plan, folder, RATIOS)
    checkout = tmp_path / "checkout"
    (checkout / "bin").mkdir(parents=True)
    for name in ("SimAI_analytical", "SimAI_simulator"):
        program = checkout / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {name}.words\nenv > {name}.env\n')
        program.chmod(0o755)
    script = folder / "run_simai.sh"
    ran = subprocess.run(
        ["sh", script], cwd=checkout, env={"BUNDLE": str(folder), "PATH": "/bin:/usr/bin"}, check=False
    )
    assert ran.returncode == 0
    assert (checkout / "results").is_dir()
    # its own latency table: AS_SEND_LAT is above it, and in nanoseconds
    assert "AS_SEND_LAT" not in (checkout / "SimAI_simulator.env").read_text()
    predicted = {
        name: (checkout / f"{name}.words").read_text().splitlines() for name in ("SimAI_analytical", "SimAI_simulator")
    }
    analytical = dict(zip(predicted["SimAI_analytical"][::2], predicted["SimAI_analytical"][1::2], strict=True))
    assert set(analytical) == {"-w", "-g", "-g_p_s", "-n_p_s", "-nv", "-nic", "-r"}
    ns3 = dict(zip(predicted["SimAI_simulator"][::2], predicted["SimAI_simulator"][1::2], strict=True))
    assert set(ns3) == {"-t", "-w", "-n", "-c"}
    for path in (analytical["-w"], ns3["-w"], ns3["-n"]):
        assert Path(path).is_file()
    assert subprocess.run(
        ["sh", script], cwd=checkout, env={"PATH": "/bin:/usr/bin"}, capture_output=True, check=False
    ).returncode


def test_the_readme_quotes_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are given to the last digit of a C++ float: rounded ones would print another step."""
    plan = Plan(strategy="fsp", preset="internevo", tp=4, pp=2, dp=2, num_micro=8)
    bundle = export_bundle(question(sequences=16), plan, tmp_path, RATIOS)
    script = (tmp_path / "run_simai.sh").read_text()
    words = shlex.split(next(line for line in script.splitlines() if "SimAI_analytical" in line))[1:]
    words[words.index("-w") + 1] = str(tmp_path / "workload.txt")
    del words[words.index("-r") :]
    assert run_workload.main(["simulate", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    readme = next(path for path in bundle.paths if path.name == "README.md").read_text()
    assert "\n".join(f"    {line}" for line in shown) in readme
    network = simai_network_of(question().cluster)
    assert (single(float(words[words.index("-nv") + 1])), single(float(words[words.index("-nic") + 1]))) == (
        network.nvlink_gib,
        network.nic_gib,
    )


@pytest.mark.parametrize(
    ("name", "world", "gpus"),
    [
        ("h100-sxm", 12, 16),
        ("h100-sxm", 16384, 16384),  # more than the 4,096 of SimAI's own pod
        ("gb200-nvl72", 36, 72),
        ("gb200-nvl72", 576, 576),
    ],
)
def test_the_topology_is_as_large_as_the_workload(name: str, world: int, gpus: int) -> None:
    cluster = read_cluster(name, root=ROOT)
    topology = cluster_topology(cluster, world)
    assert (topology.num_gpus, topology.gpus_per_server) == (gpus, cluster.server_ranks)
    # all NVLinks of a GPU together are as wide as the sheet's domain
    wires = [link.wire for link in topology.links if link.src == 0 and link.dst < gpus + topology.num_nv_switches]
    assert sum(bandwidth_bits(wire.bandwidth) for wire in wires) == pytest.approx(
        cluster.domains[0].bandwidth * 8, rel=1e-3
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--model_size 7 --world_size 16 --tp_num 2 --use_flash_attn --bundle {tmp_path}/b"
    assert run_workload.main(["generate", *words.split()]) == 0
    assert "README.md" in capsys.readouterr().out
    assert "assumed, not priced" in (tmp_path / "b" / "README.md").read_text()
    (tmp_path / "file").write_text("")
    assert run_workload.main(["generate", *words.replace("/b", "/file/b").split()]) == 2


@pytest.mark.parametrize(("name", "servers", "nics"), [("aws-p4d", 8, 8), ("h100-sxm", 8, 8), ("gb200-nvl72", 72, 72)])
def test_simai_is_told_a_nic_for_every_gpu(name: str, servers: int, nics: int) -> None:
    cluster = read_cluster(name, root=ROOT)
    network = simai_network_of(cluster)
    assert (network.gpus_per_server, network.nics_per_server) == (servers, nics)
    # whatever NICs a server has, its way out is as wide
    assert network.nic_gib * nics == pytest.approx(cluster.domains[-1].bandwidth * servers / GIB)
