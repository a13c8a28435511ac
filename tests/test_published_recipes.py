"""NVIDIA's own recipes that fit with their settings alone, gradients in bf16 above all, asked through the door.

Megatron-Bridge, perf_recipes (commit 067f987d): llama/h100/llama31.py and qwen/b300/qwen3_moe.py; a recipe
shipped for a GPU fits there. Qwen3-30B-A3B: huggingface.co/Qwen/Qwen3-30B-A3B config.json.
"""

from dataclasses import dataclass

import pytest

import simulation_train_formulaic as script
from pss.plans import NOT_FEASIBLE
from tests.pages import ROOT

LLAMA = "strategy=fsp,tp=8,cp=2,pp=8,vpp=8,micro_batch=1,zero_stage=1,recompute=none"
QWEN = "strategy=mtp,ep=8,etp=1,micro_batch=8,zero_stage=1,recompute=none"
FP32 = "data_parallel.fp32_gradients=true"
GRAPHS = "moe_dispatcher=hybridep,cuda_graphs=moe_router+moe_preprocess,tensor_parallel.overlap=false"

NANO = "strategy=mtp,ep=8,etp=1,micro_batch=2,zero_stage=1,recompute=none"
NANO_GRAPHS = "moe_dispatcher=hybridep,cuda_graphs=attn+mamba+moe_router+moe_preprocess"
NEXT = "strategy=mtp,ep=128,etp=1,micro_batch=1,zero_stage=1,recompute=none"


@dataclass(frozen=True)
class Recipe:
    config: str
    cluster: str
    world_size: int
    seq_len: int
    sequences: int
    plan: str
    job: str = "dropout=false"
    otherwise: str = FP32

    def words(self) -> list[str]:
        tokens = self.sequences * self.seq_len
        return (
            f"--config configs/{self.config} --cluster {self.cluster} --world_size {self.world_size} --seq_len {self.seq_len} "
            f"--global_batch_size {tokens} --framework megatron-bridge --job {self.job} --plan {self.plan}"
        ).split()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("405B_llama3.py", "h100-sxm", 1024, 8192, 1536, LLAMA),
        Recipe("405B_llama3.py", "h100-sxm", 512, 8192, 768, LLAMA),
        Recipe("30B_qwen3_moe.json", "b300", 8, 4096, 512, QWEN, GRAPHS, f"{FP32},loss.fused=false"),
    ],
)
def test_a_recipe_is_feasible_with_its_settings_and_not_with_megatron_s(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = recipe.words()
    assert script.main(words) == 0
    assert script.main([*words, "--job", recipe.otherwise]) == NOT_FEASIBLE


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [
        (Recipe("30B_nemotron3_nano.json", "gb200-nvl72", 8, 8192, 512, NANO, NANO_GRAPHS), "mxfp8"),
        (Recipe("80B_qwen3_next.json", "h100-sxm", 128, 4096, 1024, NEXT), "bf16"),
    ],
)
def test_hybrids_fit_as_their_recipes_run_them(recipe: Recipe, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-Bridge, perf_recipes/nemotronh/gb200/nemotronh.py (nemotron_3_nano_pretrain_8gpu_gb200_fp8mx_config) and
    perf_recipes/qwen/h100/qwen3_moe.py (qwen3_next_80b_a3b_pretrain_128gpu_h100_bf16_config)."""
    monkeypatch.chdir(ROOT)
    assert script.main([*recipe.words(), "--precision", precision]) == 0
