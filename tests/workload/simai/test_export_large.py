"""A workload of thousands of GPUs is written row by row."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workload.generating import ROOT

# The peak since this program began (VmHWM); ru_maxrss would count the process that started it.
SCRIPT = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import run_workload
code = run_workload.main(sys.argv[2:])
print("MiB", int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
sys.exit(code)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("form", ["simai", "general"])
def test_4096_gpus_and_64_micro_batches_stay_below_500_mb(form: str, tmp_path: Path) -> None:
    # 4,096 GPUs, tp 8, pp 8: 64 data-parallel ranks, 64 micro-batches each
    words = (
        "generate --model_size 175 --world_size 4096 --tp_num 8 --pp_num 8 --sp --use_flash_attn "
        f"--use_distributed_optimizer --global_batch 4096 --format {form} --output {tmp_path}/w"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOT), *words.split()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    peak = int(done.stdout.split("MiB ")[1])
    assert peak < 500
    with (tmp_path / "w").open() as handle:
        assert sum(1 for _ in handle) > 64 * 12
