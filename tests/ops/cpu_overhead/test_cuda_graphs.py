"""What a graph holds is issued by one replay a pass."""

from dataclasses import replace

import pytest

from ops.cpu_overhead import REPLAY_CALLS, cpu_overhead, is_replayed
from ops.layout import Layout
from ops.op import Op
from ops.roles import Module, OpKey, Role
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT

DENSE, EXPERTS = 0, 1
NEMOTRON, NEXT = "30B_nemotron3_nano.json", "80B_qwen3_next.json"


def layer(which: int) -> tuple[Op, ...]:
    """The forward of a layer of DeepSeek-V3: a dense one, or one with routed and shared experts."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    return written(model, job(seq_len=256), "fsp", Layout.of(8, tp=2, ep=4), "none").blocks[which].forward


@pytest.mark.parametrize(
    ("which", "scope"),
    [
        (DENSE, "attn"),
        (DENSE, "mlp"),
        (EXPERTS, "attn"),
        (EXPERTS, "moe_router"),
        (EXPERTS, "moe_preprocess"),
    ],
)
def test_a_graph_is_replayed_once_and_issues_nothing_else(which: int, scope: str) -> None:
    asked = replace(job(), cuda_graphs=frozenset({scope}))
    work = [cpu_overhead(op, asked) for op in layer(which) if is_replayed(op, {scope})]
    assert sum(float(one.calls[0]) for one in work) == REPLAY_CALLS
    assert sum(float(one.launches[0]) for one in work) == 0.0


@pytest.mark.parametrize(
    ("name", "kind", "scope"), [(NEMOTRON, 0, "mamba"), (NEXT, 0, "attn"), (NEXT, 1, "attn")]
)
def test_mixers_are_replayed_whole(name: str, kind: int, scope: str) -> None:
    """Megatron-Core cuda_graphs.py: Mamba layers under a scope of their own, other mixers as attention."""
    asked = job(seq_len=256, world_size=1, cuda_graphs=frozenset({scope}))
    piece = written(read_config(ROOT / "configs" / name).model, asked, "fsp", Layout.of(1)).blocks[kind]
    work = [cpu_overhead(op, asked) for op in piece.forward if is_replayed(op, {scope})]
    assert sum(float(one.calls[0]) for one in work) == REPLAY_CALLS
    assert sum(float(one.launches[0]) for one in work) == 0.0
    assert len(work) > 8


def test_a_scope_holds_its_modules_with_all_that_serves_them() -> None:
    held = [op for op in layer(EXPERTS) if is_replayed(op, {"moe_router"})]
    outside = [op for op in layer(EXPERTS) if not is_replayed(op, {"moe_router"})]
    assert {op.key for op in held if op.module is not Module.SHARED_EXPERTS} == {
        OpKey(Module.MLP, Role.NORM),
        OpKey(Module.MOE, Role.ROUTER),
    }
    assert any(op.serves is Role.UP for op in held)
    assert not any(op.module is Module.SHARED_EXPERTS for op in outside)
