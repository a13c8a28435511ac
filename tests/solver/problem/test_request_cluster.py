"""Whose times answer: the profile's for its GPU and network, the sheet's for others, or the profile's restated."""

from dataclasses import replace
from pathlib import Path

import pytest

from profdb.cases import Case, CollectiveCase, GemmCase, HostCase
from profdb.cost_model import CostModel, ProfileCostModel
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import CollectiveQuery, LinearQuery, MemoryBoundQuery
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import save_profile
from solver.problem.cluster_times import ClusterTimes
from solver.problem.interval import Evidence
from solver.problem.loading import load_problem
from solver.problem.request import Request, profile_path, read_request
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError, ProfileError
from spec.origin import Origin
from tests.solver.questions import ROOT, request

COMPUTE = HostCase(kind="launch")
PRODUCT_TAKEN = GemmCase(m=4096, k=4096, n=4096)
TAKEN_S = 2e-4
NETWORK = CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=1024, intra=8, inter=1)


def llama(world_size: int, cluster: str, **fields: object) -> Request:
    """Llama-2-7B, a sequence a GPU."""
    batch = {"global_batch_tokens": 4096 * world_size, "missing": "modelled"}
    return request("7B_llama2.py", world_size, cluster=cluster, **batch, **fields)


def asked(folder: Path, cluster: str, *cases: Case, origin: Origin = Origin.MEASURED, rest: str = "") -> Request:
    """A profile of the cases, taken on H100s of one network, asked about ``cluster``."""
    machine = MachineFacts(gpu="H100-SXM-80GB", cluster="h100-sxm", rest=rest)
    samples = tuple(Sample(case=case, trials_s=(TAKEN_S,), origin=origin) for case in cases)
    save_profile(folder / "p.pt", ProfileDatabase(machine=machine, samples=samples))
    return llama(16, cluster, profile=folder / "p.pt")


def book_of(request: Request) -> tuple[CostModel, ClusterTimes]:
    """The cost model that answers, and what is said of it."""
    inputs = load_problem(request)
    return inputs.times.cost_model, inputs.times


SUM = CollectiveQuery(collective=Collective.ALL_REDUCE, size_bytes=[1024], intra=[8], inter=[2])
PRODUCT = LinearQuery(m=[4096], k=[4096], n=[4096])


def test_a_profile_of_one_gpu_suits_another_network(tmp_path: Path) -> None:
    inputs = load_problem(asked(tmp_path, "gcp-a3-mega", COMPUTE))
    assert inputs.problem.cluster.name == "gcp-a3-mega"
    assert inputs.source == str(tmp_path / "p.pt")


def test_another_gpu_is_answered_from_its_sheet(tmp_path: Path) -> None:
    request = replace(asked(tmp_path, "h200", COMPUTE, PRODUCT_TAKEN), missing="error")
    cost_model, times = book_of(request)
    assert "using the hardware spec" in times.source
    assert "--transfer" in times.source
    sheet = ModelledCostModel(cluster=read_cluster("h200", root=ROOT))
    for query in (SUM, replace(SUM, size_bytes=[2**20])):
        assert cost_model.collective_s(query).seconds == pytest.approx(sheet.collective_s(query).seconds, rel=1e-12)
    told = cost_model.linear_s(PRODUCT)
    assert told.seconds == pytest.approx(sheet.linear_s(PRODUCT).seconds, rel=1e-12)
    assert told.origin.tolist() == [int(Origin.MODELLED)]


def test_of_another_network_only_the_collectives_are_modelled(tmp_path: Path) -> None:
    cost_model, times = book_of(asked(tmp_path, "gcp-a3-mega", COMPUTE, replace(NETWORK, inter=2)))
    assert "the network of gcp-a3-mega is modelled from its hardware spec" in times.source
    sheet = ModelledCostModel(cluster=read_cluster("gcp-a3-mega", root=ROOT))
    assert cost_model.collective_s(SUM).seconds == pytest.approx(sheet.collective_s(SUM).seconds, rel=1e-12)
    assert cost_model.cpu_s("launch").origin.tolist() == [int(Origin.MEASURED)]


def test_what_a_published_profile_lacks_is_modelled_on_another_network_too(tmp_path: Path) -> None:
    request = asked(tmp_path, "gcp-a3-mega", replace(NETWORK, inter=2), rest="modelled")
    cost_model, times = book_of(replace(request, missing="error"))
    assert "the network of gcp-a3-mega is modelled" in times.source
    assert cost_model.linear_s(PRODUCT).origin[0] == Origin.MODELLED


def test_collectives_of_one_node_are_those_of_every_cluster_with_such_nodes(tmp_path: Path) -> None:
    cost_model, times = book_of(asked(tmp_path, "gcp-a3-mega", NETWORK))
    inside = cost_model.collective_s(replace(SUM, size_bytes=[1024], inter=[1]))
    assert inside.seconds[0] == pytest.approx(TAKEN_S, rel=1e-12)
    assert (inside.origin[0], times.source) == (Origin.MEASURED, "")
    assert cost_model.collective_s(SUM).origin[0] == int(Origin.MODELLED)


SHIPPED = {
    "h100-sxm": "h100-sxm.pt",
    "azure-nd-h100-v5": "h100-sxm.pt",
    "aws-p5en": "data.pt",
    "a100-sxm-80g": "a100-sxm-80g.pt",
}


@pytest.mark.parametrize(("cluster", "file"), [*SHIPPED.items(), ("gcp-a4", "b200.pt")])
def test_a_cluster_is_answered_from_the_shipped_measurements_of_its_gpu(cluster: str, file: str) -> None:
    """Products and collectives of a node were measured, those between nodes are modelled, though ``missing`` is an error."""
    request = replace(llama(16, cluster), missing="error")
    assert profile_path(request).name == file
    cost_model, times = book_of(request)
    assert f"{file}, published measurements; what they lack is modelled" in times.source
    inside = cost_model.collective_s(replace(SUM, size_bytes=[2**20], inter=[1]))
    assert (cost_model.linear_s(PRODUCT).origin[0], inside.origin[0]) == (Origin.MEASURED, Origin.MEASURED)
    assert cost_model.collective_s(SUM).origin[0] == int(Origin.MODELLED)
    assert load_problem(request).problem.evidence is Evidence.SPEC


def test_a_curve_far_from_its_samples_that_says_nothing_gives_way_to_the_model() -> None:
    """A gradient of 350 million elements in three columns, where rows of 4,096 and more were measured."""
    cost_model, times = book_of(llama(16, "h100-sxm"))
    query = MemoryBoundQuery(kernel="accumulate", rows=[116_666_667], width=[3], direction="backward")
    alone = ProfileCostModel(times.profile).memory_bound_s(query)
    assert (1.0 < alone.relative_std[0] < 2.0, alone.origin[0]) == (True, Origin.EXTRAPOLATED)
    modelled = ModelledCostModel(cluster=read_cluster("h100-sxm", root=ROOT)).memory_bound_s(query)
    answer = cost_model.memory_bound_s(query)
    assert (answer.seconds[0], answer.origin[0]) == (modelled.seconds[0], Origin.MODELLED)


@pytest.mark.parametrize(("name", "gpu"), [("h100-sxm.pt", "B200-SXM"), ("data.pt", "H100-SXM-80GB")])
def test_the_working_folders_profile_goes_before_the_shipped_one(
    name: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prof_data").mkdir()
    save_profile(Path("prof_data") / name, ProfileDatabase(machine=MachineFacts(gpu=gpu, cluster="h100-sxm")))
    assert profile_path(llama(16, "h100-sxm")) == Path("prof_data") / name
    assert profile_path(llama(16, "b200")) == ROOT / "prof_data" / "b200.pt"
    assert profile_path(llama(16, "mi300x")).name == "data.pt"


def test_transfer_restates_what_was_measured(tmp_path: Path) -> None:
    """The product keeps its ratio to the sheet's model (profdb.transfer)."""
    request = replace(asked(tmp_path, "h200", COMPUTE, PRODUCT_TAKEN), transfer=True)
    cost_model, times = book_of(request)
    assert "transferred to H200-SXM-141GB" in times.source
    assert cost_model.linear_s(PRODUCT).origin.tolist() == [int(Origin.TRANSFERRED)]
    here, there = (ModelledCostModel(cluster=read_cluster(name, root=ROOT)) for name in ("h200", "h100-sxm"))
    ratio = here.linear_s(PRODUCT).seconds / there.linear_s(PRODUCT).seconds
    assert cost_model.linear_s(PRODUCT).seconds == pytest.approx(TAKEN_S * ratio, rel=1e-6)


@pytest.mark.parametrize(("cluster", "origin"), [("h100-sxm", Origin.MEASURED), ("h200", Origin.MODELLED)])
def test_transfer_wants_measurements_of_another_gpu(cluster: str, origin: Origin, tmp_path: Path) -> None:
    request = replace(asked(tmp_path, cluster, PRODUCT_TAKEN, origin=origin), transfer=True)
    with pytest.raises(ConfigError, match=r"--transfer.*measurements of another GPU"):
        load_problem(request)


def test_a_cluster_is_answered_without_any_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    request = replace(asked(tmp_path, "b200", COMPUTE), profile=None, root=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_problem(request).source == "no b200 profile: using the hardware spec"
    with pytest.raises(ProfileError, match=r"prof_data/data.pt: no such profile; .*--cluster"):
        load_problem(replace(request, cluster=None))


def test_a_profile_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    request = replace(asked(tmp_path, "b200", COMPUTE), profile=tmp_path / "absent.pt")
    with pytest.raises(ProfileError, match=r"absent\.pt: no such profile"):
        load_problem(request)


@pytest.mark.parametrize(("said", "ranks"), [({}, 64), ({"nvlink_segment": 72}, 72), ({"nvlink_segment": 36}, 36)])
def test_a_job_says_its_segment_of_an_nvlink_domain(said: dict[str, object], ranks: int) -> None:
    """1,152 GPUs are 18 segments of 64 and 16 racks of 72; plans are placed on what the job gets."""
    asked = read_request(llama(1152, "gb200-nvl72", job=said))
    assert asked.hardware_spec.scale_up_ranks == 72
    assert asked.cluster.scale_up_ranks == ranks


def test_a_segment_that_does_not_divide_the_world_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nvlink_segment = 72.*4, 8, 16, 32, 64"):
        read_request(llama(128, "gb200-nvl72", job={"nvlink_segment": 72}))
