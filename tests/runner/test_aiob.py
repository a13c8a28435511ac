"""The submodules of a model are the operations that the solver prices, under AICB's names."""

from pathlib import Path

import pytest

from profdb.case_recorder import CaseRecorder
from profdb.cases import AttentionCase, Case, GemmCase, GroupedGemmCase, MemoryBoundCase, OptimizerCase
from profdb.modelled.cost_model import ModelledCostModel
from profdb.on_demand import MeasuringDevice
from profdb.sample import MachineFacts, Sample
from profdb.store.data_file import load_profile
from runner.aiob import aiob_time, time_modules, write_times
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.request import read_request
from solver.times.op_times import OpTimer
from spec.errors import ConfigError
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT, request
from workload.aicb.aiob import read_aiob
from workload.aicb.module_cases import ModuleRun, module_cases
from workload.diagnostics import WorkloadError

CONFIGS = ROOT / "configs"


def run_of(config: str, **degrees: int) -> ModuleRun:
    return ModuleRun(model=read_config(CONFIGS / config).model, **{"seq_len": 4096, **degrees})


def test_the_optimizer_holds_a_ranks_parameters() -> None:
    # Llama-2-7B: 6,738,415,616 parameters, of which 65 norms of 4096 are whole on both ranks
    assert module_cases(run_of("7B_llama2.py", tp=2)).usual["param_time"] == (
        OptimizerCase(elements=(6_738_415_616 + 65 * 4096) // 2),
    )


def test_latent_attention_and_experts() -> None:
    # DeepSeek-V3 (arXiv 2412.19437 sec. 4.2): hidden 7168, 128 heads of 128 + 64 and 128, ranks 1536 and 512,
    # 256 experts of 2048, 8 a token, one shared; 3 dense layers of 18432 first. tp 2, ep 4.
    result = module_cases(run_of("671B_deepseek_v3.toml", tp=2, ep=4))
    usual, own = result.usual, 2048
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
    assert usual["moe_sort"] == (MemoryBoundCase(kernel="permute", rows=own * 8, width=7168, direction="forward"),)
    dense = GemmCase(m=4096, k=7168, n=18432)
    assert {name: cases[0] for name, cases in result.others["layer 1"].items()}["mlp_linear_1"] == dense


@pytest.mark.parametrize(
    ("config", "tp", "ep"),
    [("16B_deepseek_v2_lite.toml", 2, 4), ("8x7B_mixtral.py", 1, 2), ("80B_qwen3_next.json", 1, 8)],
)
def test_the_solver_asks_for_every_case(config: str, tp: int, ep: int) -> None:
    run = run_of(config, tp=tp, ep=ep)
    world = max(tp, ep)
    sizes = {"seq_len": run.seq_len, "global_batch_tokens": world // tp * run.seq_len}
    read = read_request(request(config, world, cluster="h100-sxm", framework="megatron", missing="modelled", **sizes))
    recorder = CaseRecorder(cost_model=ModelledCostModel(cluster=read.cluster))
    question = Problem(model=run.model, job=read.job, cluster=read.cluster, op_timer=OpTimer.on(read.cluster, recorder))
    plan = Plan(strategy="fsp" if tp > 1 else "mtp", preset="megatron", tp=tp, ep=ep, dp=world // tp)
    price_plan(question, PlanTable.of(plan))
    result = module_cases(run)
    sections = [*result.usual.items(), *(item for kind in result.others.values() for item in kind.items())]
    assert {name for name, cases in sections if not set(cases) <= set(recorder.cases)} == set()


def test_degrees_that_cut_nothing_even_are_refused() -> None:
    with pytest.raises(ConfigError, match="a divisor of the heads and of the ffn"):
        module_cases(run_of("7B_llama2.py", tp=3))
    with pytest.raises(ConfigError, match="1 for a model without experts"):
        module_cases(run_of("7B_llama2.py", ep=2))
    with pytest.raises(ConfigError, match="a divisor of 8 experts"):
        module_cases(run_of("8x7B_mixtral.py", ep=3))


MODEL = read_config(ROOT / "configs" / "7B_llama2.py").model
RUN = ModuleRun(model=MODEL, tp=2, seq_len=4096)
LATENT = ModuleRun(model=read_config(ROOT / "configs" / "16B_deepseek_v2_lite.toml").model, tp=2, ep=4, seq_len=1024)


def device(*refused: str) -> MeasuringDevice:
    """Measures 10, 20 and 90 us for everything but some kernels."""

    def measure(case: Case) -> Sample:
        if getattr(case, "kernel", "") in refused:
            return Sample(case=case, trials_s=(), status="failed", launched={"reason": "not here"})
        return Sample(case=case, trials_s=(10e-6, 20e-6, 90e-6))

    return MeasuringDevice(machine=MachineFacts(gpu="Chip"), measure=measure)


def test_times_that_aicb_leaves_out() -> None:
    # 90 us are more than three times 10: mean of the others
    time = aiob_time((10e-6, 20e-6, 90e-6))
    assert (time.min_us, time.avg_us, time.max_us) == (pytest.approx(10), pytest.approx(15), pytest.approx(20))


def test_text_and_samples(tmp_path: Path) -> None:
    device_here = device("swiglu")
    lines = write_times(time_modules(RUN, device_here), device_here, tmp_path / "a.txt", tmp_path / "a.pt")
    read = read_aiob(tmp_path / "a.txt")
    assert {"Emb", "atten_flash", "mlp_linear_2", "logit_time", "param_time"} <= set(read.sections)
    assert ("mlp_gelu" in read.sections, read.sections["layernorm"] == read.sections["layernorm2"]) == (False, True)
    assert "not measured: mlp_gelu: not here" in lines
    # three norms are one case; the activation was refused
    assert len(load_profile(tmp_path / "a.pt").samples) == len(read.sections) - 2


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    def refuse(case: Case) -> Sample:
        return Sample(case=case, trials_s=(), status="oom")

    nothing = MeasuringDevice(machine=MachineFacts(gpu="Chip"), measure=refuse)
    with pytest.raises(WorkloadError, match="no submodule could be measured"):
        write_times(time_modules(RUN, nothing), nothing, tmp_path / "a.txt", None)
    assert not (tmp_path / "a.txt").exists()


def test_a_section_of_several_cases_is_their_sum_and_none_without_one_of_them(tmp_path: Path) -> None:
    here = device("masked_softmax", "add")
    lines = write_times(time_modules(LATENT, here), here, tmp_path / "a.txt", tmp_path / "a.pt")
    read = read_aiob(tmp_path / "a.txt")
    # 15 us a case: a product and the norm of the latent; a product and the core of attention
    assert [
        read.sections[name].avg_us
        for name in ("attention_q_column", "attention_linear_kv_lora", "attention_kv_column", "moe_permute")
    ] == [15, 30, 30, 15]
    assert "moe_route_select_experts" not in read.sections
    assert "not measured: moe_route_select_experts: not here" in lines
    # the first layer of 27 has a dense feed-forward layer: said and kept, and not in the text of one layer
    place = next(place for place, line in enumerate(lines) if line.startswith("layer 1 is another kind"))
    assert [line.split()[0] for line in lines[place + 1 : place + 4]] == ["mlp_linear_1", "mlp_gelu", "mlp_linear_2"]
    kept = {sample.case for sample in load_profile(tmp_path / "a.pt").samples}
    assert {
        MemoryBoundCase(kernel="swiglu", rows=1024, width=10944 // 2, direction="forward"),
        MemoryBoundCase(kernel="swiglu", rows=512 * 6, width=1408, direction="forward"),
    } <= kept
