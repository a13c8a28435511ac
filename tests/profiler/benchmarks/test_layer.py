"""A whole layer runs the products, the attention and the norms that its case says, forward and backward."""

import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profdb.cases import LayerCase
from profdb.layer_sum import layer_products
from profiler.benchmarks import attention as best_attention
from profiler.benchmarks.flash_kernels import FlashKernel
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.benchmarks.layer import capture_graph, launch_layer
from profiler.device import Device
from tests.profiler.fakes import Recorder

CASE = LayerCase(batch=2, seq_len=16, hidden=64, ffn_hidden=96, heads=4, kv_heads=2, head_dim=16)
CPU = Device(kind="cpu")


def test_the_layer_of_the_case_is_what_runs() -> None:
    launched = launch_layer(CASE, CPU)
    assert (launched.case, launched.implementation) == (
        CASE,
        "torch layer, eager, torch scaled_dot_product_attention flash",
    )
    with Recorder() as recorder:
        launched.calls[0]()
    # forward, input gradient and weight gradient of four linear layers: those whose own times are added up beside it
    multiplied = sorted((*left.shape, right.shape[1]) for left, right in recorder.of("mm"))
    asked = [query.columns() for query in layer_products(CASE)]
    assert multiplied == sorted((int(one["m"][0]), int(one["k"][0]), int(one["n"][0])) for one in asked)
    tokens, hidden, ffn, qkv = 32, 64, 96, (4 + 2 * 2) * 16
    forward = [(tokens, hidden, qkv), (tokens, hidden, hidden), (tokens, hidden, 2 * ffn), (tokens, ffn, hidden)]
    assert set(forward) <= set(multiplied)
    assert len(multiplied) == 3 * 4
    names = [name for name, _ in recorder.seen]
    assert sum("attention" in name and "backward" not in name for name in names) == 1
    assert sum("attention" in name and "backward" in name for name in names) == 1


def test_attention_is_what_flash_stands_for_on_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a layer on Hopper, set beside the sum of kernels that holds FlashAttention-3's or cuDNN's, had torch's own."""
    asked: list[tuple[tuple[int, ...], ...]] = []

    def flash_attn_func(query: Any, key: Any, value: Any, *, causal: bool) -> Any:
        assert causal
        asked.append(tuple(tuple(one.shape) for one in (query, key, value)))
        return query + key.repeat(1, 1, 2, 1) + value.repeat(1, 1, 2, 1), None

    package = SimpleNamespace(__name__="flash_attn_interface", flash_attn_func=flash_attn_func)
    monkeypatch.setattr(best_attention, "candidates", lambda *words: [FlashKernel(package=package)])  # type: ignore[arg-type]
    launched = launch_layer(CASE, CPU)
    launched.calls[0]()
    assert launched.implementation == "torch layer, eager, flash_attn_interface"
    assert asked == [((2, 16, 4, 16), (2, 16, 2, 16), (2, 16, 2, 16))]


def test_gradients_are_not_piled_up() -> None:
    launched = launch_layer(CASE, CPU)
    runs = []
    for _ in range(2):
        with Recorder() as recorder:
            launched.calls[0]()
        runs.append(recorder.shapes())
    # a second gradient that is added to the first would be operations more
    assert runs[0] == runs[1]


def test_a_graph_is_captured_after_warm_ups_aside_and_then_only_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            order.append("wait")

    class Within:
        def __init__(self, what: object) -> None:
            self.name = "capture" if isinstance(what, Graph) else "aside"

        def __enter__(self) -> None:
            order.append(self.name)

        def __exit__(self, *_: object) -> None:
            order.append(f"end of {self.name}")

    class Graph:
        def replay(self) -> None:
            order.append("replay")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    monkeypatch.setattr(torch.cuda, "graph", Within)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    read = torch.nn.Linear(1, 1)
    held = weakref.ref(read)
    call = capture_graph(partial(lambda layer: order.append("run"), read))
    del read
    assert held() is not None, "what the graph reads is freed"
    assert order == ["wait", "aside", *["run"] * 3, "end of aside", "wait", "capture", "run", "end of capture"]
    order.clear()
    call()
    assert order == ["replay"]


@pytest.mark.parametrize(
    "changed", [{"mode": "graph"}, {"mode": "quick"}, {"kv_heads": 3}, {"head_dim": 15}, {"dtype": "fp4"}]
)
def test_what_cannot_run_is_refused(changed: dict[str, Any]) -> None:
    case = replace(CASE, **changed)
    with pytest.raises(UnsupportedCaseError):
        launch_layer(case, CPU)
