"""Cases are priced as the cost model prices their questions."""

from dataclasses import replace

import pytest

from profdb.cases import CollectiveCase, GemmCase, GroupedGemmCase, MemoryBoundCase
from profdb.modelled.case_times import modelled_seconds
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import CollectiveQuery, GroupedLinearQuery, LinearQuery, MemoryBoundQuery
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from tests.solver.questions import ROOT

H100 = read_cluster("h100-sxm", root=ROOT)


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


def test_a_faster_gpu_changes_the_times() -> None:
    faster = replace(H100, gpu=replace(H100.gpu, memory_bandwidth=2.0 * H100.gpu.memory_bandwidth))
    case = MemoryBoundCase(kernel="copy", direction="forward", rows=1 << 20, width=4096)
    slow, fast = (modelled_seconds(ModelledCostModel(cluster=c), [case])[0] for c in (H100, faster))
    assert fast == pytest.approx(slow / 2.0, rel=0.01)
