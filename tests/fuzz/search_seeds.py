"""Commands of simulation_train_formulaic.py: configs of every form, sheets, calibrations, profiles, exports."""

import json

from solver.problem.calibration import SCHEMA
from tests.fuzz.command import Command
from tests.fuzz.models import PLAN, PRICE, ROOT, SHAPES, SMALL_PY, SMALL_TOML

EFFICIENCIES = ("compute", "memory_bound", "intra_comm", "host", "expert")
FACTORS = {
    **{f"{name}_efficiency": 0.9 for name in EFFICIENCIES},
    "inter_comm_efficiency": 1.1,
    "overlap": 0.9,
    "fixed_per_micro_batch_s": 1e-4,
    "fixed_per_step_s": 1e-3,
    "factors_std": 0.05,
    "scatter": 1.0,
}
PLANS = {
    "llama_2_7b": PLAN,
    "mixtral_8x7b": "--plan ep=8,zero_stage=1",
    "deepseek_v2_lite": "--plan ep=8,zero_stage=1",
    "qwen3_30b_a3b": "--plan ep=4,pp=2",
    "gpt_2": "--seq_len 1024 --plan tp=1",
}


def searches() -> dict[str, Command]:
    """Commands by their name."""

    def ask(words: str, config: str = "model.toml", content: bytes = SMALL_TOML, **files: bytes) -> Command:
        named = {name.replace("__", "."): text for name, text in files.items()}
        words = f"--config {config} {PRICE} {words}"
        return Command(program="search", words=tuple(words.split()), files={config: content, **named})

    def hugging_face(name: str, plan: str) -> Command:
        return ask(f"--seq_len 2048 {plan}", "config.json", (SHAPES / f"{name}.json").read_bytes())

    record = {
        "schema": SCHEMA,
        "cluster": "h200",
        "gpu": "H200-SXM-141GB",
        "framework": "megatron",
        "steps": 3,
        "factors": FACTORS,
    }
    calibration = json.dumps({**record, "leave_one_out_error": 0.02}, indent=1).encode()
    exports = "--export_simai w.txt --export_trace t.json --csv a.csv --export_megatron m.txt"
    sheet = "configs/architectures/hopper.toml"
    return {
        **{f"{name} config.json": hugging_face(name, plan) for name, plan in PLANS.items()},
        "toml": ask(""),
        "py": ask("", "model.py", SMALL_PY),
        "exports": ask(f"{PLAN} {exports}"),
        "bundle": ask(f"{PLAN} --export_bundle b"),
        "internevo": ask("--export_internevo i.py", "model.py", SMALL_PY),
        "deepspeed": ask("--framework deepspeed --plan zero_stage=2 --export_deepspeed d.json"),
        "search": ask("--run_all_solu --top_k 5 --rank 2 --framework megatron --fix pp=1,cp=1"),
        "job": ask(f"{PLAN} --precision fp8-blockwise --framework megatron --job dropout=true,precision.gradient=bf16"),
        "cluster sheet": ask(
            f"{PLAN} --cluster mine.toml --missing modelled",
            mine__toml=(ROOT / "configs" / "clusters" / "h200.toml").read_bytes(),
        ),
        "calibration": ask(f"{PLAN} --calibration c.json", c__json=calibration),
        "profile": ask(
            f"{PLAN} --pre_profiling_data_path own.pt", own__pt=(ROOT / "prof_data" / "data.pt").read_bytes()
        ),
        "architecture": Command(
            program="readers", words=("architecture", "hopper"), files={f"own/{sheet}": (ROOT / sheet).read_bytes()}
        ),
    }
