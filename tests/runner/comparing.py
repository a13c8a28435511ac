"""What tests of ``compare`` compare: a training run that is made up, and what came of it."""

import json
from pathlib import Path
from typing import Any

from run_workload import main

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "configs" / "tiny_internlm2.py")
SHEET = ("--config", CONFIG, "--cluster", "h100-sxm", "--missing", "modelled")
LOGGED = (*SHEET, "--world_size", "4", "--global_batch_size", "2048", "--framework", "megatron")


def trained(folder: Path, **changed: Any) -> Path:
    """A JSON as ``train`` writes it, of times that are made up."""
    plan = {"strategy": "msp", "tp": 2, "pp": 1, "micro_batch": 1, "recompute": "full", "num_micro": 2, "dp": 2}
    values = {
        "config": CONFIG,
        "model": "tiny_internlm2",
        "cluster": "h100-sxm",
        "device": "made up",
        "world_size": 4,
        "seq_len": 64,
        "global_batch_tokens": 256,
        "preset": "internevo",
        "dtype": "bf16",
        "plan": plan | {"recompute_modules": [], "zero_stage": None, "preset": "internevo"},
        "warmup_steps": 2,
        "steps_s": [0.5, 0.2, 0.3],
        "allocated_bytes": 2**30,
        "reserved_bytes": 2**31,
    }
    path = folder / "step.json"
    path.write_text(json.dumps(values | changed))
    return path


def compare_run(folder: Path, *words: str) -> dict[str, Any]:
    """The record of a comparison that works."""
    out = folder / "out.json"
    assert main(["compare", *words, "--json", str(out)]) == 0
    result: dict[str, Any] = json.loads(out.read_text())
    return result
