"""The import verb, end to end."""

from pathlib import Path

import pytest

from profdb.cases import GemmCase
from profdb.commands.import_measurements import main
from profdb.sample import Sample
from profdb.store.data_file import load_profile
from profdb.store.journal import journal_path
from profiler.journal import Journal
from spec.errors import ProfileError
from tests.profdb.profiles import gemm_samples

CSV = "gpu,collective,num_gpus,bytes,latency_us\n" + "".join(
    f"{gpu},all_reduce,{ranks},{size},{10 + size / 1e5}\n"
    for gpu in ("A", "B")
    for ranks in (2, 4)
    for size in (1024, 1 << 16, 1 << 22)
)
ROOT = Path(__file__).resolve().parents[3]


def test_import_merges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, into = tmp_path / "nccl.csv", tmp_path / "data.pt"
    source.write_text(CSV)
    take = ["csv", str(source), "--gpu", "Chip", "--into", str(into)]
    with pytest.raises(ProfileError, match="several GPUs"):
        main(take)
    assert not into.exists()
    assert main([*take, "--of", "A"]) == 0
    assert main([*take, "--of", "A"]) == 0
    assert "0 samples of Chip added, 6 were there already" in capsys.readouterr().out
    found = load_profile(into)
    assert (found.machine.gpu, found.machine.gpus_per_node, len(found.samples)) == ("Chip", 4, 6)
    assert set(found.fits) == {"collective"}


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ('"m": 64', '"m": -7', "m = '-7' of a gemm sample: a whole number from 1"),
        ('"n": 64', '"n": 1.5', r"n = '1\.5' of a gemm sample"),
        ('"ranks": 1', '"ranks": 1e999', "ranks = 'inf' of a sample: a whole number from 0"),
    ],
)
def test_a_size_that_is_none_is_refused(good: str, bad: str, says: str, tmp_path: Path) -> None:
    source, into = tmp_path / "journal", tmp_path / "data.pt"
    journal = Journal.open(source, "Chip")
    journal.append(Sample(case=GemmCase(m=64, k=64, n=64), trials_s=(1e-5,)))
    journal.close()
    assert good in source.read_text()
    source.write_text(source.read_text().replace(good, bad))
    with pytest.raises(ProfileError, match=says):
        main(["journal", str(source), "--into", str(into)])
    assert not into.exists()


def test_a_size_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "curves.csv"
    source.write_text(f"gpu,m,n,k,latency_us\nA,{'9' * 30},2,3,4\n")
    with pytest.raises(ProfileError, match=r"m = '1\d+' of a gemm sample: a whole number from 1"):
        main(["csv", str(source), "--gpu", "Chip", "--into", str(tmp_path / "data.pt")])


H200 = ("H200-SXM-141GB", "nvidia h200", "h200", " H200-sxm-141gb ")


@pytest.mark.parametrize("name", H200)
def test_a_gpu_goes_by_every_name_of_its_sheet(name: str, tmp_path: Path) -> None:
    source, into = tmp_path / "nccl.csv", tmp_path / "data.pt"
    source.write_text(CSV)
    assert main(["csv", str(source), "--gpu", name, "--of", "A", "--into", str(into)]) == 0
    assert load_profile(into).machine.gpu == "H200-SXM-141GB"


@pytest.mark.parametrize(
    ("text", "cluster"), [(CSV.replace("B,", "A,"), ""), ("gpu,m,n,k,latency_us\nA,1,2,3,4\n", "h200")]
)
def test_a_gpu_alone_says_no_network(text: str, cluster: str, tmp_path: Path) -> None:
    source, into = tmp_path / "t.csv", tmp_path / "data.pt"
    source.write_text(text)
    assert main(["csv", str(source), "--gpu", "NVIDIA H200", "--into", str(into)]) == 0
    assert load_profile(into).machine.cluster == cluster


def test_the_journal_of_another_run_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "data.pt"
    journal = Journal.open(tmp_path / "other.pt.journal", "NVIDIA H200")
    for sample in gemm_samples():
        journal.append(sample)
    journal.close()
    with journal_path(tmp_path / "other.pt").open("a") as handle:
        handle.write('{"family": "ge')  # killed here
    assert main(["journal", str(tmp_path / "other.pt.journal"), "--into", str(into)]) == 0
    assert f"{len(gemm_samples())} samples of H200-SXM-141GB added" in capsys.readouterr().out
    assert len(load_profile(into).samples) == len(gemm_samples())


def test_a_journal_without_samples_makes_no_profile(tmp_path: Path) -> None:
    Journal.open(tmp_path / "x.journal", "NVIDIA H200").close()
    with pytest.raises(ProfileError, match="no samples; nothing imported"):
        main(["journal", str(tmp_path / "x.journal"), "--into", str(tmp_path / "data.pt")])
    assert not (tmp_path / "data.pt").exists()


def test_a_source_without_a_gpu_needs_one_named(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "x.journal", "")
    journal.append(gemm_samples()[0])
    journal.close()
    with pytest.raises(ProfileError, match="names no GPU; say which with --gpu"):
        main(["journal", str(tmp_path / "x.journal"), "--into", str(tmp_path / "data.pt")])
