"""The submodules of a model are the operations that the solver prices, under AICB's names."""

from dataclasses import replace
from pathlib import Path

import pytest

from profdb.case_recorder import CaseRecorder
from profdb.cases import AttentionCase, GemmCase, GroupedGemmCase, MemoryBoundCase, OptimizerCase
from profdb.importers.aiob import AiobRun
from profdb.importers.aiob import module_cases as imported_cases
from profdb.modelled.kept_book import KeptBook
from runner.aiob import ModuleRun, module_cases
from solver.plans.plan_table import Plan, PlanTable
from solver.question import Question
from solver.request import Request, read_request
from solver.search import price_plan
from solver.times.op_times import Pricer
from spec.errors import ConfigError
from spec.readers.read_config import read_config

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "configs"


def run_of(config: str, **degrees: int) -> ModuleRun:
    return ModuleRun(model=read_config(CONFIGS / config).model, **{"seq_len": 4096, **degrees})


@pytest.mark.parametrize("config", ["7B_llama2.py", "70B_llama2.py", "72B_qwen2.py"])
def test_a_dense_models_sections_are_those_that_are_imported(config: str) -> None:
    run = run_of(config, tp=2, micro_batch=2)
    imported = imported_cases(AiobRun(model=run.model, tp=2, micro_batch=2, seq_len=4096))
    found = dict(module_cases(run).usual)
    del found["param_time"]
    # AICB's file does not say whether a product adds a bias
    plain = {
        name: tuple(replace(case, bias=False) if isinstance(case, GemmCase) else case for case in cases)
        for name, cases in found.items()
    }
    assert plain == {name: (case,) for name, case in imported.items()}


def test_the_optimizer_holds_a_ranks_parameters() -> None:
    # Llama-2-7B: 6,738,415,616 parameters, of which 65 norms of 4096 are whole on both ranks
    assert module_cases(run_of("7B_llama2.py", tp=2)).usual["param_time"] == (
        OptimizerCase(elements=(6_738_415_616 + 65 * 4096) // 2),
    )


def test_latent_attention_and_experts() -> None:
    # DeepSeek-V3 (arXiv 2412.19437 sec. 4.2): hidden 7168, 128 heads of 128 + 64 and 128, ranks 1536 and 512,
    # 256 experts of 2048, 8 a token, one shared; 3 dense layers of 18432 first. tp 2, ep 4.
    found = module_cases(run_of("671B_deepseek_v3.toml", tp=2, ep=4))
    usual, own = found.usual, 2048
    assert list(usual)[1:7] == [
        "layernorm",
        "attention_linear_q_lora",
        "attention_q_column",
        "attention_linear_kv_lora",
        "attention_kv_column",
        "attention_o_row",
    ]
    assert usual["attention_linear_q_lora"] == (
        GemmCase(m=own, k=7168, n=1536),
        MemoryBoundCase(kernel="rmsnorm", rows=own, width=1536, direction="forward"),
    )
    assert usual["attention_kv_column"] == (
        GemmCase(m=4096, k=512, n=64 * (128 + 128)),
        AttentionCase(batch=1, q_len=4096, kv_len=4096, heads=64, kv_heads=64, qk_dim=192, v_dim=128),
    )
    assert usual["moe_route_gate"] == (GemmCase(m=own, k=7168, n=256),)
    assert usual["mlp_linear_1"] == (GroupedGemmCase(groups=64, m=own * 8, k=7168, n=2 * 2048),)
    assert usual["mlp_shared_linear_2"] == (GemmCase(m=4096, k=2048 // 2, n=7168),)
    assert usual["moe_sort"] == (
        MemoryBoundCase(kernel="permute", rows=own * 8, width=7168, direction="forward"),
    )
    dense = GemmCase(m=4096, k=7168, n=18432)
    assert {name: cases[0] for name, cases in found.others["layer 1"].items()}["mlp_linear_1"] == dense


@pytest.mark.parametrize(
    ("config", "tp", "ep"),
    [("16B_deepseek_v2_lite.toml", 2, 4), ("8x7B_mixtral.py", 1, 2), ("80B_qwen3_next.json", 1, 8)],
)
def test_the_solver_asks_for_every_case(config: str, tp: int, ep: int) -> None:
    run = run_of(config, tp=tp, ep=ep)
    world = max(tp, ep)
    request = Request(
        root=ROOT,
        config=CONFIGS / config,
        world_size=world,
        seq_len=run.seq_len,
        global_batch_tokens=world // tp * run.seq_len,
        cluster="h100-sxm",
        framework="megatron",
        missing="modelled",
    )
    read = read_request(request)
    asked = CaseRecorder(cost_model=KeptBook(read.cluster, None))
    question = Question(
        model=run.model, job=read.job, cluster=read.cluster, pricer=Pricer.on(read.cluster, asked)
    )
    plan = Plan(strategy="fsp" if tp > 1 else "mtp", preset="megatron", tp=tp, ep=ep, dp=world // tp)
    price_plan(question, PlanTable.of(plan))
    found = module_cases(run)
    sections = [*found.usual.items(), *(item for kind in found.others.values() for item in kind.items())]
    assert {name for name, cases in sections if not set(cases) <= set(asked.asked)} == set()


def test_degrees_that_cut_nothing_even_are_refused() -> None:
    with pytest.raises(ConfigError, match="a divisor of the heads and of the ffn"):
        module_cases(run_of("7B_llama2.py", tp=3))
    with pytest.raises(ConfigError, match="1 for a model without experts"):
        module_cases(run_of("7B_llama2.py", ep=2))
    with pytest.raises(ConfigError, match="a divisor of 8 experts"):
        module_cases(run_of("8x7B_mixtral.py", ep=3))
