"""A run that names no output finds one that holds nothing of another machine."""

from pathlib import Path

import pytest

from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import save_profile
from profiler.machine import DEFAULT, REHEARSAL, default_output, file_stem
from spec.cluster.reader import read_cluster
from tests.profdb.profiles import gemm_samples

ROOT = Path(__file__).resolve().parents[2]
H100 = read_cluster("h100-sxm", root=ROOT)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def try_lock(gpu: str) -> None:
    save_profile(DEFAULT, ProfileDatabase(machine=MachineFacts(gpu=gpu), samples=gemm_samples()))


def test_a_rehearsal_never_writes_where_a_search_reads() -> None:
    assert default_output("cpu", "some processor", read_cluster("cpu", root=ROOT)) == REHEARSAL
    assert REHEARSAL != DEFAULT


def test_the_default_is_for_the_first_gpu_and_for_its_likes() -> None:
    assert default_output("cuda", "NVIDIA H100 80GB HBM3", H100) == DEFAULT
    try_lock(H100.gpu.name)
    assert default_output("cuda", "NVIDIA H100 80GB HBM3", H100) == DEFAULT


def test_another_gpu_gets_a_file_of_its_own_name() -> None:
    try_lock("H200-SXM-141GB")
    assert default_output("cuda", "NVIDIA H100 80GB HBM3", H100) == Path("prof_data/h100-sxm.pt")
    assert default_output("cuda", "Chip (5 GHz)", None) == Path("prof_data/chip-5-ghz.pt")


def test_odd_names_make_plain_files() -> None:
    assert file_stem("../../etc/passwd") == "etc-passwd"
    assert file_stem("///") == "gpu"
