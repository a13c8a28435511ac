"""Products and collectives of a case start together, as many of each as it says, and the call ends with both."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from profdb.cases import OverlapCase
from profiler.benchmarks import overlap
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.benchmarks.overlap import launch_overlap, on_two_streams
from spec.collectives import Collective
from tests.profiler.fakes import Recorder, fake_world

GATHER = {"collective": Collective.ALL_GATHER, "size_bytes": 4096, "intra": 2, "inter": 1, "siblings": 1}
CASE = OverlapCase(**GATHER, m=24, k=16, n=40, products=3, collectives=2)


def with_counts(products: int, collectives: int) -> OverlapCase:
    return replace(CASE, products=products, collectives=collectives)


@pytest.mark.parametrize(("products", "collectives"), [(3, 2), (0, 2), (3, 0)])
def test_as_many_of_each_are_launched_as_the_case_says(
    products: int, collectives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, Any]] = []

    def gather(whole: torch.Tensor, part: torch.Tensor, group: Any = None) -> None:
        seen.append((whole.numel(), part.numel(), group))

    monkeypatch.setattr(dist, "all_gather_single", gather, raising=False)
    monkeypatch.setattr(dist, "all_gather_into_tensor", gather, raising=False)
    case = with_counts(products, collectives)
    launched = launch_overlap(case, fake_world(1, 2))
    assert (launched.case, launched.collective) == (case, True)
    with Recorder() as multiplied:
        launched.calls[0]()
    assert seen == [(2048, 1024, (0, 1))] * collectives
    assert [one for one in multiplied.shapes() if one[0] == "mm"] == [("mm", [(24, 16), (16, 40)])] * products
    parts = ["torch gloo all_gather"] * (collectives > 0) + ["torch.mm"] * (products > 0)
    assert launched.implementation == " beside ".join(parts)


def test_products_run_while_a_collective_blocks_and_the_call_waits_for_it() -> None:
    """The collective ends only once a product has run: one after the other, neither would."""
    multiplied, order = threading.Event(), []

    def exchange() -> None:
        assert multiplied.wait(timeout=30.0)
        order.append("exchanged")

    def product() -> None:
        order.append("multiplied")
        multiplied.set()

    overlap.in_two_threads([exchange], [product])()
    assert order == ["multiplied", "exchanged"]


def test_an_error_of_the_collective_reaches_the_caller() -> None:
    def exchange() -> None:
        raise RuntimeError("no peer")

    with pytest.raises(RuntimeError, match="no peer"):
        overlap.in_two_threads([exchange], [])()


def test_on_a_gpu_the_collectives_are_issued_first_to_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Stream:
        def __init__(self, name: str = "aside") -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            order.append(f"{self.name} waits for {other.name}")

    class Within:
        def __init__(self, stream: Stream) -> None:
            order.append(f"to {stream.name}")

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None:
            order.append("to current")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    on_two_streams([lambda: order.append("exchange")] * 2, [lambda: order.append("product")])()
    assert order == [
        "aside waits for current",
        *("to aside", "exchange", "exchange", "to current"),
        "product",
        "current waits for aside",
    ]


@pytest.mark.parametrize(
    "case",
    [
        with_counts(0, 0),
        replace(CASE, collective=Collective.P2P),
        replace(CASE, intra=4),
        replace(CASE, size_bytes=4095),
    ],
)
def test_what_cannot_run_together_here_is_refused(case: OverlapCase) -> None:
    with pytest.raises(UnsupportedCaseError):
        launch_overlap(case, fake_world(1, 2))
