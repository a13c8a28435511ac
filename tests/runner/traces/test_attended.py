"""Pairs of queries and keys of traced attentions."""

from typing import Any

import pytest
import torch

from runner.traces.names import CAUSAL_INPUT, pairs_of
from runner.traces.trace_file import Event

FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"


def called(name: str, dims: list[list[int]], flags: list[str]) -> Event:
    args: dict[str, Any] = {"Input Dims": dims, "Concrete Inputs": flags}
    return Event(name=name, category="cpu_op", thread=("1", "1"), start_s=0.0, seconds=1.0, args=args)


def forward(q_len: int, kv_len: int, causal: str, mask: list[int], name: str = FORWARD) -> Event:
    query, key = [2, 4, q_len, 16], [2, 4, kv_len, 16]
    return called(name, [query, key, key, [], [], mask, []], ["", "", "", "0.", causal, "", ""])


@pytest.mark.parametrize(
    ("q_len", "kv_len", "causal", "mask", "each"),
    [
        (8, 8, "True", [], 36),  # the triangle with its diagonal
        (8, 32, "False", [8, 32], 8 * 24 + 36),  # aligned at the end
        (16, 8, "False", [], 16 * 8),
    ],
)
def test_pairs_are_those_that_the_mask_leaves(
    q_len: int, kv_len: int, causal: str, mask: list[int], each: int
) -> None:
    assert pairs_of(forward(q_len, kv_len, causal, mask)) == 2 * 4 * each


def test_below_it_a_kernel_has_its_heads_last_and_a_backward_its_gradient_first() -> None:
    heads = [2, 8, 4, 16]
    below = called("aten::_flash_attention_forward", [heads] * 3 + [[]] * 6, [""] * 8 + ["True"])
    assert pairs_of(below) == 2 * 4 * 36
    turned = [[2, 4, 8, 16], [2, 4, 8, 16], [2, 4, 32, 16], [2, 4, 32, 16]]
    back = called(f"{FORWARD}_backward", [*turned, *[[]] * 6], [""] * 7 + ["False"] + [""] * 2)
    assert pairs_of(back) == 2 * 4 * 8 * 32


@pytest.mark.parametrize(
    "event",
    [
        called("flash_attn::_flash_attn_forward", [[2, 8, 4, 16]] * 3, []),
        called(FORWARD, [[2, 4, 8, 16]] * 3, ["", "", ""]),
        called(FORWARD, [[64, 4, 16]] * 3 + [[]] * 4, [""] * 4 + ["True"] + [""] * 2),
    ],
)
def test_what_does_not_say_has_none(event: Event) -> None:
    assert pairs_of(event) is None


@pytest.mark.parametrize("name", sorted(CAUSAL_INPUT))
def test_inputs_are_those_of_torch(name: str) -> None:
    (schema,) = [one for one in torch._C._jit_get_schemas_for_operator(name) if not one.overload_name]
    inputs = [one.name for one in schema.arguments]
    causal, mask = CAUSAL_INPUT[name]
    assert inputs[causal] in ("is_causal", "causal")
    assert inputs.index("query") == (1 if "backward" in name else 0)
    masks = [at for at, one in enumerate(inputs) if one in ("attn_mask", "attn_bias")]
    assert masks == ([] if mask is None else [mask])
