"""Each case of what only a step shows goes to the benchmark of its kind."""

from typing import Any

import pytest

from profdb.cases import Case
from profiler import torch_launcher
from profiler.torch_launcher import TorchLauncher
from tests.profdb.profiles import STEP_PARTS
from tests.profiler.fakes import single_world

LAUNCHED_BY = {
    "SustainedCase": "launch_sustained",
    "WarmKernelCase": "launch_warm",
    "LayerCase": "launch_layer",
    "OverlapCase": "launch_overlap",
    "HostCopyCase": "launch_host_copy",
    "ExpertExchangeCase": "launch_expert_exchange",
}


@pytest.mark.parametrize("case", STEP_PARTS, ids=lambda case: type(case).__name__)
def test_a_part_of_a_step_is_launched_as_its_kind(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Case]] = []

    def noted(name: str) -> Any:
        return lambda case, *_, **words: seen.append((name, case))

    for name in LAUNCHED_BY.values():
        monkeypatch.setattr(torch_launcher, name, noted(name))
    TorchLauncher(world=single_world()).launch(case)
    assert seen == [(LAUNCHED_BY[type(case).__name__], case)]
