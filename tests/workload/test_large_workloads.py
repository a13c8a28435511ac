"""A workload of thousands of GPUs is written row by row."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workload.generating import ROOT

SCRIPT = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import run_workload
code = run_workload.main(sys.argv[2:])
print("MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
sys.exit(code)
"""


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
