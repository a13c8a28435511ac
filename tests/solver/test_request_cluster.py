"""Which clusters a profile may be asked about: its GPU, and its network where it holds one."""

from pathlib import Path

import pytest

from profdb.cases import Case, CollectiveCase, HostCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import save_profile
from solver.request import Request, open_question
from spec.collectives import Collective
from spec.errors import ConfigError
from tests.solver.questions import ROOT

COMPUTE = HostCase(kind="launch")
NETWORK = CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=1024, intra=8, inter=1)


def asked(folder: Path, cluster: str, *cases: Case) -> Request:
    """A profile of the cases, taken on H100s of one network, asked about ``cluster``."""
    machine = MachineFacts(gpu="H100-SXM-80GB", cluster="h100-sxm")
    samples = tuple(Sample(case=case, trials_s=(1e-6,)) for case in cases)
    save_profile(folder / "p.pt", ProfileDatabase(machine=machine, samples=samples))
    return Request(
        profile=folder / "p.pt",
        root=ROOT,
        config=ROOT / "configs" / "7B_llama2.py",
        world_size=16,
        global_batch_tokens=524288,
        cluster=cluster,
        missing="modelled",
    )


def test_a_profile_of_one_gpu_suits_another_network(tmp_path: Path) -> None:
    opened = open_question(asked(tmp_path, "gcp-a3-mega", COMPUTE))
    assert opened.question.cluster.name == "gcp-a3-mega"


@pytest.mark.parametrize(("cluster", "cases"), [("gcp-a3-mega", (COMPUTE, NETWORK)), ("h200", (COMPUTE,))])
def test_another_gpu_or_a_measured_network_is_refused(
    cluster: str, cases: tuple[Case, ...], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=cluster):
        open_question(asked(tmp_path, cluster, *cases))
