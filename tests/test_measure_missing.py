"""A search that measures what its profile lacks, and the profile it leaves."""

from itertools import product
from pathlib import Path

import pytest
import torch

import simulation_train_formulaic as command
from ops.memory_bound import KERNELS, bytes_moved_per_element
from profdb.cases import AttentionCase, Case, GemmCase, HostCase, MemoryBoundCase, OptimizerCase
from profdb.modelled.case_times import modelled_seconds
from profdb.modelled.cost_model import ModelledCostModel
from profdb.on_demand import MeasuringDevice
from profdb.refit import with_fits
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile, save_profile
from spec.cluster.reader import read_cluster
from spec.origin import Origin
from tests.solver.questions import ROOT
from tests.test_cases_of_a_search import TINY

PLAN = "strategy=mtp,tp=1,micro_batch=1"
TAUGHT_S = 1e-3
"""Every case of the pretended device takes a millisecond."""


@pytest.fixture(scope="module")
def kernels_only() -> ProfileDatabase:
    """A profile that holds neither products nor attention, with its fits."""
    cluster = read_cluster("cpu", root=ROOT)
    cases: list[Case] = [HostCase(kind="launch"), HostCase(kind="call")]
    cases += [OptimizerCase(elements=1 << bits) for bits in (10, 20)]
    for kernel, direction, dtype in product(KERNELS, ("forward", "backward"), ("bf16", "fp32")):
        if bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype):
            shape = {"kernel": kernel, "direction": direction, "dtype": dtype}
            cases += [MemoryBoundCase(**shape, rows=1 << bits, width=width) for bits in (5, 20) for width in (1, 512)]
    times = modelled_seconds(ModelledCostModel(cluster=cluster), cases)
    pairs = zip(cases, times.tolist(), strict=True)
    samples = [Sample(case=case, trials_s=(one_s,), origin=Origin.MODELLED) for case, one_s in pairs]
    machine = MachineFacts(gpu=cluster.gpu.name, cluster="cpu", date="2026-01-02")
    return with_fits(ProfileDatabase(machine=machine, samples=samples))


@pytest.fixture
def words(tmp_path: Path, kernels_only: ProfileDatabase) -> list[str]:
    """Price one plan of a tiny model in that profile, measuring."""
    save_profile(tmp_path / "data.pt", kernels_only)
    config = tmp_path / "tiny.py"
    config.write_text(TINY)
    return [
        *("--pre_profiling_data_path", str(tmp_path / "data.pt"), "--config", str(config)),
        *("--world_size", "1", "--global_batch_size", "64", "--plan", PLAN, "--measure_missing"),
    ]


class Meter:
    """Pretends to measure, and remembers what it was asked for."""

    def __init__(self, gpu: str) -> None:
        self.asked: list[Case] = []
        self.gpu = gpu

    def device(self, wanted: str, root: Path, allowed_s: float) -> MeasuringDevice:
        facts = MachineFacts(gpu=self.gpu, cluster="cpu", date="2026-01-03", torch="9.9")
        return MeasuringDevice(machine=facts, measure=self.measure, allowed_s=allowed_s)

    def measure(self, case: Case) -> Sample:
        self.asked.append(case)
        return Sample(case=case, trials_s=(TAUGHT_S,), date="2026-01-03")


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A pretended processor instead of this machine's GPU."""
    pretended = Meter(read_cluster("cpu", root=ROOT).gpu.name)
    monkeypatch.setattr("profiler.on_demand.measuring_device", pretended.device)
    return pretended


def measured(path: str) -> list[Sample]:
    """The measured samples of a profile."""
    return [one for one in load_profile(path).samples if one.origin is Origin.MEASURED]


def test_what_is_missing_is_measured_and_kept(
    words: list[str], meter: Meter, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load_profile(words[1])
    assert command.main(words[:-1]) == 2
    assert "gen_profiler_data.py" in capsys.readouterr().err
    assert command.main(words) == 0
    assert f"measured {len(meter.asked)} shapes" in capsys.readouterr().out
    after = load_profile(words[1])
    assert [one.case for one in measured(words[1])] == sorted(
        meter.asked, key=[one.case for one in after.samples].index
    )
    assert len(after.samples) == len(before.samples) + len(meter.asked)
    assert {type(case) for case in meter.asked} == {AttentionCase, GemmCase}
    assert {case.direction for case in meter.asked if isinstance(case, AttentionCase)} == {"forward", "backward"}
    assert (after.machine.torch, after.machine.date) == ("9.9", "2026-01-03")
    assert set(after.fits) == {family.value for family in after.tables}


def test_a_second_search_measures_nothing_and_a_later_one_needs_no_device(
    words: list[str], meter: Meter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 0
    content, asked = Path(words[1]).read_bytes(), len(meter.asked)
    assert command.main(words) == 0
    assert len(meter.asked) == asked
    assert Path(words[1]).read_bytes() == content
    assert command.main(words[:-1]) == 0


def test_the_time_allowed_is_kept_and_told(words: list[str], meter: Meter, capsys: pytest.CaptureFixture[str]) -> None:
    # 6e-9 seconds: the first measurement spends them.
    assert command.main([*words, "--measure_minutes", "1e-10", "--missing", "modelled"]) == 0
    assert len(meter.asked) == 1
    assert "more were left to the curves" in capsys.readouterr().err


def test_an_interrupted_search_keeps_what_it_measured(
    words: list[str], meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = meter.measure

    def interrupted(case: Case) -> Sample:
        if len(meter.asked) == 2:
            raise KeyboardInterrupt
        return measure(case)

    monkeypatch.setattr(meter, "measure", interrupted)
    assert command.main(words) == 130
    assert {one.case for one in measured(words[1])} == set(meter.asked)
    assert len(meter.asked) == 2


def test_a_profile_of_another_gpu_is_left_alone(
    words: list[str], meter: Meter, capsys: pytest.CaptureFixture[str]
) -> None:
    content = Path(words[1]).read_bytes()
    meter.gpu = "NVIDIA H200"
    assert command.main(words) == 2
    assert "NVIDIA H200" in capsys.readouterr().err
    assert Path(words[1]).read_bytes() == content
    assert meter.asked == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    assert "--device" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "soon"])
def test_bad_minutes(wrong: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*words, "--measure_minutes", wrong]) == 2
    assert wrong in capsys.readouterr().err


def test_this_processor_measures_for_a_tiny_model(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*words, "--verbose", "--device", "cpu"]) == 0
    origin = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("origin"))
    assert "measured" in origin
    found = measured(words[1])
    assert {type(one.case) for one in found} == {AttentionCase, GemmCase}
    assert all(one.status == "ok" and one.median_s < 1.0 for one in found)
    # 64 tokens of 64 channels into a vocabulary of 512: the head's product.
    assert GemmCase(m=64, k=64, n=512) in {one.case for one in found}
