"""Where a price comes from: no answer carries a better origin than its samples and its distance allow."""

from itertools import product

import numpy as np
import pytest

from profdb.cases import AttentionCase, GemmCase, MemoryBoundCase
from profdb.cost_model import ProfileCostModel
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery, MemoryBoundQuery, TimeEstimate
from spec.collectives import Collective
from spec.errors import MissingCurveError
from spec.origin import Origin
from tests.profdb.profiles import (
    BYTES_PER_S,
    collective_s,
    collective_samples,
    gemm_samples,
    product_s,
    profile,
    sample,
)

COST_MODEL = ProfileCostModel(profile(gemm_samples() + collective_samples()))


@pytest.mark.parametrize("shape", [(1 << 17, 1024, 1024), (1024, 1 << 16, 1024), (16, 1024, 1024)])
def test_outside_the_samples_is_extrapolated(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    priced = COST_MODEL.linear_s(LinearQuery(m=m, k=k, n=n))
    assert priced.origin[0] == Origin.EXTRAPOLATED
    assert priced.seconds[0] == pytest.approx(product_s(m, k, n), rel=0.3)


@pytest.mark.parametrize("origin", [Origin.MODELLED, Origin.TRANSFERRED])
def test_unmeasured_samples_are_never_presented_as_measured(origin: Origin) -> None:
    cost_model = ProfileCostModel(profile(gemm_samples(origin=origin)))
    inside, outside = LinearQuery(m=1024, k=1024, n=1024), LinearQuery(m=1 << 20, k=1024, n=1024)
    borrowed = LinearQuery(m=1024, k=1024, n=1024, layout="TN")
    for query in (inside, outside, borrowed):
        assert cost_model.linear_s(query).origin.tolist() == [origin]


def test_measured_samples_of_a_case_displace_modelled_ones() -> None:
    modelled = [sample(s.case, 5.0 * s.median_s, Origin.MODELLED) for s in gemm_samples(origin=Origin.MODELLED)]
    cost_model = ProfileCostModel(profile(modelled + gemm_samples()))
    priced = cost_model.linear_s(LinearQuery(m=1024, k=1024, n=1024))
    assert priced.origin[0] == Origin.MEASURED
    assert priced.seconds[0] == pytest.approx(product_s(1024, 1024, 1024), rel=1e-6)


def test_borrowed_layout_is_extrapolated_with_a_wider_error() -> None:
    query = {"m": 1024, "k": 1024, "n": 1024}
    own = COST_MODEL.linear_s(LinearQuery(**query))
    borrowed = COST_MODEL.linear_s(LinearQuery(**query, layout="TN"))
    assert borrowed.origin[0] == Origin.EXTRAPOLATED
    assert borrowed.relative_std[0] > own.relative_std[0] + 0.1


def test_backward_attention_borrows_efficiency_not_time() -> None:
    lengths = (512, 1024, 2048, 4096, 8192)
    cases = [
        AttentionCase(batch=1, q_len=q, kv_len=q, heads=h, kv_heads=h, qk_dim=128, v_dim=128)
        for q in lengths
        for h in (8, 16, 32)
    ]
    # 2 (qk + v) FLOPs for each of q (q + 1) / 2 pairs of each head, at 3e14 FLOP/s, no floor
    cost_model = ProfileCostModel(
        profile([sample(c, 2 * 256 * c.q_len * (c.q_len + 1) / 2 * c.heads / 3e14) for c in cases])
    )
    sizes = {"q_len": 8192, "kv_len": 8192, "heads": 32, "kv_heads": 32, "qk_dim": 128, "v_dim": 128}
    forward = cost_model.attention_s(AttentionQuery(**sizes))
    backward = cost_model.attention_s(AttentionQuery(**sizes, direction="backward"))
    # FlashAttention-2 (2307.08691) sec. 4.1: backward FLOPs are 2.5 times the forward's
    assert backward.seconds[0] == pytest.approx(2.5 * forward.seconds[0], rel=0.02)
    assert backward.origin[0] == Origin.EXTRAPOLATED


def test_unknown_memory_kernel_borrows_bytes_per_second() -> None:
    cases = [MemoryBoundCase(kernel="copy", direction="forward", rows=r, width=4096) for r in (1024, 4096, 16384)]
    cost_model = ProfileCostModel(profile([sample(c, 4.0 * c.rows * c.width / BYTES_PER_S) for c in cases]))
    priced = cost_model.memory_bound_s(MemoryBoundQuery(kernel="add", rows=4096, width=4096))
    # add moves three bf16 tensors where copy moves two (ops.memory_bound)
    assert priced.seconds[0] == pytest.approx(6.0 * 4096 * 4096 / BYTES_PER_S, rel=0.3)
    assert priced.origin[0] == Origin.EXTRAPOLATED


class Sheet:
    """A cost model that answers one second to everything it is asked."""

    def __getattr__(self, name: str) -> object:
        def answer(query: object) -> TimeEstimate:
            size = getattr(query, "size", 1)
            return TimeEstimate(
                seconds=np.ones(size), relative_std=np.ones(size), origin=np.full(size, int(Origin.MODELLED))
            )

        return answer


def test_a_kernel_without_samples_is_read_from_a_copy_not_from_one_written_out() -> None:
    """The written-out kernel takes twice its bytes' time; it stands first in the profile."""
    rows = (1024, 4096, 16384)
    cases = [
        MemoryBoundCase(kernel=k, direction="forward", rows=r, width=4096)
        for k in ("clamp_glu_unfused", "copy")
        for r in rows
    ]
    seconds = {
        case: (32.0 if "unfused" in case.kernel else 4.0) * case.rows * case.width / BYTES_PER_S for case in cases
    }
    measured = profile([sample(case, time) for case, time in seconds.items()])
    query = MemoryBoundQuery(kernel="rmsnorm", rows=4096, width=4096)
    priced = ProfileCostModel(measured).memory_bound_s(query)
    assert priced.seconds[0] == pytest.approx(seconds[cases[4]], rel=0.05)
    assert priced.origin[0] == Origin.EXTRAPOLATED
    alone = profile([sample(case, seconds[case]) for case in cases[:3]])
    with pytest.raises(MissingCurveError):
        ProfileCostModel(alone).memory_bound_s(query)
    # with a hardware spec at hand it is modelled instead
    modelled = ProfileCostModel(measured, missing="modelled", modelled=Sheet()).memory_bound_s(query)  # type: ignore[arg-type]
    assert (modelled.seconds[0], modelled.origin[0]) == (1.0, Origin.MODELLED)


def test_modelled_book_answers_only_what_is_missing_and_only_when_asked() -> None:
    cost_model = ProfileCostModel(profile(collective_samples()), missing="modelled", modelled=Sheet())  # type: ignore[arg-type]
    priced = cost_model.collective_s(
        CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=[1 << 20, 1 << 20, 0], intra=8, inter=[1, 2, 2])
    )
    assert priced.origin.tolist() == [Origin.MEASURED, Origin.MODELLED, Origin.DERIVED]
    assert priced.seconds[1] == 1.0
    assert priced.seconds[0] == pytest.approx(collective_s(1 << 20, 8), rel=0.01)
    assert cost_model.cpu_s("layer").origin.tolist() == [Origin.MODELLED]


def test_from_one_measured_shape_latency_grows_with_the_steps() -> None:
    cost_model = ProfileCostModel(profile(collective_samples(ranks=(4,))))
    priced = cost_model.collective_s(
        CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=1 << 10, intra=16, inter=1)
    )
    # log2(16) / log2(4) = 2 times the steps; 1 KiB is all latency
    assert priced.seconds[0] == pytest.approx(2.0 * collective_s(1 << 10, 4), rel=0.01)


def test_windows_are_told_apart() -> None:
    sizes = {"q_len": 4096, "kv_len": 4096, "heads": 16, "kv_heads": 8, "qk_dim": 128, "v_dim": 128}
    cases = [
        AttentionCase(batch=1, **sizes | {"heads": heads}, mask="window", window=window)
        for window in (512, 2048)
        for heads in (8, 16, 32)
    ]
    cost_model = ProfileCostModel(profile([sample(case, 1e-8 * case.window * case.heads) for case in cases]))
    priced = cost_model.attention_s(AttentionQuery(**sizes, mask="window", window=[512, 2048]))
    assert priced.seconds == pytest.approx([1e-8 * 512 * 16, 1e-8 * 2048 * 16], rel=1e-6)


def test_a_few_measured_samples_rule_near_themselves_and_leave_the_rest_to_the_model() -> None:
    modelled = gemm_samples(origin=Origin.MODELLED)
    few = [sample(GemmCase(m=m, k=1024, n=1024), 2.0 * product_s(m, 1024, 1024), Origin.MEASURED) for m in (1024, 2048)]
    cost_model = ProfileCostModel(profile(modelled + few))
    near = cost_model.linear_s(LinearQuery(m=1024, k=1024, n=1024))
    assert near.origin[0] == Origin.MEASURED
    assert near.seconds[0] == pytest.approx(2.0 * product_s(1024, 1024, 1024), rel=0.01)
    far = cost_model.linear_s(LinearQuery(m=1024, k=8192, n=8192))
    assert far.origin[0] == Origin.MODELLED
    assert far.seconds[0] == pytest.approx(product_s(1024, 8192, 8192), rel=0.3)
    assert far.relative_std[0] < 0.3


def test_measured_samples_far_apart_leave_what_is_between_to_the_model() -> None:
    modelled = gemm_samples(origin=Origin.MODELLED)
    corners = [
        sample(GemmCase(m=m, k=k, n=n), (1.0 if k == n else 4.0) * product_s(m, k, n))
        for m, k, n in product((256, 8192), (512, 4096), (512, 4096))
    ]
    between = ProfileCostModel(profile(modelled + corners)).linear_s(LinearQuery(m=1024, k=1536, n=1536))
    assert between.origin[0] == Origin.MODELLED
    assert ProfileCostModel(profile(corners)).linear_s(LinearQuery(m=1024, k=1536, n=1536)).origin[0] == Origin.MEASURED


def test_a_measured_sweep_reaches_a_little_beyond_itself_before_the_model_answers() -> None:
    wide = gemm_samples(origin=Origin.MODELLED)
    slow = [sample(s.case, 3.0 * s.median_s, s.origin) for s in wide]
    sizes = {s.case.m for s in gemm_samples() if isinstance(s.case, GemmCase)}
    cost_model = ProfileCostModel(profile(slow + [s for s in gemm_samples() if s.case.m < max(sizes)]))  # type: ignore[union-attr]
    beyond = int(1.03 * max(size for size in sizes if size < max(sizes)))
    priced = cost_model.linear_s(LinearQuery(m=beyond, k=1024, n=1024))
    assert priced.origin[0] == Origin.EXTRAPOLATED
    assert priced.seconds[0] == pytest.approx(product_s(beyond, 1024, 1024), rel=0.2)
