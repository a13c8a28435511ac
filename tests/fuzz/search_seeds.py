"""Questions to simulation_train_formulaic.py: configs of every form, sheets, calibrations, profiles, exports."""

import json

from solver.problem.calibration import SCHEMA
from tests.fuzz.asked import Asked
from tests.fuzz.models import PRICE, ROOT, SHAPES, SMALL_PY, SMALL_TOML, TYPED

FACTORS = {
    **dict.fromkeys(
        (
            "compute_efficiency",
            "memory_bound_efficiency",
            "intra_comm_efficiency",
            "host_efficiency",
            "expert_efficiency",
        ),
        0.9,
    ),
    "inter_comm_efficiency": 1.1,
    "overlap": 0.9,
    "fixed_per_micro_batch_s": 1e-4,
    "fixed_per_step_s": 1e-3,
    "residual_std": 0.05,
}


def searches() -> dict[str, Asked]:
    def ask(*words: str, **files: bytes) -> Asked:
        named = {name.replace("__", "."): content for name, content in files.items()}
        return Asked(program="search", words=words, files=named)

    hf = {
        f"{name} config.json": ask(
            "--config",
            "config.json",
            *PRICE,
            "--seq_len",
            "2048",
            *plan,
            config__json=(SHAPES / f"{name}.json").read_bytes(),
        )
        for name, plan in (
            ("llama_2_7b", TYPED),
            ("mixtral_8x7b", ("--plan", "ep=8,zero_stage=1")),
            ("deepseek_v2_lite", ("--plan", "ep=8,zero_stage=1")),
            ("qwen3_30b_a3b", ("--plan", "ep=4,pp=2")),
            ("gpt_2", ("--seq_len", "1024", "--plan", "tp=1")),
        )
    }
    toml, every = (
        {"model__toml": SMALL_TOML},
        ("--export_simai", "w.txt", "--export_trace", "t.json", "--csv", "a.csv"),
    )
    record = {"schema": SCHEMA, "cluster": "h200", "gpu": "H200-SXM-141GB", "steps": 3, "factors": FACTORS}
    calibration = json.dumps({**record, "leave_one_out_error": 0.02}, indent=1).encode()
    return hf | {
        "toml": ask("--config", "model.toml", *PRICE, **toml),
        "py": ask("--config", "model.py", *PRICE, model__py=SMALL_PY),
        "exports": ask(
            "--config", "model.toml", *PRICE, *TYPED, *every, "--export_megatron", "m.txt", **toml
        ),
        "bundle": ask("--config", "model.toml", *PRICE, *TYPED, "--export_bundle", "b", **toml),
        "internevo": ask("--config", "model.py", *PRICE, "--export_internevo", "i.py", model__py=SMALL_PY),
        "deepspeed": ask(
            *("--config", "model.toml", *PRICE, "--framework", "deepspeed", "--plan", "zero_stage=2"),
            *("--export_deepspeed", "d.json"),
            **toml,
        ),
        "search": ask(
            "--config", "model.toml", *PRICE, "--run_all_solu", "--top_k", "5", "--rank", "2", **toml
        ),
        "job": ask(
            *(
                "--config",
                "model.toml",
                *PRICE,
                *TYPED,
                "--precision",
                "fp8-blockwise",
                "--framework",
                "megatron",
            ),
            *("--job", "dropout=true,precision.gradient=bf16"),
            **toml,
        ),
        "cluster sheet": ask(
            *("--config", "model.toml", *PRICE, *TYPED, "--cluster", "mine.toml", "--missing", "modelled"),
            mine__toml=(ROOT / "configs" / "clusters" / "h200.toml").read_bytes(),
            **toml,
        ),
        "calibration": ask(
            "--config", "model.toml", *PRICE, *TYPED, "--calibration", "c.json", c__json=calibration, **toml
        ),
        "profile": ask(
            *("--config", "model.toml", *PRICE, *TYPED, "--pre_profiling_data_path", "own.pt"),
            own__pt=(ROOT / "prof_data" / "data.pt").read_bytes(),
            **toml,
        ),
        "architecture": Asked(
            program="readers",
            words=("architecture", "hopper"),
            files={
                "own/configs/architectures/hopper.toml": (
                    ROOT / "configs" / "architectures" / "hopper.toml"
                ).read_bytes()
            },
        ),
    }
