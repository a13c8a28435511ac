"""The grid of a modelled profile: complete, each case once, priced as the cost model prices it."""

from collections import Counter
from dataclasses import replace

import pytest

from profdb.cases import CollectiveCase, GemmCase, GroupedGemmCase, MemoryBoundCase
from profdb.fits.families import FITTERS
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.grid import all_cases
from profdb.modelled.profile import modelled_samples, modelled_seconds
from profdb.queries import CollectiveQuery, GroupedLinearQuery, LinearQuery, MemoryBoundQuery
from profdb.sample import Sample, tabulate
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.origin import Origin
from tests.solver.questions import ROOT

H100 = read_cluster("h100-sxm", root=ROOT)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return modelled_samples(H100)


def test_every_family_is_there_and_no_case_twice(samples: list[Sample]) -> None:
    tables = tabulate(samples)
    assert set(tables) == set(FITTERS)  # the others are compared with times, and tell none
    assert max(Counter(sample.case for sample in samples).values()) == 1
    assert 10_000 < len(samples) < 50_000


def test_every_sample_says_that_nobody_measured_it(samples: list[Sample]) -> None:
    assert {sample.origin for sample in samples} == {Origin.MODELLED}
    assert {(sample.world.nodes, sample.world.ranks) for sample in samples} == {(0, 0)}
    assert all(len(sample.trials_s) == 1 for sample in samples)


def test_collectives_reach_two_thousand_nodes_and_fill_the_nics(samples: list[Sample]) -> None:
    shapes = {
        (case.intra, case.inter, case.siblings)
        for sample in samples
        if isinstance(case := sample.case, CollectiveCase) and case.collective is not Collective.P2P
    }
    assert {(8, 1, 1), (8, 2048, 1), (1, 2048, 8), (2, 1, 4), (4, 3, 2)} <= shapes
    assert all(intra * siblings == 8 for intra, _, siblings in shapes)


@pytest.mark.parametrize(
    ("name", "dtype"), [("h100-sxm", "bf16"), ("dgx2-v100", "fp16"), ("cpu", "bf16"), ("l40s", "bf16")]
)
def test_the_grid_holds_only_formats_of_the_gpu(name: str, dtype: str) -> None:
    cluster = read_cluster(name, root=ROOT)
    cases = [case for case in all_cases(cluster) if isinstance(case, GemmCase)]
    assert {case.dtype_in for case in cases} <= set(cluster.gpu.peak_flops)
    assert dtype in {case.dtype_in for case in cases}


def test_a_case_is_priced_as_the_book_prices_its_question() -> None:
    """Each stored key is what was asked for: different words, different numbers, one of each family."""
    cost_model = ModelledCostModel(cluster=H100)
    cases = [
        GemmCase(m=512, k=4096, n=1024, layout="TN", dtype_in="fp8", scale_recipe="tensor", bias=True),
        GemmCase(m=4096, k=512, n=1024),
        GroupedGemmCase(groups=8, m=4096, k=2048, n=1024, layout="TN"),
        MemoryBoundCase(kernel="cross_entropy", direction="backward", rows=4096, width=32000),
        CollectiveCase(collective=Collective.ALL_TO_ALL, size_bytes=1 << 26, intra=2, inter=4, siblings=4),
        CollectiveCase(collective=Collective.P2P, size_bytes=1 << 26, intra=1, inter=2, siblings=8),
    ]
    asked = [
        cost_model.linear_s(LinearQuery(m=512, k=4096, n=1024, layout="TN", dtype="fp8", scale_recipe="tensor")),
        cost_model.linear_s(LinearQuery(m=4096, k=512, n=1024)),
        cost_model.grouped_linear_s(GroupedLinearQuery(groups=8, m=4096, k=2048, n=1024, layout="TN")),
        cost_model.memory_bound_s(
            MemoryBoundQuery(kernel="cross_entropy", direction="backward", rows=4096, width=32000)
        ),
        cost_model.collective_s(
            CollectiveQuery(collective=Collective.ALL_TO_ALL, size_bytes=1 << 26, intra=2, inter=4, siblings=4)
        ),
        cost_model.collective_s(
            CollectiveQuery(collective=Collective.P2P, size_bytes=1 << 26, intra=1, inter=2, siblings=8)
        ),
    ]
    predicted = modelled_seconds(cost_model, cases)
    assert predicted.tolist() == [float(priced.seconds[0]) for priced in asked]


def test_a_faster_gpu_changes_the_samples() -> None:
    faster = replace(H100, gpu=replace(H100.gpu, memory_bandwidth=2.0 * H100.gpu.memory_bandwidth))
    case = MemoryBoundCase(kernel="copy", direction="forward", rows=1 << 20, width=4096)
    slow, fast = (modelled_seconds(ModelledCostModel(cluster=c), [case])[0] for c in (H100, faster))
    assert fast == pytest.approx(slow / 2.0, rel=0.01)
