"""Seven plans on four gloo processes: each trains, writes its record and its traces, and stands beside its
prediction.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from run_workload import main
from tests.runner.training.test_run import torchrun

pytestmark = [pytest.mark.nightly, pytest.mark.distributed]

MODEL = """source = "a toy"
[model]
hidden = 64
vocab = 128
[[model.blocks]]
count = 2
attention = { num_heads = 4, num_kv_heads = 4 }
"""
DENSE = "mlp = { ffn_hidden = 128, gated = true }\n"
ROUTED = "moe = { num_experts = 4, topk = 2, expert_ffn_hidden = 32 }\n"
BATCH = "[data]\nseq_len = 32\n"

# The plan, and the collectives of which its first rank launches some.
PLANS: dict[str, tuple[str, set[str]]] = {
    "dp4": ("dp=4,zero_stage=0", {"all_reduce"}),
    "tp2dp2": ("tp=2,dp=2,strategy=msp,zero_stage=0", {"all_gather", "reduce_scatter", "all_reduce"}),
    "pp2dp2": ("pp=2,dp=2,zero_stage=0", {"p2p", "all_reduce"}),
    "tp2pp2": ("tp=2,pp=2,strategy=msp", {"all_gather", "reduce_scatter", "p2p"}),
    "cp2dp2": ("cp=2,dp=2,zero_stage=0", {"all_gather", "reduce_scatter", "all_reduce"}),
    "zero3": ("dp=4,zero_stage=3,zero_size=4", {"all_gather", "reduce_scatter"}),
    "ep2": ("dp=4,ep=2,zero_stage=0", {"all2all", "all_reduce"}),
}

SIDES = ("only_measured", "only_expected")
# Collectives that ran beyond those expected, and those expected that did not run. With msp train reduces the
# norms' gradients over tp apart; with cp it keeps the keys that Transformer Engine gathers again for the
# backward; experts tell each other first how many rows come, by an all-to-all of counts where a gather of
# them is told, as Megatron-Core does.
APART: dict[str, tuple[set[str], set[str]]] = {
    "dp4": (set(), set()),
    "tp2dp2": ({"all_reduce"}, set()),
    "pp2dp2": (set(), set()),
    "tp2pp2": ({"all_reduce"}, set()),
    "cp2dp2": (set(), {"all_gather"}),
    "zero3": (set(), set()),
    "ep2": ({"all2all"}, {"all_gather"}),
}


def trained(name: str, config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    config.write_text(MODEL + (ROUTED if name == "ep2" else DENSE) + BATCH)
    words = ["--config", str(config), "--plan", PLANS[name][0], "--micro_batches", "2", "--steps", "2"]
    words += ["--warmup", "1", "--dtype", "fp32", "--job", "context_parallel=all_gather"]
    # Of PyTorch's context parallelism the gradients of keys and values hop; train reduces them, as Transformer Engine.
    words += ["--framework", "megatron" if name == "cp2dp2" else "fsdp"]
    return torchrun(4, *words, "--json", str(folder / "step.json"), "--trace", str(folder))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_runs_logs_and_compares(name: str, tmp_path: Path) -> None:
    config = tmp_path / "toy.toml"
    ran = trained(name, config, tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    traces = sorted(tmp_path.glob("*.trace.json.gz"))
    assert len(traces) == 4
    words = [str(tmp_path / "step.json"), "--config", str(config), "--cluster", "cpu", "--missing", "modelled"]
    words += ["--operations", str(traces[0]), "--json", str(tmp_path / "gap.json")]
    assert main(["compare", *words]) == 0
    result: dict[str, Any] = json.loads((tmp_path / "gap.json").read_text())
    assert result["measured"]["form"] == "train"
    operations = result["operations"]
    assert operations["num_steps"] == 2
    launched = [*operations["pairs"], *operations["only_measured"]]
    kinds = {one["key"]["what"] for one in launched if one["key"]["part"] == "communication"}
    assert PLANS[name][1] <= kinds
    apart = [[one for one in operations[side] if one["key"]["part"] == "communication"] for side in SIDES]
    assert tuple({one["key"]["what"] for one in side} for side in apart) == APART[name]
    lone = [one for side in SIDES for one in operations[side]]
    unmatched = [one["label"] for one in lone if one["key"]["part"] in ("products", "attention")]
    assert not unmatched, unmatched
    assert operations["matched_share"] > 0.5
