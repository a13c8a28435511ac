"""State of this host as one line of JSON, for a look at all hosts before a launch: python host_facts.py FOLDER.

After that line it answers each line of its input with its clock. A program of its own that needs nothing installed: it has to
say what is missing. Sources: nvidia-smi --help-query-gpu; Linux, Documentation/ABI/stable/sysfs-class-infiniband.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ANSWER_S = 20
INFINIBAND = Path("/sys/class/infiniband")
GPU_FIELDS = {
    "gpu": "name",
    "driver": "driver_version",
    "free_mib": "memory.free",
    "total_mib": "memory.total",
    "sm_mhz": "clocks.sm",
    "most_sm_mhz": "clocks.max.sm",
    "ecc": "ecc.errors.uncorrected.volatile.total",
}
XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")


def command(*words: str) -> str:
    """What a program prints; "" if it is absent, fails or does not answer."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


TORCH = """
import json, torch
nccl = torch.cuda.nccl.version() if torch.version.cuda else ()
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": ".".join(map(str, nccl))}))
"""


def torch_facts() -> dict[str, Any]:
    """Releases of torch and its libraries, or why it cannot be imported. In a process of its own: a broken library may end
    it."""
    words = [sys.executable, "-c", TORCH]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return dict(json.loads(ran.stdout.splitlines()[-1]))
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    return {"torch_problem": lines[-1] if lines else f"import ended with status {ran.returncode}"}


def package_facts() -> dict[str, str]:
    """Releases of packages whose kernels or readings a profile depends on."""
    found = {}
    for name in ("flash-attn", "transformer-engine", "apex", "deep-gemm", "deep-ep", "nvidia-ml-py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def gpu_facts() -> list[dict[str, str]]:
    """Each GPU as nvidia-smi reports it."""
    text = command("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS.values())}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS)]


def nvlink_facts() -> dict[str, int]:
    """Links of all GPUs that are up, and that are not."""
    lines = re.findall(r"^\s*Link \d+: (.*)$", command("nvidia-smi", "nvlink", "--status"), re.MULTILINE)
    up = sum("inactive" not in line for line in lines)
    return {"up": up, "down": len(lines) - up}


def infiniband_facts() -> dict[str, str]:
    """State and rate of each port: ``mlx5_0/1`` -> ``ACTIVE 400 Gb/sec (4X NDR)``."""
    ports = {}
    for port in sorted(INFINIBAND.glob("*/ports/*")):
        with contextlib.suppress(OSError):
            state, rate = ((port / name).read_text(encoding="ascii").strip() for name in ("state", "rate"))
            ports[f"{port.parts[-3]}/{port.name}"] = f"{state.partition(': ')[2]} {rate}"
    return ports


def xid_facts() -> list[str]:
    """Errors of GPUs in the kernel's log, if it may be read: ``31 (PCI:0000:01:00)``."""
    return [f"{number} ({gpu})" for gpu, number in XID.findall(command("dmesg"))]


def host_facts(folder: str) -> dict[str, Any]:
    """Everything; ``folder`` is where results go."""
    free: dict[str, int] = {}
    with contextlib.suppress(OSError):
        free["disk_free_bytes"] = shutil.disk_usage(folder).free
    with contextlib.suppress(OSError, ValueError):
        free["memory_free_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return {
        "name": socket.gethostname(),
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
        "writable": os.access(folder, os.W_OK),
        **free,
        **torch_facts(),
        "packages": package_facts(),
        "gpus": gpu_facts(),
        "nvlink": nvlink_facts(),
        "infiniband": infiniband_facts(),
        "xid": xid_facts(),
    }


def main() -> None:
    """Print the facts, then the time whenever it is asked for."""
    print(json.dumps(host_facts(sys.argv[1])), flush=True)
    for _ in sys.stdin:
        print(f"{time.time():.6f}", flush=True)


if __name__ == "__main__":
    main()
