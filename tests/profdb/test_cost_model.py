"""The one door: known points, origins that cannot be wrong, one price for equal shapes, clear misses."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.cases import CollectiveCase, GemmCase, HostCase
from profdb.cost_model import ProfileCostModel
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    TimeEstimate,
)
from profdb.sample import Sample
from spec.collectives import Collective
from spec.errors import ConfigError, MissingCurveError
from spec.origin import Origin
from tests.profdb.profiles import (
    collective_s,
    collective_samples,
    gemm_samples,
    one_of_each,
    product_s,
    profile,
    sample,
)

COST_MODEL = ProfileCostModel(profile(gemm_samples() + collective_samples()))


def test_sampled_points_are_returned_as_measured() -> None:
    priced = COST_MODEL.linear_s(LinearQuery(m=[256, 4096], k=[512, 1024], n=[2048, 512]))
    expected = [product_s(256, 512, 2048), product_s(4096, 1024, 512)]
    assert priced.seconds == pytest.approx(expected, rel=1e-6)
    assert priced.origin.tolist() == [Origin.MEASURED] * 2


def test_between_samples_is_near_the_formula_and_measured() -> None:
    priced = COST_MODEL.linear_s(LinearQuery(m=3000, k=1500, n=700))
    assert priced.seconds[0] == pytest.approx(product_s(3000, 1500, 700), rel=0.03)
    assert priced.origin[0] == Origin.MEASURED


def test_groups_of_one_and_nothing_to_do_cost_nothing() -> None:
    comm = CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=[0, 1024, 1024], intra=[8, 1, 8], inter=1)
    priced = COST_MODEL.collective_s(comm)
    assert priced.seconds[:2].tolist() == [0.0, 0.0]
    assert priced.origin[:2].tolist() == [Origin.DERIVED] * 2
    assert priced.seconds[2] > 0.0
    gemm = COST_MODEL.linear_s(LinearQuery(m=[0, 5], k=[5, 5], n=[5, 0]))
    assert gemm.seconds.tolist() == [0.0, 0.0]
    assert COST_MODEL.p2p_s(P2PQuery(size_bytes=4, intra=1, inter=1)).seconds.tolist() == [0.0]


def test_collective_inside_its_samples_and_beyond() -> None:
    query = CollectiveQuery(
        collective=Collective.ALL_GATHER, size_bytes=[1 << 20, 3 << 20, 1 << 31, 1], intra=8, inter=1, siblings=1
    )
    priced = COST_MODEL.collective_s(query)
    expected = [collective_s(1 << 20, 8), collective_s(3 << 20, 8), collective_s(1 << 31, 8)]
    assert priced.seconds[:3] == pytest.approx(expected, rel=0.01)
    assert priced.origin.tolist() == [Origin.MEASURED, Origin.MEASURED, Origin.EXTRAPOLATED, Origin.EXTRAPOLATED]


def test_unmeasured_group_follows_latency_and_wire() -> None:
    cost_model = ProfileCostModel(profile(collective_samples(ranks=(2, 4))))
    sizes = np.asarray([1 << 12, 1 << 20, 1 << 28])
    priced = cost_model.collective_s(
        CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=sizes, intra=8, inter=1)
    )
    assert priced.seconds == pytest.approx([collective_s(int(s), 8) for s in sizes], rel=0.02)
    assert set(priced.origin.tolist()) == {int(Origin.EXTRAPOLATED)}


@given(
    sizes=st.lists(st.integers(1, 1 << 33), min_size=2, max_size=30),
    intra=st.sampled_from([2, 3, 4, 6, 8, 16]),
    noise=st.integers(0, 2**32 - 1),
)
def test_larger_message_is_never_faster(sizes: list[int], intra: int, noise: int) -> None:
    rng = np.random.default_rng(noise)
    shaken = [sample(s.case, s.median_s * float(rng.lognormal(0.0, 0.5))) for s in collective_samples(ranks=(2, 4))]
    ordered = np.sort(np.asarray(sizes))
    priced = ProfileCostModel(profile(shaken)).collective_s(
        CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=ordered, intra=intra, inter=1)
    )
    assert np.all(np.diff(priced.seconds) >= -1e-15)
    assert np.all(priced.seconds > 0.0)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda b: b.linear_s(LinearQuery(m=1, k=1, n=1, dtype="fp8")), "gemm.*fp8"),
        (lambda b: b.grouped_linear_s(GroupedLinearQuery(groups=1, m=1, k=1, n=1)), "grouped_gemm"),
        (
            lambda b: b.attention_s(AttentionQuery(q_len=1, kv_len=1, heads=1, kv_heads=1, qk_dim=1, v_dim=1)),
            "attention",
        ),
        (lambda b: b.memory_bound_s(MemoryBoundQuery(kernel="add", rows=1, width=1)), "memory_bound"),
        (lambda b: b.optimizer_s(OptimizerQuery(elements=1)), "optimizer"),
        (
            lambda b: b.collective_s(CollectiveQuery(collective=Collective.ALL_TO_ALL, size_bytes=1, intra=2, inter=1)),
            "--only all2all",
        ),
        (
            lambda b: b.collective_s(CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=1, intra=8, inter=2)),
            "--nnodes=2",
        ),
        (lambda b: b.p2p_s(P2PQuery(size_bytes=1, intra=2, inter=1)), "p2p"),
        (lambda b: b.cpu_s("launch"), "host"),
    ],
)
def test_missing_curve_names_the_command(ask: object, says: str) -> None:
    with pytest.raises(MissingCurveError, match=says) as caught:
        ask(COST_MODEL)  # type: ignore[operator]
    assert "gen_profiler_data.py --only " in caught.value.command


@pytest.mark.parametrize("given_", [{"missing": "guess"}, {"missing": "modelled"}])
def test_wrong_policy_is_refused(given_: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        ProfileCostModel(profile([]), **given_)  # type: ignore[arg-type]


def test_every_family_answers_its_own_sample() -> None:
    cost_model = ProfileCostModel(profile(one_of_each()))
    assert cost_model.linear_s(LinearQuery(m=16, k=32, n=64, bias=True)).seconds[0] == pytest.approx(1e-5)
    assert cost_model.grouped_linear_s(GroupedLinearQuery(groups=4, m=64, k=32, n=16)).seconds[0] == pytest.approx(2e-5)
    assert cost_model.optimizer_s(OptimizerQuery(elements=1 << 20)).seconds[0] == pytest.approx(5e-5)
    assert cost_model.cpu_s("launch").seconds[0] == pytest.approx(7e-6)
    assert cost_model.memory_bound_s(MemoryBoundQuery(kernel="rmsnorm", rows=128, width=256)).seconds[
        0
    ] == pytest.approx(4e-6)


def test_kernel_that_moves_nothing_costs_nothing() -> None:
    priced = COST_MODEL.memory_bound_s(MemoryBoundQuery(kernel="norm_reduce", direction="backward", rows=100, width=1))
    assert priced.seconds.tolist() == [0.0]


def test_two_host_runs_of_one_kind_give_their_median() -> None:
    runs = [Sample(case=HostCase(kind="launch"), trials_s=(t,)) for t in (3e-6, 5e-6, 9e-6)]
    assert ProfileCostModel(profile(runs)).cpu_s("launch").seconds[0] == pytest.approx(5e-6)


def test_a_row_alone_equals_the_row_in_the_table() -> None:
    m = np.asarray([256, 300, 5000, 100000])
    together = COST_MODEL.linear_s(LinearQuery(m=m, k=1024, n=2048))
    for row, value in enumerate(m.tolist()):
        alone = COST_MODEL.linear_s(LinearQuery(m=value, k=1024, n=2048))
        assert alone.seconds[0] == pytest.approx(together.seconds[row], rel=1e-12)
        assert alone.origin[0] == together.origin[row]


def test_a_million_look_ups_of_ten_thousand_shapes_take_a_second() -> None:
    """A quarter of them, the best of three: a busy machine's cores share their caches."""
    rng = np.random.default_rng(0)
    shapes = rng.integers(256, 8192, (10_000, 3))
    rows = rng.integers(0, 10_000, 250_000)
    query = LinearQuery(m=shapes[rows, 0], k=shapes[rows, 1], n=shapes[rows, 2])
    COST_MODEL.linear_s(LinearQuery(m=1024, k=1024, n=1024))
    elapsed_s = []
    for _ in range(3):
        started = time.process_time()
        assert COST_MODEL.linear_s(query).seconds.shape == (250_000,)
        elapsed_s.append(time.process_time() - started)
    assert min(elapsed_s) < 0.5


def test_a_case_out_of_memory_is_no_time() -> None:
    case = GemmCase(m=1024, k=1024, n=1024)
    cost_model = ProfileCostModel(profile([Sample(case=case, trials_s=(), status="oom")]))
    with pytest.raises(MissingCurveError):
        cost_model.linear_s(LinearQuery(m=1024, k=1024, n=1024))


def test_case_of_collective_is_found_by_kind_alone() -> None:
    broadcast = [
        sample(CollectiveCase(collective=Collective.BROADCAST, size_bytes=s, intra=2, inter=1), 1e-5)
        for s in (1024, 4096)
    ]
    with pytest.raises(MissingCurveError):
        ProfileCostModel(profile(broadcast)).collective_s(
            CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=2048, intra=2, inter=1)
        )


class Counting:
    """A model whose product of m and n takes 10 m + n seconds, and which notes every shape it is asked for."""

    def __init__(self) -> None:
        self.shapes: list[list[int]] = []

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        columns = query.columns()
        self.shapes.append(columns["m"].tolist())
        return TimeEstimate(
            seconds=columns["m"] * 10.0 + columns["n"], relative_std=columns["m"] / 100.0, origin=columns["m"] % 3
        )


def test_a_shape_is_priced_once_under_the_same_words() -> None:
    model = Counting()
    cost_model = ProfileCostModel(profile([]), missing="modelled", modelled=model)  # type: ignore[arg-type]
    cost_model.linear_s(LinearQuery(m=[4, 1, 4], k=1, n=[7, 8, 7]))
    found = cost_model.linear_s(LinearQuery(m=[1, 5, 4, 4], k=1, n=[8, 7, 8, 7]))
    # (4, 8) is none of the first two, though both of its numbers are.
    assert model.shapes == [[4, 1], [5, 4]]
    assert found.seconds.tolist() == [18.0, 57.0, 48.0, 47.0]
    assert found.relative_std.tolist() == [0.01, 0.05, 0.04, 0.04]
    assert (found.origin.dtype, found.origin.tolist()) == (np.int64, [1, 2, 1, 1])
    for words in ({"layout": "TN"}, {"dtype": "fp16"}, {"bias": True}):
        cost_model.linear_s(LinearQuery(m=4, k=1, n=7, **words))
    assert model.shapes[2:] == [[4]] * 3
    found.seconds[:] = 0.0
    assert cost_model.linear_s(LinearQuery(m=1, k=1, n=8)).seconds.tolist() == [18.0]
