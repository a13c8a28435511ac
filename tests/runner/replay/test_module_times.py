from pathlib import Path

import pytest

from profdb.cases import Case, OptimizerCase
from profdb.importers.aiob import AiobRun
from profdb.on_demand import MeasuringDevice
from profdb.sample import MachineFacts, Sample
from profdb.store.data_file import load_profile
from runner.replay.module_times import aiob_time, cases_of, time_modules, write_times
from spec.readers.read_config import read_config
from workload.aicb.aiob.text import read_aiob
from workload.workload_error import WorkloadError

ROOT = Path(__file__).resolve().parents[3]
MODEL = read_config(ROOT / "configs" / "7B_llama2.py").model
RUN = AiobRun(model=MODEL, tp=2, micro_batch=1, seq_len=4096)


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


def test_the_optimizer_holds_a_ranks_parameters() -> None:
    # Llama-2-7B: 6,738,415,616 parameters
    assert cases_of(RUN)["param_time"] == OptimizerCase(elements=3_369_207_808)


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
