"""A look at hosts before a launch: what is asked of a host, the table, and what is named as wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.launch import host_facts
from runner.launch.command import LOCAL, Launch
from runner.launch.preflight import HostState, findings, look_at_hosts, preflight, preflight_table

GPU = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "driver": "580.159.04",
    "free_mib": "81000",
    "total_mib": "81559",
    "sm_mhz": "345",
    "most_sm_mhz": "1980",
    "ecc": "0",
}
FACTS: dict[str, Any] = {
    "name": "node-1",
    "python": "3.11.7",
    "cores": 96,
    "writable": True,
    "disk_free_bytes": 500 << 30,
    "memory_free_bytes": 900 << 30,
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "nccl": "2.28.9",
    "packages": {"flash-attn": "2.8.3"},
    "gpus": [GPU] * 8,
    "nvlink": {"up": 144, "down": 0},
    "infiniband": {f"mlx5_{port}/1": "ACTIVE 400 Gb/sec (4X NDR)" for port in range(8)},
    "xid": [],
}


def host(name: str, ahead_s: float = 0.0, **changed: Any) -> HostState:
    return HostState(host=name, facts=FACTS | changed, ahead_s=ahead_s)


def with_gpu(**changed: str) -> list[dict[str, str]]:
    return [*[GPU] * 7, GPU | changed]


GOOD = [host(f"node-{number}") for number in (1, 2, 3)]


def test_hosts_that_are_well_and_alike_say_nothing() -> None:
    assert findings(GOOD, 8) == []
    rows = [line.split() for line in preflight_table(GOOD).splitlines()]
    assert rows[0][:3] == ["host", "python", "torch"]
    assert "8 x NVIDIA H100 80GB HBM3" in preflight_table(GOOD)
    assert {"144/144", "8/8", "79.1", "+0"} <= set(rows[2])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (HostState(host="x", problem="cannot be used: No route to host"), "error: x: cannot be used: No route to host"),
        (host("x", torch_problem="ImportError: libcudart"), "error: x: torch cannot be imported: ImportError: libcudart"),
        (host("x", gpus=[GPU] * 7), "error: x: 7 GPUs for 8 ranks"),
        (host("x", disk_free_bytes=1 << 20), "error: x: 0.00 GiB of disk left where results go"),
        (host("x", writable=False), "error: x: the folder of results cannot be written"),
        (host("x", torch="2.10.0"), "note: x: torch 2.10.0, on 3 others 2.11.0+cu130"),
        (host("x", packages={}), "note: x: packages absent, on 3 others flash-attn 2.8.3"),
        (host("x", gpus=with_gpu(free_mib="40000")), "note: x: GPU 7 has 49 % of its memory free: somebody else uses it"),
        (host("x", gpus=with_gpu(ecc="2")), "note: x: 2 uncorrected ECC errors: nvidia-smi -q -d ECC"),
        (host("x", gpus=with_gpu(most_sm_mhz="1410")), "note: x: clocks end at 1410 MHz, elsewhere at 1980"),
        (host("x", xid=["79 (PCI:0000:01:00)"]), "note: x: Xid 79 (PCI:0000:01:00) in the kernel's log"),
        (host("x", nvlink={"up": 142, "down": 2}), "note: x: 2 NVLinks are down"),
        (host("x", infiniband=FACTS["infiniband"] | {"mlx5_3/1": "DOWN 10 Gb/sec (4X)"}), "note: x: InfiniBand mlx5_3/1 not active"),
        (host("x", ahead_s=-3.04), "note: x: its clock is 3.0 s behind the others'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_host_is_one_line_that_names_it(state: HostState, said: str) -> None:
    assert said in [one.line() for one in findings([*GOOD, state], 8)]
    assert {one.host for one in findings([*GOOD, state], 8)} == {"x"}


TOOLS = {
    "nvidia-smi": """[ "$1" = nvlink ] && { printf 'GPU 0: H100\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: <inactive>\\n'; exit; }
[ "$1" = --query-gpu=name,driver_version,memory.free,memory.total,clocks.sm,clocks.max.sm,ecc.errors.uncorrected.volatile.total ] || exit 9
echo 'NVIDIA H100 80GB HBM3, 580.159.04, 81000, 81559, 345, 1980, 0'""",
    "dmesg": "echo '[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.'",
}


# The real one takes three seconds to import.
TORCH = """
from types import SimpleNamespace as Module
__version__, version = "2.9.1", Module(cuda="12.8")
cuda = Module(nccl=Module(version=lambda: (2, 27, 5)))
"""


def test_a_host_reports_itself_and_its_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in TOOLS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launch = Launch(words=("run",), python=sys.executable, folder=tmp_path, project=Path(host_facts.__file__).parents[2], environment={})  # fmt: skip
    (state,) = look_at_hosts(launch)
    assert (state.host, state.problem) == (LOCAL, "")
    assert abs(state.ahead_s) < 0.1
    facts = state.facts
    assert facts["gpus"] == [GPU]
    assert (facts["nvlink"], facts["xid"]) == ({"up": 1, "down": 1}, ["79 (PCI:0000:01:00)"])
    assert (facts["torch"], facts["cuda"], facts["nccl"]) == ("2.9.1", "12.8", "2.27.5")
    assert facts["disk_free_bytes"] > 0
    assert set(facts) >= set(FACTS)


def test_infiniband_ports_are_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    monkeypatch.setattr(host_facts, "INFINIBAND", tmp_path)
    assert host_facts.infiniband_facts() == {"mlx5_0/1": "ACTIVE 400 Gb/sec (4X NDR)"}


def test_a_torch_that_breaks_at_import_is_a_fact_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise AttributeError('no such symbol')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert host_facts.torch_facts() == {"torch_problem": "AttributeError: no such symbol"}


def test_a_host_without_the_program_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = Launch(words=("run",), python="/no/python", folder=tmp_path, environment={})
    assert not preflight(launch)
    line = capsys.readouterr().err
    assert line.startswith("error: this host: cannot be used: ")
    assert "/no/python" in line


def test_the_program_that_a_host_runs_needs_nothing_installed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none installed')\n")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", host_facts.__file__, "."],
        input="time\n",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
        check=True,
    )
    first, second = ran.stdout.splitlines()
    assert json.loads(first)["python"]
    assert "none installed" in json.loads(first)["torch_problem"]
    assert float(second) > 1e9
