from pathlib import Path

import pytest

from profdb.cases import Case, MemoryBoundCase
from profdb.on_demand import MeasuringDevice
from profdb.sample import MachineFacts, Sample
from profdb.store.data_file import load_profile
from runner.aiob import ModuleRun, aiob_time, time_modules, write_times
from spec.readers.read_config import read_config
from workload.aicb.aiob import read_aiob
from workload.findings import WorkloadError

ROOT = Path(__file__).resolve().parents[3]
MODEL = read_config(ROOT / "configs" / "7B_llama2.py").model
RUN = ModuleRun(model=MODEL, tp=2, seq_len=4096)
LATENT = ModuleRun(
    model=read_config(ROOT / "configs" / "16B_deepseek_v2_lite.toml").model, tp=2, ep=4, seq_len=1024
)


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
    assert (time.min_us, time.avg_us, time.max_us) == (
        pytest.approx(10),
        pytest.approx(15),
        pytest.approx(20),
    )


def test_text_and_samples(tmp_path: Path) -> None:
    device_here = device("swiglu")
    lines = write_times(time_modules(RUN, device_here), device_here, tmp_path / "a.txt", tmp_path / "a.pt")
    read = read_aiob(tmp_path / "a.txt")
    assert {"Emb", "atten_flash", "mlp_linear_2", "logit_time", "param_time"} <= set(read.sections)
    assert ("mlp_gelu" in read.sections, read.sections["layernorm"] == read.sections["layernorm2"]) == (
        False,
        True,
    )
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
    assert [line.split()[0] for line in lines[place + 1 : place + 4]] == [
        "mlp_linear_1",
        "mlp_gelu",
        "mlp_linear_2",
    ]
    kept = {sample.case for sample in load_profile(tmp_path / "a.pt").samples}
    assert {
        MemoryBoundCase(kernel="swiglu", rows=1024, width=10944 // 2, direction="forward"),
        MemoryBoundCase(kernel="swiglu", rows=512 * 6, width=1408, direction="forward"),
    } <= kept
