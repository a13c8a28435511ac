"""Which AdamW runs, and that its sample says so."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profdb.cases import OptimizerCase
from profiler.benchmarks import optimizer
from profiler.benchmarks.optimizer import launch_optimizer
from tests.profiler.fakes import device_like


def without_extensions(*_: object, **words: object) -> Any:
    raise RuntimeError("apex.optimizers.FusedAdam requires cuda extensions")


FUSED = SimpleNamespace(FusedAdam=lambda parameters, **words: torch.optim.SGD(parameters))


@pytest.mark.parametrize(
    ("apex", "dtype", "named"),
    [
        (FUSED, "fp32", "apex FusedAdam"),
        # its moments are fp32 there, which a case in bf16 does not say
        (FUSED, "bf16", "torch AdamW fused"),
        (SimpleNamespace(FusedAdam=without_extensions), "fp32", "torch AdamW fused"),
        (None, "fp32", "torch AdamW fused"),
    ],
)
def test_apex_steps_where_it_runs_as_the_case_says(
    apex: Any, dtype: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "optional_package", lambda _: apex)
    case = OptimizerCase(elements=8, parameter_dtype=dtype, gradient_dtype=dtype)
    launched = launch_optimizer(case, device_like(torch_device=torch.device("cpu")))
    assert (launched.case, launched.implementation) == (case, named)
    launched.calls[0]()
