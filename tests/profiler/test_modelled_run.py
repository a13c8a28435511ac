"""A profile made of a sheet: it names the sheet as the sheet names itself, tells how far it is, and displaces
nothing.
"""

from pathlib import Path

import pytest

import gen_profiler_data
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import load_profile, save_profile
from profiler.modelled_run import model_profile
from solver.problem.loading import load_problem
from spec.errors import ProfileError
from tests.profdb.profiles import gemm_samples
from tests.solver.questions import ROOT, request


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times themselves are tests/profdb/modelled's."""
    monkeypatch.setattr("profdb.modelled.profile.modelled_samples", lambda _: gemm_samples())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A sheet of one's own: a file of one name, a cluster of another."""
    sheet = tmp_path / "draft.toml"
    text = (ROOT / "configs/clusters/h100-sxm.toml").read_text(encoding="utf-8")
    sheet.write_text(text.replace('name = "h100-sxm"', 'name = "lab"', 1), encoding="utf-8")
    return sheet


def test_a_copied_sheet_can_be_asked(copied: Path, tmp_path: Path) -> None:
    made = model_profile(str(copied), tmp_path / "lab.pt", root=ROOT)
    assert made.profile.machine.cluster == "lab"
    asked = request("7B_internlm2.py", 8, profile=made.output, cluster=str(copied), global_batch_tokens=2**20)
    inputs = load_problem(asked)
    assert inputs.problem.cluster.name == "lab"


def test_progress_is_told_without_a_terminal(copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "lab.pt"
    assert gen_profiler_data.main(["--from_cluster", str(copied), "--output", str(output), "--no_pics"]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == ["modelling times of H100-SXM-80GB", "fitted the curves of gemm"]
    assert told.out.startswith(f"{output}: ")


def test_the_default_output_bears_the_name_of_the_sheet(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_profile(str(copied), None, root=ROOT).output == Path("prof_data/lab.pt")
    assert load_profile(Path("prof_data/lab.pt")).machine.cluster == "lab"


def test_modelled_times_of_another_gpu_are_not_displaced(tmp_path: Path) -> None:
    output = tmp_path / "data.pt"
    save_profile(output, ProfileDatabase(machine=MachineFacts(gpu="H999"), samples=gemm_samples()))
    before = output.read_bytes()
    with pytest.raises(ProfileError, match="'H999'; give another file with --output"):
        model_profile("h200", output, root=ROOT)
    assert output.read_bytes() == before
