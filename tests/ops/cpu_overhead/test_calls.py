"""Calls of modules are those that docs/formulas.md shows, and nanotron's add up to the layer that was run."""

import re
from pathlib import Path

import pytest

from ops.cpu_overhead import CALLS, NCCL_CALLS, TRITON_2_CALLS, ModuleCalls
from ops.roles import Role

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "formulas.md").read_text(encoding="utf-8")
ROWS = {
    "linear": "linear",
    "norm": Role.NORM,
    "rotary, with the split of q, k and v": Role.ROTARY,
    "attention core": "attention",
    "gated activation": Role.ACTIVATION,
    "residual add, with the layer around it": Role.RESIDUAL,
    "router": Role.ROUTER,
    "permute": Role.PERMUTE,
    "exchange (two all-to-all, of tokens and their weights)": "exchange",
    "sort by expert": Role.SORT,
    "unpermute": Role.UNPERMUTE,
    "a collective": "collective",
}


def calls_of(code: ModuleCalls, row: str | Role) -> float:
    return code.by_role[row] if isinstance(row, Role) else float(getattr(code, row))


def shown() -> dict[str, str]:
    """The first two cells of the table of modules."""
    table = PAGE.split("| module, forward or backward | calls |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.M))


@pytest.mark.parametrize("row", ROWS)
def test_megatrons_modules_are_those_of_the_page(row: str) -> None:
    said = [float(number) for number in re.findall(r"(?<!\d)\d+(?:\.\d+)?", shown()[row].split(" (Trans")[0])]
    code = CALLS["modules"]
    beside = {
        "permute": code.token_counts,
        "exchange (two all-to-all, of tokens and their weights)": NCCL_CALLS,
    }
    assert said == [calls_of(code, ROWS[row]), *([beside[row]] if row in beside else [])]


def test_so_are_plain_pytorchs() -> None:
    said = PAGE.split("take, in the order of that table, ")[1].split(" calls.")[0]
    code = CALLS["torch"]
    expected = [calls_of(code, row) for row in ROWS.values()]
    expected.insert(8, code.token_counts)
    assert [float(number) for number in re.findall(r"\d+(?:\.\d+)?", said)] == expected
    assert code.by_role[Role.UNSORT] == code.by_role[Role.SORT]


def test_nanotrons_modules_add_up_to_the_124_calls_of_its_layer() -> None:
    """On one rank, forward and backward alike: four linears, two norms and residual adds, a rotary embedding,
    an attention and an activation; its Triton kernels, which no CPU ran, are not in it."""
    code = CALLS["nanotron"]
    of = code.by_role
    norms, rotary = of[Role.NORM] - TRITON_2_CALLS, of[Role.ROTARY] - 2 * TRITON_2_CALLS
    a_pass = (
        4 * code.linear + 2 * norms + rotary + code.attention + of[Role.ACTIVATION] + 2 * of[Role.RESIDUAL]
    )
    assert 2 * a_pass == pytest.approx(124, rel=0.015)
    assert code.collective == 4 + NCCL_CALLS
    launches_us = 13.48 * TRITON_2_CALLS
    assert launches_us == pytest.approx(62)
