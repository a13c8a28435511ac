"""The cluster that a profile names, read without loading it, is the one that loading it gives."""

from pathlib import Path

import pytest
import torch

from profdb.cases import HostCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.archive import cluster_named_by
from profdb.store.data_file import load_profile, save_profile
from spec.errors import ProfileError
from tests.solver.questions import ROOT

SAMPLE = Sample(case=HostCase(kind="launch"), trials_s=(1e-6,))


def test_the_shipped_profile() -> None:
    path = ROOT / "prof_data" / "data.pt"
    assert cluster_named_by(path) == load_profile(path).machine.cluster == "h200"


# a name of its own; one that stands before it as another fact, which a pickle recalls by number; none
@pytest.mark.parametrize(
    ("machine", "cluster"),
    [
        (MachineFacts(gpu="H100-SXM-80GB", cluster="h100-sxm"), "h100-sxm"),
        (MachineFacts(gpu="h200", cluster="h200"), "h200"),
        (MachineFacts(gpu="cluster", cluster="h200"), "h200"),
        (MachineFacts(gpu="H100-SXM-80GB", cluster=""), ""),
    ],
)
def test_profiles_as_they_are_saved(machine: MachineFacts, cluster: str, tmp_path: Path) -> None:
    save_profile(tmp_path / "p.pt", ProfileDatabase(machine=machine, samples=(SAMPLE,)))
    assert cluster_named_by(tmp_path / "p.pt") == cluster


@pytest.mark.parametrize(
    "content",
    [b"no archive", b"PK\x03\x04" + b"\0" * 100, b"PK\x05\x06" + b"\0" * 18],
    ids=("text", "zip", "empty zip"),
)
def test_what_a_glance_cannot_tell_is_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.pt").write_bytes(content)
    assert cluster_named_by(tmp_path / "p.pt") == ""
    torch.save({"machine": 3}, tmp_path / "q.pt")
    assert cluster_named_by(tmp_path / "q.pt") == ""


def test_damage_is_no_traceback(tmp_path: Path) -> None:
    machine = MachineFacts(gpu="H100-SXM-80GB", cluster="h100-sxm")
    save_profile(tmp_path / "p.pt", ProfileDatabase(machine=machine, samples=(SAMPLE,)))
    content = (tmp_path / "p.pt").read_bytes()
    for place in range(0, len(content), 97):
        (tmp_path / "q.pt").write_bytes(content[:place] + b"\xff" * 16 + content[place + 16 :])
        cluster_named_by(tmp_path / "q.pt")
        (tmp_path / "q.pt").write_bytes(content[: place + 1])
        cluster_named_by(tmp_path / "q.pt")


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such profile"):
        cluster_named_by(tmp_path / "p.pt")
