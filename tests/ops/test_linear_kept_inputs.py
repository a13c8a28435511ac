"""A tensor that two operations read: one copy where both keep it whole, two where a product keeps its own in fp8."""

from dataclasses import replace

import numpy as np
import pytest

from ops.layout import Layout
from ops.op import Pass
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.solver.questions import ROOT

SEQ, HIDDEN, HEADS, V_DIM = 256, 7168, 128, 128
OWN = {"layers.shares_kept_inputs": False}


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
        ({"layers.kept_attention": "e5m6"}, "current", 1.5, 0, 0, 2),
        ({"layers.kept_attention": "e5m6"}, "", 2, 0, 0, 2),
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
    assert [
        kept(piece, name) for name in ("moe.router", "shared.up", "attention.q_down", "attention.kv_down")
    ] == [0.0] * 4
