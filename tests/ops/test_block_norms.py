"""Where a block's norms stand: what they own, keep and make again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.layout import Layout
from ops.op import Op, Pass
from ops.roles import Module, OpKey, Role
from spec.model import BlockRun, ModelSpec, NormPlace
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.ops.test_block import op_parameters
from tests.solver.questions import small_model

COUNTS = Path(__file__).parents[1] / "spec" / "readers" / "huggingface" / "counts.json"
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(COUNTS.read_text())["counts"]}
FAMILIES = (
    "gemma2, class defaults",
    "gemma3_text, class defaults",
    "glm4, class defaults",
    "olmo2, class defaults",
    "exaone4, class defaults",
    "Command R+",
    "llama4_text, class defaults",
    "phi, class defaults",
    "bloom, class defaults",
    "opt, class defaults",
    "Falcon 2 11B",
    "StableLM 2 12B",
    "granitemoehybrid, class defaults",
)
TOKENS, HIDDEN = 2048, 1024
NORMS = {NormPlace.BEFORE: 2, NormPlace.AFTER: 2, NormPlace.AROUND: 4, NormPlace.SHARED: 1}


@pytest.mark.parametrize("name", FAMILIES)
def test_operations_own_the_parameters_of_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ROWS[name]["says"]), encoding="utf-8")
    model = read_config(path).model
    assert op_parameters(model) == num_parameters(model).total == ROWS[name]["parameters"]


def model_with(place: NormPlace) -> ModelSpec:
    model = small_model(layers=1)
    (run,) = model.blocks
    return replace(
        model, hidden=HIDDEN, blocks=(BlockRun(block=replace(run.block, norm_place=place), count=1),)
    )


def block_of(place: NormPlace, recompute: str = "none", modules: tuple[str, ...] = ()) -> Pass:
    (piece,) = written(model_with(place), job(seq_len=TOKENS), "mtp", Layout.of(1), recompute, modules).blocks
    return piece


def norms(ops: tuple[Op, ...]) -> list[Op]:
    return [op for op in ops if op.role is Role.NORM and op.serves is None]


@pytest.mark.parametrize("place", NormPlace)
def test_norms_run_once_a_place(place: NormPlace) -> None:
    piece = block_of(place)
    assert len(norms(piece.forward)) == len(norms(piece.backward)) == NORMS[place]


def test_a_norm_stands_where_it_is_said_to() -> None:
    def around(place: NormPlace) -> list[bool]:
        """Whether the mixer's norms, in order, stand before its first product."""
        ops = block_of(place).forward
        keys = [op.key for op in ops]
        product = keys.index(OpKey(Module.ATTENTION, Role.QKV))
        return [
            index < product for index, key in enumerate(keys) if key == (Module.ATTENTION, Role.NORM, None)
        ]

    assert around(NormPlace.BEFORE) == [True]
    assert around(NormPlace.AFTER) == [False]
    assert around(NormPlace.AROUND) == [True, False]


def test_each_norm_and_each_product_keeps_its_input_once() -> None:
    """A norm behind a half keeps that half's result, as one before it keeps its input; halves that share a
    norm keep its result once: two tensors of the hidden size less than with a norm each."""

    def kept(place: NormPlace) -> float:
        return float(sum(op.saved_bytes[0] for op in block_of(place).forward))

    tensor = 2.0 * TOKENS * HIDDEN
    assert kept(NormPlace.AFTER) == kept(NormPlace.BEFORE)
    assert kept(NormPlace.AROUND) == kept(NormPlace.BEFORE) + 2 * tensor
    assert kept(NormPlace.SHARED) == kept(NormPlace.BEFORE) - 2 * tensor


def test_what_no_norm_made_is_not_made_again() -> None:
    """Recomputed norms let the products behind them drop their inputs; without norms before them nothing changes."""
    names = ("norm",)
    assert sum(op.saved_bytes[0] for op in block_of(NormPlace.BEFORE, modules=names).forward) < sum(
        op.saved_bytes[0] for op in block_of(NormPlace.BEFORE).forward
    )
    assert block_of(NormPlace.AFTER, modules=names).backward == block_of(NormPlace.AFTER).backward


def test_soft_capped_logits_cost_three_passes() -> None:
    """cap * tanh(x / cap): two elementwise kernels and tanh, which keeps its result in 16 bits."""
    model = model_with(NormPlace.BEFORE)
    plain = written(model, job(seq_len=TOKENS), "mtp", Layout.of(1)).head
    capped = written(replace(model, logit_softcap=True), job(seq_len=TOKENS), "mtp", Layout.of(1)).head
    added = [op for op in capped.forward if op.key == (Module.HEAD, Role.ACTIVATION, None)]
    assert [op.name for op in added] == [f"head.softcap.{word}" for word in ("divide", "tanh", "multiply")]
    assert len(capped.forward) - len(plain.forward) == len(capped.backward) - len(plain.backward) == 3
    logits = next(op.n[0] for op in plain.forward if op.key == (Module.HEAD, Role.LOGITS, None))
    assert sum(op.saved_bytes[0] for op in added) == 2.0 * TOKENS * logits


def test_chunked_losses_keep_no_soft_capped_logits() -> None:
    asked = job(seq_len=TOKENS)
    asked = replace(asked, preset=asked.preset.changed({"loss.fused": True, "loss.chunked": True}))
    head = written(replace(model_with(NormPlace.BEFORE), logit_softcap=True), asked, "mtp", Layout.of(1)).head
    assert sum(op.saved_bytes[0] for op in head.forward if op.role is Role.ACTIVATION) == 0.0
