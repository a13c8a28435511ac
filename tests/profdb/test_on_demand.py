"""Measuring during a search: only what no sample surrounds, once, and kept."""

import pytest

from profdb.cases import AttentionCase, Case, GemmCase
from profdb.cost_model import ProfileCostModel
from profdb.on_demand import OnDemand
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery
from profdb.sample import Sample
from spec.collectives import Collective
from spec.errors import MissingCurveError
from spec.origin import Origin
from tests.profdb.profiles import gemm_samples, product_s, profile


class Meter:
    def __init__(self, status: str = "ok") -> None:
        self.asked: list[Case] = []
        self.status = status

    def __call__(self, case: Case) -> Sample:
        self.asked.append(case)
        trials = (0.5, 0.5) if self.status == "ok" else ()
        return Sample(case=case, trials_s=trials, status=self.status)


def test_far_shapes_are_measured_once_and_near_ones_are_not() -> None:
    meter = Meter()
    on_demand = OnDemand(meter)
    cost_model = ProfileCostModel(profile(gemm_samples()), on_demand=on_demand)
    for _ in range(2):
        priced = cost_model.linear_s(LinearQuery(m=[1024, 1 << 20, 1 << 20], k=1024, n=1024))
    assert meter.asked == [GemmCase(m=1 << 20, k=1024, n=1024)]
    assert priced.seconds.tolist() == pytest.approx([product_s(1024, 1024, 1024), 0.5, 0.5])
    assert priced.origin.tolist() == [Origin.MEASURED] * 3
    assert [s.case for s in on_demand.samples()] == meter.asked


def test_a_whole_missing_family_can_be_measured() -> None:
    meter = Meter()
    cost_model = ProfileCostModel(profile([]), on_demand=OnDemand(meter))
    query = AttentionQuery(q_len=64, kv_len=64, heads=4, kv_heads=2, qk_dim=32, v_dim=32, direction="backward")
    assert cost_model.attention_s(query).seconds.tolist() == [0.5]
    assert meter.asked == [
        AttentionCase(batch=1, q_len=64, kv_len=64, heads=4, kv_heads=2, qk_dim=32, v_dim=32, direction="backward")
    ]


def test_out_of_memory_is_asked_once_and_leaves_the_curve_its_answer() -> None:
    meter = Meter("oom")
    cost_model = ProfileCostModel(profile(gemm_samples()), on_demand=OnDemand(meter))
    query = LinearQuery(m=1 << 20, k=1024, n=1024)
    first, second = cost_model.linear_s(query), cost_model.linear_s(query)
    assert len(meter.asked) == 1
    assert first.origin[0] == second.origin[0] == Origin.EXTRAPOLATED


def test_collectives_are_not_measured_by_one_process() -> None:
    meter = Meter()
    cost_model = ProfileCostModel(profile([]), on_demand=OnDemand(meter))
    with pytest.raises(MissingCurveError):
        cost_model.collective_s(CollectiveQuery(collective=Collective.ALL_REDUCE, size_bytes=8, intra=2, inter=1))
    assert meter.asked == []


def test_what_the_profile_knows_of_a_far_shape_is_not_measured_again() -> None:
    held = Sample(case=GemmCase(m=1 << 20, k=1024, n=1024), trials_s=(0.25,))
    meter = Meter()
    known = profile([*gemm_samples(), held])
    on_demand = OnDemand(meter, earlier=known.tables)
    # The cost model's own curves have not seen it: they would extrapolate.
    cost_model = ProfileCostModel(profile(gemm_samples()), on_demand=on_demand)
    assert cost_model.linear_s(LinearQuery(m=1 << 20, k=1024, n=1024)).seconds.tolist() == [0.25]
    assert meter.asked == on_demand.samples() == []


def test_after_the_time_allowed_the_curve_answers() -> None:
    meter = Meter()
    on_demand = OnDemand(meter, allowed_s=0.0)
    cost_model = ProfileCostModel(profile(gemm_samples()), on_demand=on_demand)
    priced = cost_model.linear_s(LinearQuery(m=[1 << 20, 1 << 21], k=1024, n=1024))
    assert priced.origin.tolist() == [Origin.EXTRAPOLATED] * 2
    assert (meter.asked, on_demand.num_unmeasured) == ([], 2)
