"""Two processes really run what only a step shows, and store it under what they were asked for."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from profdb.cases import FAMILY_OF
from profdb.store.data_file import load_profile
from profiler.cases.sweep_plan import SweepPlan, cpu_step_parts

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.nightly
@pytest.mark.distributed
def test_overlap_layers_and_exchanges_run_over_gloo(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "gen_profiler_data.py"]
    asked = ["--device", "cpu", "--only", "overlap,layer,expert_exchange", "--no_pics"]
    done = subprocess.run(
        [*launch, *asked, "--output", str(tmp_path / "two.pt")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    samples = load_profile(tmp_path / "two.pt").samples
    planned = {plan.case for plan in cpu_step_parts(SweepPlan(device_kind="cpu", domain_ranks=2), "bf16")}
    assert {sample.case for sample in samples} == planned
    assert Counter(sample.status for sample in samples) == {"ok": len(planned)}
    assert {FAMILY_OF[type(sample.case)].value for sample in samples} == {"overlap", "layer", "expert_exchange"}
