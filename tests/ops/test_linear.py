"""Gradients of an input that several matrices share: what adds them up, and how often they are reduced over tp."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Comm, Lane, MemoryBound, Pass
from ops.roles import Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT, small_model, with_block

TOKENS = 1024


def layer(preset: str, tp: int = 1, **changes: Any) -> Pass:
    asked = job(world_size=tp, seq_len=TOKENS, preset=framework_preset(preset).changed(changes))
    return written(small_model(), asked, "fsp" if tp > 1 else "mtp", Layout.of(tp, tp=tp)).blocks[0]


def summed(piece: Pass) -> dict[str, float]:
    """Bytes an element of the layer's input, by the product they belong to."""
    found: dict[str, float] = {}
    for op in piece.backward:
        if isinstance(op, MemoryBound) and op.name.endswith("add_gradients"):
            moved = float(bytes_moved(op)[0]) / (TOKENS * small_model().hidden)
            found[op.name] = found.get(op.name, 0.0) + moved
    return found


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        # transformers' LlamaAttention and LlamaMLP: q + k, + v, gate + up, each two read and one written in 16 bits
        ("hf-trainer", {"attention.qkv.add_gradients": 2 * 6.0, "mlp.up.add_gradients": 6.0}),
        # compiled, the next kernel reads each one more
        ("fsdp-compiled", {"attention.qkv.add_gradients": 2 * 2.0, "mlp.up.add_gradients": 2.0}),
        ("megatron", {}),
    ],
)
def test_gradients_of_matrices_that_share_an_input_are_added(preset: str, expected: dict[str, float]) -> None:
    assert summed(layer(preset)) == expected


def reductions(piece: Pass) -> list[str]:
    return [
        op.name
        for op in piece.backward
        if isinstance(op, Comm) and op.collective is Collective.REDUCE_SCATTER and op.role is Role.ENTER
    ]


def test_dtensor_reduces_the_sum_of_gradients_once() -> None:
    once = {"tensor_parallel.dtensor": True, "layers.joined_gate": False}
    assert len(reductions(layer("megatron", tp=4, **once))) == 2
    each = {"tensor_parallel.dtensor": False, "layers.joined_gate": False}
    assert len(reductions(layer("megatron", tp=4, **each))) == 3
    assert len(reductions(layer("torchtitan", tp=4))) == 2


def test_asynchronous_tensor_parallelism_fuses_no_sum_into_its_reduction() -> None:
    """_find_producer_matmul finds a product, and an addition is none."""
    piece = layer("torchtitan", tp=4, **{"tensor_parallel.overlap": True})
    lanes = {
        (op.role, op.phase.value, op.collective): op.lane
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, Comm) and op.role in (Role.ENTER, Role.LEAVE)
    }
    waited = {key for key, lane in lanes.items() if lane is Lane.MAIN}
    assert [(role, kind) for role, _, kind in waited] == [(Role.ENTER, Collective.REDUCE_SCATTER)]
    assert len(lanes) == 4


@pytest.mark.parametrize(("preset", "reduced"), [("deepspeed", 1), ("deepspeed-bf16", 1), ("megatron", 2)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_neox_reduces_halves_side_by_side_once(preset: str, reduced: int, recompute: str) -> None:
    """GPT-NeoX megatron/model/transformer.py, gpt_j_residual: residual + reduce(attention + mlp), an all-reduce of the
    hidden states forward and one of each half's input gradient backward."""
    model, asked = small_model(), job(seq_len=TOKENS, world_size=4, preset=framework_preset(preset))
    for parallel, forward in ((False, 2), (True, reduced)):
        told = with_block(model, parallel_residual=parallel)
        piece = written(told, asked, "mtp", Layout.of(4, tp=4), recompute).blocks[0]
        sums = [op for op in (*piece.forward, *piece.backward) if isinstance(op, Comm)]
        assert [op.size_bytes[0] for op in sums] == [2 * TOKENS * model.hidden] * len(sums)
        assert len([op for op in piece.forward if isinstance(op, Comm)]) == forward
        assert len(sums) == forward * (1 + (recompute == "full")) + 2
        cut = written(told, asked, "fsp", Layout.of(4, tp=4)).blocks[0]
        assert len([op for op in cut.forward if isinstance(op, Comm)]) == 2 + forward


# A tensor that two operations read: one copy where both keep it whole, two where a product keeps its own in fp8.


SEQ, HIDDEN, HEADS, V_DIM = 256, 7168, 128, 128
OWN = {"layers.shares_saved_inputs": False}


def deepseek() -> ModelSpec:
    return read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model


def experts(preset: dict[str, object], scaling: str, modules: tuple[str, ...] = ()) -> Pass:
    asked: JobSpec = job(seq_len=SEQ)
    precision = replace(asked.precision, linear="fp8" if scaling else "bf16", scaling=scaling)
    asked = replace(asked, precision=precision, preset=framework_preset("megatron").changed(preset))
    return written(deepseek(), asked, "mtp", Layout.of(8, ep=8), "none", modules).blocks[1]


def kept(piece: Pass, name: str) -> float:
    return sum(float(np.max(op.saved_bytes)) for op in piece.forward if op.name == name)


@pytest.mark.parametrize(
    ("preset", "scaling", "out", "core", "router", "shared"),
    [
        ({}, "", 2, 0, 0, 2),
        ({}, "current", 2, 0, 0, 2),
        (OWN, "current", 1, 2, 2, 1),
        ({}, "delayed", 1, 2, 2, 1),
        ({}, "row", 2, 0, 0, 2),
        # DeepSeek-V3 (arXiv 2412.19437 sec. 3.3.3): twelve bits of what attention hands on
        ({"layers.saved_attention": "e5m6"}, "current", 1.5, 0, 0, 2),
        ({"layers.saved_attention": "e5m6"}, "", 2, 0, 0, 2),
    ],
)
def test_what_attention_and_the_router_keep_is_kept_once_where_formats_agree(
    preset: dict[str, object], scaling: str, out: float, core: int, router: int, shared: int
) -> None:
    """Bytes an element: the kernel's output and the product's input, the router's and the shared experts'.
    torchao's row-wise products keep their inputs whole."""
    piece = experts(preset, scaling)
    queries = (192 + 192 + 128) * 2 + 4  # q, k and v in 16 bits and a statistic, of each head
    assert kept(piece, "attention.out") == out * SEQ * HEADS * V_DIM
    assert kept(piece, "attention.core") == SEQ * HEADS * (queries + core * V_DIM)
    assert kept(piece, "moe.router") == router * SEQ * HIDDEN
    assert kept(piece, "shared.up") == shared * SEQ * HIDDEN


def test_products_into_both_latents_each_keep_a_narrow_input() -> None:
    """Two Transformer Engine linears cast what they read apart; 16-bit ones keep one tensor."""
    for scaling, own in (("", 0), ("current", 1)):
        assert kept(experts({}, scaling), "attention.kv_down") == own * SEQ * HIDDEN


@pytest.mark.parametrize("scaling", ["", "current"])
def test_norms_that_run_again_leave_nothing_with_what_reads_them(scaling: str) -> None:
    """moe_layer.py, set_for_recompute_pre_mlp_layernorm; multi_latent_attention.py,
    set_for_recompute_input_layernorm.
    """
    piece = experts({}, scaling, ("layernorm",))
    assert [kept(piece, name) for name in ("moe.router", "shared.up", "attention.q_down", "attention.kv_down")] == [
        0.0
    ] * 4
