"""The verbs as a user meets them: output, exit codes, one clear line for every mistake."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import run_workload
from profdb.modelled.network.links import CommGroup
from profdb.modelled.network.send_recv import all_to_all_seconds
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import save_profile
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.units import MIB
from tests.workload.simai_lines import GOOD, LONG, SHORT, cell

ROOT = Path(run_workload.__file__).parent
Golden = Callable[[str, str], None]
SERVERS = ["-g_p_s", "8", "-n_p_s", "8", "-g_type", "H100"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a good and a bad workload, as the working folder so that no path of this machine is printed."""
    monkeypatch.chdir(tmp_path)
    large = [
        cell(4, str(2**26)),
        cell(7, str(2**28)).replace("REDUCESCATTER_DP_EP\t4096", f"REDUCESCATTER_DP_EP\t{2**30}"),
    ]
    (tmp_path / "good.txt").write_text("\n".join([LONG, "2", *large]) + "\n")
    bad = [cell(3, "allreduce"), cell(2, "1.5"), GOOD + "\t7", cell(5, "2147483648"), GOOD]
    (tmp_path / "bad.txt").write_text("\n".join([LONG.replace("ga: 4 ", ""), "9", *bad]) + "\n")
    (tmp_path / "short.txt").write_text(f"{SHORT}\n1\n{GOOD}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("check_good", ["check", "good.txt"], 0),
        ("check_bad", ["check", "bad.txt"], 1),
        ("check_short", ["check", "short.txt"], 1),
        ("simulate", ["simulate", "good.txt", *SERVERS, "-dp_o", "0.5"], 0),
        ("topology_hpn", ["topology", "-topo", "AlibabaHPN", "--dp", "-g", "16", "-psn", "4"], 0),
        ("groups", ["groups", "--tp", "2", "--ep", "2", "--dp", "4", "--pp", "2"], 0),
        (
            "traffic",
            [
                *["traffic", "--tp", "4", "--dp", "4", "--group", "dp", "--collective", "all2all"],
                *["--size_bytes", "4096", "--algorithm", "hierarchical", "--domain_ranks", "8"],
            ],
            0,
        ),
    ],
)
def test_output(
    name: str, arguments: list[str], code: int, folder: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert run_workload.main(arguments) == code
    written = capsys.readouterr()
    golden(f"workload/{name}.txt", written.out + written.err)


def test_a_small_topology_to_the_letter(folder: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    flags = ["-topo", "DCN+", "--dt", "-g", "8", "-gps", "4", "-psn", "2", "-npa", "4"]
    assert run_workload.main(["topology", *flags, "-o", "."]) == 0
    path = folder / "DCN+DualToR_8g_4gps_200Gbps_H100"
    golden("workload/topology_dcn_file.txt", path.read_text())
    capsys.readouterr()
    assert run_workload.main(["topology", "--check", path.name]) == 0
    golden("workload/topology_check.txt", capsys.readouterr().out)


@pytest.mark.usefixtures("quick_pictures")
def test_files_are_written(folder: Path) -> None:
    assert run_workload.main(["simulate", "good.txt", *SERVERS, "--json", "out.json"]) == 0
    record = json.loads((folder / "out.json").read_text())
    parts = sum(value for key, value in record.items() if key.endswith("_s") and key != "step_s")
    assert record["step_s"] == pytest.approx(parts)
    traffic = ["traffic", "--tp", "4", "--group", "tp", "--collective", "all_gather", "--size_bytes", "64"]
    assert run_workload.main([*traffic, "--csv", "flows.csv", "--picture", "map.png"]) == 0
    assert (folder / "flows.csv").read_text().count("\n") == 5
    assert run_workload.main(["topology", "-topo", "NVL", "-o", "t", "--picture", "t.png"]) == 0
    assert run_workload.main(["topology", "--check", "t"]) == 0
    for name in ("map.png", "t.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_binarys_options_and_its_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_names = ["-g_p_s", "8", "-n_p_s", "8", "--gpu_type", "H100", "--nic_type", "cx7", "--dp_overlap", "0.5"]
    assert run_workload.main(["simulate", "good.txt", *SERVERS, "-dp_o", "0.5", "-r", "a-", "-v", "1"]) == 0
    shown = capsys.readouterr()
    assert "wrote results/a-EndToEnd.csv" in shown.out
    assert "-v changes nothing: no chart is drawn here" in shown.err
    words = ["simulate", "-w", "good.txt", *long_names, "-r_f", "deep", "--rows", "rows.csv", "--lang", "en"]
    assert run_workload.main(words) == 0
    assert "wrote rows.csv\nwrote results/deep/good-EndToEnd.csv" in capsys.readouterr().out
    first = (folder / "results" / "a-EndToEnd.csv").read_text().splitlines()
    second = (folder / "results" / "deep" / "good-EndToEnd.csv").read_text().splitlines()
    assert first[1].replace("a-, ", "good-, ") == second[1]
    assert first[2:] == second[2:] == (folder / "rows.csv").read_text().splitlines()
    assert len(first) == 2 + 1 + 2


def test_a_defect_is_never_priced_in_silence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "odd.txt").write_text("\n".join([LONG, "1", cell(3, "allreduce"), GOOD]))
    assert run_workload.main(["simulate", "odd.txt", *SERVERS]) == 0
    complaints = capsys.readouterr().err
    assert "1 rows announced, 2 found; SimAI ignores the rest" in complaints
    assert "'allreduce' is lower case" in complaints


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "VERB"),
        (["dance"], "dance"),
        (["check"], "file"),
        (["check", "absent.txt"], "absent.txt: no such file"),
        (["simulate", "good.txt"], "-g_p_s"),
        (["simulate", *SERVERS], "or -w FILE"),
        (["simulate", "good.txt", "-w", "good.txt", *SERVERS], "or -w FILE"),
        (["simulate", "good.txt", "--pricing", "curves", "--rows", "r.csv"], "-g_p_s"),
        (["simulate", "good.txt", *SERVERS, "--rows", "no/where.csv"], "a file in a folder that exists"),
        (["simulate", "good.txt", *SERVERS, "-r_f", "../good.txt"], "cannot be"),
        (["simulate", "good.txt", *SERVERS, "-gp 3"], "-gp"),
        (["simulate", "good.txt", "-g_p_s", "8", "-n_p_s", "8"], "-g_type"),
        (["simulate", "good.txt", *SERVERS, "-g", "31"], "multiple"),
        (["simulate", "good.txt", *SERVERS, "-pp_o", "0.5"], "bandwidth"),
        (["simulate", "good.txt", *SERVERS, "-busbw", "absent"], "absent"),
        (["simulate", "good.txt", *SERVERS, "--ratio_dir", "absent"], "nic_ratio.csv"),
        (["simulate", "good.txt", *SERVERS, "--json", "no/where.json"], "a file in a folder that exists"),
        (["simulate", "short.txt", *SERVERS], "no all_gpus: give the world as -g"),
        (["simulate", "bad.txt", *SERVERS], "no ga"),
        (["topology", "-topo", "Star"], "known: Spectrum-X"),
        (["topology", "-topo", "Spectrum-X", "-g", "many"], "whole number"),
        (["topology", "-topo", "NVL", "-o", "no/where"], "a file in a folder that exists"),
        (["topology", "-topo", "DCN+", "-o", "t", "--picture", "t.png"], "at most 400"),
        (["topology", "--check", "good.txt.none"], "no topology file"),
        (["groups", "--group", "ep"], "independent_ep"),
        (
            ["traffic", "--tp", "2", "--group", "tp", "--collective", "all2all", "--size_bytes", "-1"],
            "'-1' is not a whole number from 1",
        ),
    ],
)
def test_mistakes(arguments: list[str], match: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_workload.main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1
    assert match in complaint


def test_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workload.verbs.read_simai", interrupted)
    assert run_workload.main(["check", "good.txt"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_stops_reading() -> None:
    command = f"{sys.executable} {ROOT / 'run_workload.py'} groups --dp 16384 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    # head may leave before or after all is written
    assert done.stderr in ("", "error: stdout: cannot be written: Broken pipe\n")
    assert done.stdout.startswith("tp: 16384 groups of 1")


@pytest.mark.parametrize(("segment", "intra"), [("0", 64), ("64", 64), ("32", 32), ("4", 4)])
def test_a_replay_lays_experts_on_the_segment_of_an_nvlink_domain(segment: str, intra: int, folder: Path) -> None:
    """128 GPUs of two GB200 racks: 64 ranks exchange inside one of them, or over two segments of 32 or
    sixteen nodes of 4.
    """
    machine = MachineFacts(gpu="GB200-186GB", cluster="gb200-nvl72")
    save_profile(folder / "p.pt", ProfileDatabase(machine=machine, samples=()))
    header = LONG.replace("ep: 2", "ep: 64").replace("all_gpus: 32", "all_gpus: 128")
    for word in ("group: 2", " pp: 2", "ga: 4"):
        header = header.replace(word, f"{word[:-1]}1")
    header = header.replace("comm: 4096", "comm: 0")
    row = f"experts\t-1\t10\tALLTOALL_EP\t{256 * MIB}\t0\tNONE\t0\t0\tNONE\t0\t100"
    (folder / "experts.txt").write_text(f"{header}\n1\n{row}\n")
    words = ["simulate", "experts.txt", "--profile", "p.pt", "--missing", "modelled", "--json", "out.json"]
    assert run_workload.main([*words, "--nvlink_segment", segment]) == 0
    sheet = read_cluster("gb200-nvl72", root=ROOT)
    sheet = replace(sheet, domains=(replace(sheet.domains[0], ranks=intra), *sheet.domains[1:]))
    shape = CommGroup(intra=ints(intra), inter=ints(64 // intra), siblings=ints(1))
    expected = float(all_to_all_seconds(sheet, np.array([256.0 * MIB]), shape)[0])
    assert json.loads((folder / "out.json").read_text())["ep_s"] == pytest.approx(expected, rel=1e-9)


def test_a_segment_that_does_not_divide_the_world_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = MachineFacts(gpu="GB200-186GB", cluster="gb200-nvl72")
    save_profile(folder / "p.pt", ProfileDatabase(machine=machine, samples=()))
    words = ["simulate", "good.txt", "--profile", "p.pt", "--missing", "modelled", "--nvlink_segment", "12"]
    assert run_workload.main(words) == 2
    assert "simulate: nvlink_segment = 12" in capsys.readouterr().err
