"""A whole layer's time over the sum of its kernels' is a curve over that sum, where both were measured."""

from dataclasses import replace

import numpy as np
import pytest

from profdb.case_recorder import CaseRecorder
from profdb.cases import Case, HostCase, LayerCase
from profdb.cost_model import ProfileCostModel
from profdb.layer_sum import LayerSum, layer_sum, parts_of_layer
from profdb.sample import Sample
from spec.arrays import floats
from spec.origin import Origin
from tests.profdb.profiles import profile
from tests.solver.flat_cost_model import FlatCostModel

KERNEL_S = 1e-3
LAYER = LayerCase(batch=1, seq_len=512, hidden=256, ffn_hidden=512, heads=4, kv_heads=2, head_dim=64, mode="graph")
PARTS = 12 + 2 + 2 * 6
"""Three products of four linear layers, attention and six other kernels, both ways (norms and additions twice)."""


def kernels_of(case: LayerCase) -> list[Case]:
    noted = CaseRecorder(cost_model=FlatCostModel())
    parts_of_layer(noted, case)
    return list(noted.cases)


def taken(case: Case, seconds: float = KERNEL_S, origin: Origin = Origin.MEASURED) -> Sample:
    return Sample(case=case, trials_s=(seconds,), origin=origin)


def told(*samples: Sample, kernels: Origin = Origin.MEASURED) -> LayerSum | None:
    """What a profile tells that holds every kernel of the layer at a millisecond, and these samples."""
    return layer_sum(
        ProfileCostModel(profile([*(taken(case, origin=kernels) for case in kernels_of(LAYER)), *samples]))
    )


def test_a_graph_over_the_sum_of_its_kernels_is_the_factor() -> None:
    found = told(taken(LAYER, 1.2 * PARTS * KERNEL_S))
    assert found is not None
    assert np.exp(found.log_sum_s) == pytest.approx([PARTS * KERNEL_S])
    assert found.factor(floats([PARTS * KERNEL_S, 1.0, 1e-9])) == pytest.approx([1.2] * 3)
    assert found.factor(floats([0.0])) == pytest.approx([1.0])


def test_between_two_layers_the_factor_is_interpolated_over_the_logarithm_of_the_sum() -> None:
    curve = LayerSum(log_sum_s=np.log(floats([1e-3, 1e-1])), log_factor=np.log(floats([2.0, 0.5])))
    assert curve.factor(floats([1e-2])) == pytest.approx([1.0])
    assert curve.factor(floats([1e-5, 1.0])) == pytest.approx([2.0, 0.5])


def test_what_the_host_issued_counts_where_the_host_is_faster_and_nothing_better_is_there() -> None:
    eager = taken(replace(LAYER, mode="eager"), 2.0 * PARTS * KERNEL_S)
    quick, slow = (taken(HostCase(kind="layer"), share * PARTS * KERNEL_S) for share in (0.5, 1.5))
    assert told(eager) is None
    assert told(eager, slow) is None
    found = told(eager, quick)
    assert found is not None
    assert found.factor(floats([1.0])) == pytest.approx([2.0])
    both = told(eager, quick, taken(LAYER, 1.1 * PARTS * KERNEL_S))
    assert both is not None
    assert both.factor(floats([1.0])) == pytest.approx([1.1])


def test_a_sum_that_nobody_measured_tells_nothing() -> None:
    graph = taken(LAYER, 1.2 * PARTS * KERNEL_S)
    assert told() is None
    assert told(graph, kernels=Origin.MODELLED) is None
    assert layer_sum(ProfileCostModel(profile([graph]))) is None
    assert told(taken(LAYER, 1.0, Origin.TRANSFERRED)) is None
