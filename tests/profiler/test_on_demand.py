"""Single cases, measured when asked for."""

import pytest

from profdb.cases import AttentionCase, Case, CollectiveCase, GemmCase
from profiler.on_demand import case_measurer
from spec.collectives import Collective
from spec.origin import Origin


@pytest.mark.parametrize(
    "case",
    [
        GemmCase(m=32, k=16, n=48, layout="TN"),
        AttentionCase(batch=1, q_len=32, kv_len=32, heads=4, kv_heads=4, qk_dim=16, v_dim=16),
    ],
)
def test_a_case_is_measured_under_its_own_key(case: Case) -> None:
    sample = case_measurer("cpu")(case)
    assert (sample.case, sample.status, sample.origin) == (case, "ok", Origin.MEASURED)
    assert len(sample.trials_s) >= 3
    assert sample.date


def test_a_collective_needs_others() -> None:
    case = CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=1024, intra=2, inter=1)
    sample = case_measurer("cpu")(case)
    assert (sample.status, sample.trials_s) == ("failed", ())
    assert "do not tile" in str(sample.launched["reason"])
